-- commit: make one attempt win.

-- name: pipeline_now
-- Keeps C9.
-- A lease holds while its batch may still commit: nobody waits for one that has, or was given up.
SELECT p.commit_seq, p.sink_schema, p.exact_from, p.lease_batch_id,
       COALESCE(p.lease_until > clock_timestamp() AND b.status = 'planned', false) AS leased
FROM semel.pipeline AS p
LEFT JOIN semel.batch AS b ON b.batch_id = p.lease_batch_id
WHERE p.pipeline_id = :pipeline_id;

-- name: lock_batch
SELECT status FROM semel.batch WHERE batch_id = :batch_id FOR NO KEY UPDATE;

-- name: lock_attempt
-- Keeps C5.
-- And the first of its buckets that was forgotten since it began. Under the pipeline's lock none is
-- forgotten now.
SELECT a.status, lower(a.buckets * (p.forgotten - a.forgotten)) AS forgotten
FROM semel.attempt AS a
JOIN semel.batch AS b USING (batch_id)
JOIN semel.pipeline AS p USING (pipeline_id)
WHERE a.attempt_id = :attempt_id
FOR NO KEY UPDATE OF a;

-- name: replaced
-- Keeps C15.
-- A name of which a batch has claimed other content than its partition has.
SELECT p.name
FROM semel.claim AS c
JOIN semel.source_partition AS p USING (source_partition_id)
WHERE c.batch_id = :batch_id AND c.evidence ->> 'content' <> p.evidence ->> 'content'
LIMIT 1;

-- name: since
-- The batches that took a place behind a given one, the newest first.
SELECT batch_id, request_key
FROM semel.batch
WHERE pipeline_id = :pipeline_id AND commit_seq > :commit_seq
ORDER BY commit_seq DESC
LIMIT :count;

-- name: take_place
-- Keeps C6, C7.
-- The place in the order of commits, and the batch time, strictly increasing. Never a sequence:
-- nextval is not in the order in which commits become visible.
WITH place AS (
    UPDATE semel.pipeline
    SET commit_seq = commit_seq + 1,
        batch_time_last = GREATEST(clock_timestamp(), batch_time_last + interval '1 microsecond'),
        sink_schema = COALESCE(sink_schema, :sink_schema)
    WHERE pipeline_id = :pipeline_id AND commit_seq = :compared_seq
    RETURNING commit_seq, batch_time_last
)
UPDATE semel.batch AS b
SET status = 'committed', commit_seq = place.commit_seq, batch_time = place.batch_time_last,
    committed_at = clock_timestamp()
FROM place
WHERE b.batch_id = :batch_id AND b.status = 'planned'
RETURNING b.commit_seq, b.batch_time;

-- name: win_attempt
-- Keeps C7.
-- Its siblings lose.
WITH lost AS (
    UPDATE semel.attempt
    SET status = 'lost', ended_at = clock_timestamp(), reason = :reason
    WHERE batch_id = :batch_id AND attempt_id <> :attempt_id AND status IN ('running', 'staged')
)
UPDATE semel.attempt
SET status = 'won', ended_at = clock_timestamp()
WHERE attempt_id = :attempt_id AND status = 'staged'
RETURNING attempt_id;

-- name: keep_columns
UPDATE semel.pipeline SET sink_schema = :sink_schema
WHERE pipeline_id = :pipeline_id AND sink_schema IS NULL;

-- name: commit_replay
-- It stands at its root's place in the order of commits.
UPDATE semel.batch SET status = 'committed', committed_at = clock_timestamp()
WHERE batch_id = :batch_id AND status = 'planned' AND replays IS NOT NULL
RETURNING batch_id;

-- name: retire_generation
-- Keeps RP4.
-- The output that a replay replaces, which is whole and which nothing has replaced.
UPDATE semel.batch
SET replaced_by = :batch_id
WHERE COALESCE(replays, batch_id) = :root AND generation = :generation - 1
  AND status = 'finalized' AND replaced_by IS NULL
RETURNING batch_id;

-- name: renew_lease
UPDATE semel.pipeline SET lease_until = clock_timestamp() + make_interval(secs => :seconds)
WHERE lease_batch_id = :batch_id;

-- name: take_lease
UPDATE semel.pipeline
SET lease_batch_id = :batch_id, lease_until = clock_timestamp() + make_interval(secs => :seconds)
WHERE pipeline_id = :pipeline_id
  AND (lease_batch_id IS NULL OR lease_batch_id = :batch_id OR lease_until < clock_timestamp()
       OR NOT EXISTS (SELECT FROM semel.batch AS b
                      WHERE b.batch_id = lease_batch_id AND b.status = 'planned'))
RETURNING lease_until;
