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
-- Keeps A1.
UPDATE semel.batch
SET status = 'abandoned', reason = :reason
WHERE batch_id = :batch_id AND status = 'planned'
RETURNING batch_id;

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
