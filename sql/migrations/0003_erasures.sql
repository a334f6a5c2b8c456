-- An erasure: a person's word that rows of a batch's newest output, and records of its files in the
-- archive, are gone on purpose. The batch's marker has it, too. `batch_id` is no replay's.
CREATE TABLE semel.erasure (
    batch_id          bigint NOT NULL REFERENCES semel.batch,
    accepted_at       timestamptz NOT NULL,
    accepted_by       text NOT NULL,
    reason            text NOT NULL CHECK (reason <> ''),
    rows              bigint NOT NULL CHECK (rows >= 0),
    records           bigint NOT NULL CHECK (records >= 0),
    -- This prevents one word from being counted twice.
    -- Keeps ER2.
    CONSTRAINT erasure_once PRIMARY KEY (batch_id, accepted_at)
);
