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

-- name: refusals
SELECT r.name, r.reason, r.detail, r.seen_at, r.behind
FROM semel.pipeline AS p
JOIN semel.refusal AS r USING (pipeline_id)
WHERE p.name = :name
ORDER BY r.name
LIMIT :count;

-- name: planned
-- What abandoning a batch gives up.
SELECT b.batch_id, b.status, b.request_key, b.interval_start, b.interval_end, b.seen_at,
       c.files, c.ranges, c.bytes, c.names, t.attempts, t.records,
       t.running AND b.seen_at > clock_timestamp() - make_interval(secs => :silent_seconds) AS alive
FROM semel.batch AS b
JOIN semel.pipeline AS p USING (pipeline_id)
CROSS JOIN LATERAL (
    SELECT count(DISTINCT s.name) AS files, count(*) AS ranges,
           CAST(COALESCE(sum(upper(c.span) - lower(c.span)), 0) AS bigint) AS bytes,
           COALESCE((array_agg(s.name ORDER BY c.ordinal))[1:CAST(:count AS int)], '{}') AS names
    FROM semel.claim AS c
    JOIN semel.source_partition AS s USING (source_partition_id)
    WHERE c.batch_id = b.batch_id) AS c
CROSS JOIN LATERAL (
    SELECT COALESCE(jsonb_agg(jsonb_build_array(a.fence, a.status) ORDER BY a.fence), '[]')
               AS attempts,
           COALESCE(bool_or(a.status = 'running'), false) AS running,
           (array_agg(a.records_read ORDER BY a.fence DESC)
                FILTER (WHERE a.records_read IS NOT NULL))[1] AS records
    FROM (SELECT * FROM semel.attempt AS a
          WHERE a.batch_id = b.batch_id
          ORDER BY a.fence DESC LIMIT :attempts) AS a) AS t
WHERE b.batch_id = :batch_id AND p.name = :name;
