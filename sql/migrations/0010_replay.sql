-- A replay: a batch that computes the output of another one again, its root's. It reads the root's
-- ranges by the root's verdicts, so it has no claims, adds no ids, and takes no place in the order of
-- commits: it stands at its root's.
ALTER TABLE semel.batch
    ADD COLUMN replays          bigint REFERENCES semel.batch,
    ADD COLUMN generation       int NOT NULL DEFAULT 1 CHECK (generation >= 1),
    ADD COLUMN replaced_by      bigint REFERENCES semel.batch,
    ADD COLUMN files_removed_at timestamptz,
    ADD COLUMN admits           bigint REFERENCES semel.batch,
    ADD COLUMN admission        int CHECK (admission >= 1),
    ADD CONSTRAINT batch_replay_whole CHECK ((replays IS NULL) = (generation = 1)),
    ADD CONSTRAINT batch_replaced_finalized CHECK (
        (replaced_by IS NULL OR status = 'finalized')
        AND (files_removed_at IS NULL OR replaced_by IS NOT NULL)),
    ADD CONSTRAINT batch_admission_whole CHECK (
        (admits IS NULL) = (admission IS NULL) AND (admits IS NULL OR replays IS NULL)),
    DROP CONSTRAINT batch_committed_whole,
    ADD CONSTRAINT batch_committed_whole CHECK (
        (status IN ('committed', 'finalized')) = (committed_at IS NOT NULL)
        AND (commit_seq IS NOT NULL) = (committed_at IS NOT NULL AND replays IS NULL)
        AND (commit_seq IS NULL) = (batch_time IS NULL));
-- Of replays and admissions a request has one for each batch, and each of these is counted apart.
ALTER TABLE semel.batch DROP CONSTRAINT batch_request_unique;
CREATE UNIQUE INDEX batch_request_unique ON semel.batch
    (pipeline_id, request_key, COALESCE(replays, 0), COALESCE(admits, 0), ordinal);
-- This prevents a batch from having two outputs that both count.
-- Keeps RP2.
CREATE UNIQUE INDEX batch_generation ON semel.batch (COALESCE(replays, batch_id), generation)
    WHERE status <> 'abandoned';
CREATE UNIQUE INDEX batch_replaced_once ON semel.batch (replaced_by) WHERE replaced_by IS NOT NULL;
-- The dead letters of a batch are judged again by its first admission, what that one leaves by the
-- second, and so on. This prevents a dead letter from being admitted twice.
-- Keeps RP9.
CREATE UNIQUE INDEX batch_admission ON semel.batch (admits, admission) WHERE status <> 'abandoned';
CREATE INDEX batch_replaced ON semel.batch (pipeline_id)
    WHERE replaced_by IS NOT NULL AND files_removed_at IS NULL;
