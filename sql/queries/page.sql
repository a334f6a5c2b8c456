-- page: what the pages in Airflow show. Nothing here changes anything.

-- name: newest
-- The newest batches of some pipelines. By a range of two columns: see `batches` of look.sql.
SELECT p.name, b.batch_id, b.request_key, b.status, b.interval_start, b.interval_end, b.planned_at,
       b.finalized_at, a.records_read, a.survivors, a.duplicates_batch, a.duplicates_catalog,
       a.quarantined, a.late, a.rows_written, a.bytes_read
FROM semel.pipeline AS p
CROSS JOIN LATERAL (SELECT * FROM semel.batch AS b
                    WHERE (b.pipeline_id, b.batch_id) > (p.pipeline_id, 0)
                      AND (b.pipeline_id, b.batch_id) < (p.pipeline_id + 1, 0)
                    ORDER BY b.pipeline_id DESC, b.batch_id DESC LIMIT :count) AS b
LEFT JOIN LATERAL (SELECT * FROM semel.attempt AS a
                   WHERE a.batch_id = b.batch_id AND a.status = 'won' LIMIT 1) AS a ON true
WHERE p.name = ANY(CAST(:names AS text[]))
ORDER BY p.name, b.batch_id DESC;

-- name: open
SELECT p.name, count(*) AS batches, min(b.planned_at) AS since,
       count(*) FILTER (WHERE GREATEST(b.seen_at, b.committed_at)
                            < clock_timestamp() - make_interval(secs => :orphan_seconds)) AS silent
FROM semel.pipeline AS p
JOIN semel.batch AS b USING (pipeline_id)
WHERE p.name = ANY(CAST(:names AS text[])) AND b.status IN ('planned', 'committed')
GROUP BY p.name;

-- name: refused
SELECT p.name, count(*) AS files, max(r.seen_at) AS at
FROM semel.pipeline AS p
JOIN semel.refusal AS r USING (pipeline_id)
WHERE p.name = ANY(CAST(:names AS text[]))
GROUP BY p.name;

-- name: names
SELECT name FROM semel.pipeline ORDER BY name;

-- name: spec
-- By which a pipeline's newest batch was planned.
SELECT b.spec
FROM semel.pipeline AS p
CROSS JOIN LATERAL (SELECT * FROM semel.batch AS b
                    WHERE (b.pipeline_id, b.batch_id) > (p.pipeline_id, 0)
                      AND (b.pipeline_id, b.batch_id) < (p.pipeline_id + 1, 0)
                    ORDER BY b.pipeline_id DESC, b.batch_id DESC LIMIT 1) AS b
WHERE p.name = :name;

-- name: claims
SELECT p.name, lower(c.span) AS start, upper(c.span) AS "end", count(*) OVER () AS claims
FROM semel.claim AS c
JOIN semel.source_partition AS p USING (source_partition_id)
WHERE c.batch_id = :batch_id
ORDER BY c.ordinal
LIMIT :count;
