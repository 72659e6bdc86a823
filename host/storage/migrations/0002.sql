-- The processes of a fleet: see host/fleet/members.py. `until` is the end of a lease by the clock of the database.
CREATE TABLE colonnade.member (
    config TEXT NOT NULL, boot TEXT NOT NULL, address TEXT NOT NULL, until TIMESTAMPTZ NOT NULL,
    definitions BIGINT NOT NULL, grants BIGINT NOT NULL,
    rules_digest TEXT NOT NULL, version TEXT NOT NULL, status TEXT NOT NULL,
    PRIMARY KEY (config, boot)
);
-- The process that has adopted a session of another one; empty if none has.
ALTER TABLE colonnade.session ADD COLUMN home TEXT NOT NULL DEFAULT '';
