-- Questions to people, which each process of a fleet shows: see host/fleet/confirmations.py. `home` is the process whose
-- call waits. `answer` is empty until one was given.
CREATE TABLE colonnade.confirmation (
    config TEXT NOT NULL, id TEXT NOT NULL, home TEXT NOT NULL, sealed TEXT NOT NULL, answer TEXT NOT NULL DEFAULT '',
    expires DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (config, id)
);
-- Whether somebody is at the process who can answer.
ALTER TABLE colonnade.member ADD COLUMN attended BOOLEAN NOT NULL DEFAULT false;
