-- look: what a person asks the ledger. Nothing here changes anything.

-- name: open_claims
SELECT p.name, COALESCE(lower(c.span), 0) AS start, COALESCE(upper(c.span), 0) AS "end",
       b.status AS state, b.batch_id, b.replays, b.request_key, b.interval_start, b.interval_end,
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
SELECT b.batch_id, b.pipeline, b.request_key, b.ordinal, b.status,
       COALESCE(b.interval_start, r.interval_start, o.interval_start) AS interval_start,
       COALESCE(b.interval_end, r.interval_end, o.interval_end) AS interval_end,
       b.commit_seq, b.replays, b.generation, b.replaced_by, b.admits, b.planned_at,
       b.finalized_at,
       (SELECT n.status = 'finalized' FROM semel.batch AS n WHERE n.batch_id = b.replaced_by)
           AS is_replaced,
       (SELECT count(*) FROM semel.attempt AS t WHERE t.batch_id = b.batch_id) AS attempts,
       a.records_read, a.survivors, a.duplicates_batch, a.duplicates_catalog, a.quarantined, a.late,
       a.rows_written,
       (SELECT CAST(sum(e.rows) AS bigint) FROM semel.erasure AS e
        WHERE e.batch_id = COALESCE(b.replays, b.batch_id)) AS erased
FROM newest AS b
LEFT JOIN semel.batch AS r ON r.batch_id = b.replays
LEFT JOIN semel.batch AS o ON o.batch_id = COALESCE(b.admits, r.admits)
LEFT JOIN semel.attempt AS a ON a.batch_id = b.batch_id AND a.status = 'won'
ORDER BY b.batch_id DESC;

-- name: finalized
-- Each batch that is no replay, and when the newest of its outputs was made.
SELECT b.batch_id, COALESCE(b.interval_start, o.interval_start) AS interval_start,
       COALESCE(b.interval_end, o.interval_end) AS interval_end, b.batch_time,
       COALESCE(n.committed_at, b.committed_at) AS made_at
FROM semel.batch AS b
JOIN semel.pipeline AS p USING (pipeline_id)
LEFT JOIN semel.batch AS o ON o.batch_id = b.admits
LEFT JOIN LATERAL (SELECT n.committed_at FROM semel.batch AS n
                   WHERE COALESCE(n.replays, n.batch_id) = b.batch_id AND n.generation > 1
                     AND n.status <> 'abandoned' AND n.status = 'finalized'
                   ORDER BY n.generation DESC LIMIT 1) AS n ON true
WHERE p.name = :name AND b.status = 'finalized' AND b.replays IS NULL
ORDER BY b.commit_seq;

-- name: batch
-- `judged_by`: the batch whose verdicts it takes.
SELECT b.batch_id, p.name AS pipeline, p.sink_address, p.archive_path, b.request_key, b.ordinal,
       b.status, b.spec ->> 'guarantee' AS guarantee, p.exact_from, b.spec_digest,
       COALESCE(b.interval_start, r.interval_start, o.interval_start) AS interval_start,
       COALESCE(b.interval_end, r.interval_end, o.interval_end) AS interval_end, b.commit_seq,
       b.batch_time, b.reason, b.planned_at, b.seen_at, b.committed_at, b.finalized_at, b.replays,
       b.generation, b.replaced_by, b.files_removed_at, b.admits, b.admission, b.packed_in, b.packed_at,
       COALESCE(b.judged_by, b.batch_id) AS judged_by,
       COALESCE(b.admits, r.admits, b.judged_by, b.batch_id) AS claims_of, b.spec -> 'code' AS code,
       b.spec -> 'source' AS source,
       (SELECT string_agg(format('%s rows and %s kept records, by %s, %s: %s', e.rows, e.records,
                                 e.accepted_by, e.accepted_at, e.reason), '; '
                          ORDER BY e.accepted_at)
        FROM semel.erasure AS e WHERE e.batch_id = COALESCE(b.replays, b.batch_id)) AS erased
FROM semel.batch AS b
JOIN semel.pipeline AS p USING (pipeline_id)
LEFT JOIN semel.batch AS r ON r.batch_id = b.replays
LEFT JOIN semel.batch AS o ON o.batch_id = COALESCE(b.admits, r.admits)
WHERE b.batch_id = :batch_id;

-- name: replays
SELECT batch_id, generation, status, finalized_at
FROM semel.batch
WHERE COALESCE(replays, batch_id) = :batch_id AND generation > 1 AND status <> 'abandoned'
ORDER BY generation;

-- name: attempts
SELECT attempt_id, fence, status, snapshot_seq, driver, {<count>}, reason,
       started_at, staged_at, ended_at
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
-- The newest batches that have claimed something of what has these names; and how many have.
SELECT b.batch_id, b.request_key, b.status, count(DISTINCT c.source_partition_id) AS names,
       count(*) OVER () AS batches,
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
