-- look: what a person asks the ledger. Nothing here changes anything.

-- name: open_claims
SELECT p.name, lower(c.span) AS start, upper(c.span) AS "end", b.status AS state, b.batch_id,
       b.request_key, b.interval_start, b.interval_end,
       GREATEST(b.seen_at, b.committed_at)
           < clock_timestamp() - make_interval(secs => :orphan_seconds) AS silent
FROM semel.batch AS b
JOIN semel.claim AS c USING (batch_id)
JOIN semel.source_partition AS p USING (source_partition_id)
WHERE b.pipeline_id = :pipeline_id AND b.status IN ('planned', 'committed')
ORDER BY p.name, start;

-- name: batches
-- The newest batches, of all pipelines when no name is given: the newest of each, and of those. By
-- a range of two columns: with an equality Postgres may walk back over all other pipelines' batches.
WITH newest AS (
    SELECT b.*, p.name AS pipeline
    FROM semel.pipeline AS p
    CROSS JOIN LATERAL (SELECT * FROM semel.batch AS b
                        WHERE (b.pipeline_id, b.batch_id) > (p.pipeline_id, 0)
                          AND (b.pipeline_id, b.batch_id) < (p.pipeline_id + 1, 0)
                        ORDER BY b.pipeline_id DESC, b.batch_id DESC LIMIT :count) AS b
    WHERE CAST(:name AS text) IS NULL OR p.name = :name
    ORDER BY b.batch_id DESC
    LIMIT :count
)
SELECT b.batch_id, b.pipeline, b.request_key, b.ordinal, b.status, b.interval_start,
       b.interval_end, b.commit_seq, b.planned_at, b.finalized_at,
       (SELECT count(*) FROM semel.attempt AS t WHERE t.batch_id = b.batch_id) AS attempts,
       a.records_read, a.survivors, a.duplicates_batch, a.duplicates_catalog, a.quarantined, a.late,
       a.rows_written
FROM newest AS b
LEFT JOIN semel.attempt AS a ON a.batch_id = b.batch_id AND a.status = 'won'
ORDER BY b.batch_id DESC;

-- name: finalized
SELECT b.batch_id, b.interval_start, b.interval_end, b.batch_time
FROM semel.batch AS b
JOIN semel.pipeline AS p USING (pipeline_id)
WHERE p.name = :name AND b.status = 'finalized'
ORDER BY b.commit_seq;

-- name: batch
SELECT b.batch_id, p.name AS pipeline, p.sink_address, p.archive_path, b.request_key, b.ordinal, b.status,
       b.spec_digest, b.interval_start, b.interval_end, b.commit_seq, b.batch_time, b.reason,
       b.planned_at, b.seen_at, b.committed_at, b.finalized_at, b.spec -> 'code' AS code
FROM semel.batch AS b
JOIN semel.pipeline AS p USING (pipeline_id)
WHERE b.batch_id = :batch_id;

-- name: attempts
SELECT attempt_id, fence, status, snapshot_seq, driver, records_read, survivors, duplicates_batch,
       duplicates_catalog, quarantined, late, rows_written, bytes_read, reason, started_at,
       staged_at, ended_at
FROM semel.attempt
WHERE batch_id = :batch_id
ORDER BY fence;

-- name: files
SELECT m.kind, m.final_path AS path, m.records, m.bytes, m.checksum
FROM semel.manifest_file AS m
JOIN semel.attempt AS a USING (attempt_id)
WHERE a.batch_id = :batch_id AND a.status = 'won'
ORDER BY m.ordinal;

-- name: holders
-- The newest batches that have claimed something of what has these names.
SELECT b.batch_id, b.request_key, b.status, count(DISTINCT c.source_partition_id) AS names,
       (SELECT a.survivors FROM semel.attempt AS a
        WHERE a.batch_id = b.batch_id AND a.status = 'won') AS survivors
FROM semel.source_partition AS p
JOIN semel.claim AS c USING (source_partition_id)
JOIN semel.batch AS b USING (batch_id)
WHERE p.pipeline_id = :pipeline_id AND p.name = ANY(CAST(:names AS text[]))
  AND p.retired_at IS NULL
GROUP BY b.batch_id
ORDER BY b.batch_id DESC
LIMIT :count;
