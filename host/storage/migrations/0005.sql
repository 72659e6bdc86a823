-- Rates of servers, which the processes of a fleet share: see host/fleet/rates.py. `member` is the process that has
-- leased the amount until the Unix time `at`; empty for what nobody has, as of that time.
CREATE TABLE colonnade.budget (
    config TEXT NOT NULL, server TEXT NOT NULL, kind TEXT NOT NULL, member TEXT NOT NULL,
    amount DOUBLE PRECISION NOT NULL, at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (config, server, kind, member)
);
