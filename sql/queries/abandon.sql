-- abandon: give up a batch that never committed, and release its claims.

-- name: batch
SELECT batch_id, pipeline_id, status, request_key FROM semel.batch WHERE batch_id = :batch_id;

-- name: alive
-- Whether an attempt is at work, as far as it has shown.
SELECT a.attempt_id
FROM semel.attempt AS a JOIN semel.batch AS b USING (batch_id)
WHERE a.batch_id = :batch_id AND a.status = 'running'
  AND b.seen_at > clock_timestamp() - make_interval(secs => :silent_seconds)
LIMIT 1;

-- name: lock_batch
SELECT status FROM semel.batch WHERE batch_id = :batch_id FOR NO KEY UPDATE;

-- name: abandon_batch
-- Keeps A1, W6.
-- Plans since then left nothing because of what this batch had claimed.
WITH over AS (
    UPDATE semel.batch
    SET status = 'abandoned', reason = :reason, is_full = false
    WHERE batch_id = :batch_id AND status = 'planned'
    RETURNING batch_id, pipeline_id
), after AS (
    UPDATE semel.batch AS b SET is_full = false
    FROM over
    WHERE b.pipeline_id = over.pipeline_id AND b.batch_id > over.batch_id AND b.is_full
)
SELECT batch_id FROM over;

-- name: lose_attempts
-- The committed `-> lost` is the proof that these attempts never land: only then may files go.
UPDATE semel.attempt
SET status = 'lost', ended_at = clock_timestamp(), reason = :reason
WHERE batch_id = :batch_id AND status IN ('running', 'staged')
RETURNING attempt_id;

-- name: claims
SELECT ordinal FROM semel.claim WHERE batch_id = :batch_id;

-- name: release_claims
DELETE FROM semel.claim WHERE batch_id = :batch_id RETURNING source_partition_id;
