-- collect: forget what no promise needs any more.

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

-- name: replaced
-- Outputs whose replay has been finalized for long, and whose files are there still.
SELECT b.batch_id, b.generation, COALESCE(b.replays, b.batch_id) AS root
FROM semel.batch AS b
JOIN semel.batch AS r ON r.batch_id = b.replaced_by
WHERE b.pipeline_id = :pipeline_id AND b.replaced_by IS NOT NULL AND b.files_removed_at IS NULL
  AND r.finalized_at < clock_timestamp() - make_interval(secs => :keep_seconds)
ORDER BY b.batch_id;

-- name: files_removed
UPDATE semel.batch SET files_removed_at = clock_timestamp()
WHERE batch_id = :batch_id AND replaced_by IS NOT NULL
RETURNING batch_id;

-- name: accounted
-- Open partitions that are read to their end, and of which each position is in a finalized batch or
-- lost, the last of them so many seconds ago.
-- Keeps G9, Q5.
SELECT p.source_partition_id, p.name, p.generation, p.identity, p.fingerprint, p.settled, p.reached,
       p.seen, p.evidence, false AS closed
FROM semel.source_partition AS p
WHERE p.pipeline_id = :pipeline_id AND p.retired_at IS NULL AND p.closed_at IS NULL
  AND p.settled AND p.reached = p.seen
  AND (
      SELECT int8range(0, p.reached) <@ COALESCE(range_agg(s.span), CAST('{}' AS int8multirange))
             AND max(s.since) <= clock_timestamp() - make_interval(secs => :kept_seconds)
      FROM (SELECT c.span, b.finalized_at AS since
            FROM semel.claim AS c
            JOIN semel.batch AS b USING (batch_id)
            WHERE c.source_partition_id = p.source_partition_id AND b.status = 'finalized'
            UNION ALL
            SELECT l.span, l.accepted_at FROM semel.loss AS l
            WHERE l.source_partition_id = p.source_partition_id) AS s)
ORDER BY p.source_partition_id;
