-- collect: forget what no promise needs any more.

-- name: raise_floor
-- Keeps G1.
-- Raised and committed before anything is dropped: attempts below it cannot commit any more.
UPDATE semel.pipeline
SET gc_floor = GREATEST(gc_floor, CAST(
        floor((extract(epoch FROM clock_timestamp()) - :horizon_seconds) / bucket_seconds) AS bigint))
WHERE pipeline_id = :pipeline_id
RETURNING gc_floor;

-- name: unfinished
-- Committed, and its run has not come back for long: nobody else would finalize it.
SELECT batch_id FROM semel.batch
WHERE pipeline_id = :pipeline_id AND status = 'committed'
  AND committed_at < clock_timestamp() - make_interval(secs => :orphan_seconds)
ORDER BY batch_id;

-- name: attempt_ends
-- Which attempts' folders may go: proven lost, or won with all their files under final names.
SELECT a.fence, a.status, b.status AS batch_status
FROM semel.attempt AS a
JOIN semel.batch AS b USING (batch_id)
WHERE b.batch_id = :batch_id AND b.pipeline_id = :pipeline_id;
