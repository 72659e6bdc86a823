-- That a server may stay unconfined allows something: see host/storage/postgres.py. Rows without a code count for nothing.
ALTER TABLE colonnade.unconfined ADD COLUMN mac BYTEA NOT NULL DEFAULT '';
