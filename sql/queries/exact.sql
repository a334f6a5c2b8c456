-- exact: from at least once to exactly once.

-- name: unread
-- Keeps D11.
-- Batches that have committed, and that no marker among those read is of.
SELECT batch_id
FROM semel.batch
WHERE pipeline_id = :pipeline_id AND commit_seq IS NOT NULL
  AND NOT batch_id = ANY(CAST(:read AS bigint[]))
ORDER BY commit_seq
LIMIT 1;

-- name: lose_attempts
-- Keeps D12.
-- Those that began before their catalog knew what it is taught now.
UPDATE semel.attempt AS a
SET status = 'lost', ended_at = clock_timestamp(), reason = :reason
FROM semel.batch AS b
WHERE b.batch_id = a.batch_id AND b.pipeline_id = :pipeline_id AND b.replays IS NULL
  AND a.status IN ('running', 'staged');

-- name: switch
UPDATE semel.pipeline SET exact_from = commit_seq + 1
WHERE pipeline_id = :pipeline_id AND exact_from IS NULL
RETURNING exact_from;
