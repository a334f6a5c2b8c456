-- page: what the pages in Airflow show. Nothing here changes anything.

-- name: newest
-- The newest batches of some pipelines. By a range of two columns: see `batches` of look.sql.
SELECT p.name, b.batch_id, b.request_key, b.status, b.interval_start, b.interval_end, b.planned_at,
       b.finalized_at, b.replays, {a.<count>}
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
-- What is not finalized: the newest batches of each pipeline, and how many there are.
SELECT p.name, b.batch_id, b.request_key, b.status, b.planned_at AS since, b.batches,
       GREATEST(b.seen_at, b.committed_at)
           < clock_timestamp() - make_interval(secs => :orphan_seconds) AS silent,
       {failed b} AS failed
FROM semel.pipeline AS p
CROSS JOIN LATERAL (SELECT b.*, count(*) OVER () AS batches
                    FROM semel.batch AS b
                    WHERE b.pipeline_id = p.pipeline_id AND b.status IN ('planned', 'committed')
                    ORDER BY b.batch_id DESC LIMIT :count) AS b
WHERE p.name = ANY(CAST(:names AS text[]))
ORDER BY p.name, b.batch_id DESC;

-- name: covered
SELECT name, covered
FROM semel.pipeline
WHERE name = ANY(CAST(:names AS text[])) AND covered <> '{}';

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

-- name: generations
-- The outputs of a batch, or of the one that it replays: by which batch, and what became of each.
SELECT b.batch_id, b.replays, b.generation, b.status, b.request_key, b.finalized_at, b.replaced_by,
       b.files_removed_at, COALESCE(b.admits, r.admits) AS admits,
       (SELECT n.status = 'finalized' FROM semel.batch AS n WHERE n.batch_id = b.replaced_by)
           AS is_replaced
FROM semel.batch AS mine
JOIN semel.batch AS b
    ON COALESCE(b.replays, b.batch_id) = COALESCE(mine.replays, mine.batch_id)
   AND b.status <> 'abandoned'
LEFT JOIN semel.batch AS r ON r.batch_id = b.replays
WHERE mine.batch_id = :batch_id
ORDER BY b.generation;

-- name: claims
-- What a batch reads.
SELECT p.name, c.start, c."end", count(*) OVER () AS claims
FROM semel.reads AS c
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
       b.replays, b.admits, c.files, c.ranges, c.bytes, c.names, t.attempts, t.records,
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

-- name: segments
-- The tables of ids that are there. `drop_at`: collect drops one when its span is over and each of its
-- runs is past its horizon.
SELECT s.segment_id, s.span_start, s.span_end, r.runs, r.ids,
       COALESCE(pg_total_relation_size(to_regclass('semel.ids_' || s.segment_id)), 0) AS bytes,
       GREATEST(s.span_end, r.expires_at) AS drop_at
FROM semel.pipeline AS p
JOIN semel.segment AS s USING (pipeline_id)
CROSS JOIN LATERAL (
    SELECT count(*) AS runs, CAST(COALESCE(sum(r.ids), 0) AS bigint) AS ids,
           max(r.expires_at) AS expires_at
    FROM semel.id_run AS r
    WHERE r.segment_id = s.segment_id AND r.seq_min IS NOT NULL AND r.retired_at IS NULL) AS r
WHERE p.name = :name AND s.dropped_at IS NULL
ORDER BY s.segment_id
LIMIT :count;

-- name: shards
SELECT r.shard, count(*) AS runs, CAST(sum(r.ids) AS bigint) AS ids,
       CAST(sum(r.filter_bytes) AS bigint) AS filter_bytes,
       CAST(COALESCE(sum(r.asked), 0) AS bigint) AS asked,
       CAST(COALESCE(sum(r.false_hits), 0) AS bigint) AS false_hits
FROM semel.pipeline AS p
JOIN semel.id_run AS r USING (pipeline_id)
WHERE p.name = :name AND r.seq_min IS NOT NULL AND r.retired_at IS NULL
GROUP BY r.shard
ORDER BY r.shard;

-- name: repeats
-- What the newest batches dropped, by the day of their commit.
SELECT date_trunc('day', b.batch_time, 'UTC') AS day, count(*) AS batches,
       CAST(sum(a.records_read) AS bigint) AS read, CAST(sum(a.survivors) AS bigint) AS new,
       CAST(sum(a.duplicates_batch) AS bigint) AS within,
       CAST(sum(a.duplicates_catalog) AS bigint) AS earlier
FROM semel.pipeline AS p
CROSS JOIN LATERAL (SELECT b.batch_id, b.batch_time FROM semel.batch AS b
                    WHERE b.pipeline_id = p.pipeline_id AND b.commit_seq > p.commit_seq - :batches
                    ) AS b
JOIN semel.attempt AS a ON a.batch_id = b.batch_id AND a.status = 'won'
WHERE p.name = :name
GROUP BY day
ORDER BY day DESC
LIMIT :days;

-- name: id_runs
-- What a batch added to the catalog.
SELECT r.id_run_id, r.shard, r.ids, r.filter_bytes, r.segment_id, r.expires_at, r.retired_at,
       r.retired_by, count(*) OVER () AS runs, CAST(sum(r.ids) OVER () AS bigint) AS ids_of_all
FROM semel.attempt AS a
JOIN semel.id_run AS r USING (attempt_id)
WHERE a.batch_id = :batch_id AND a.status = 'won'
ORDER BY r.shard
LIMIT :count;

-- name: of_run
SELECT b.batch_id
FROM semel.pipeline AS p
JOIN semel.batch AS b USING (pipeline_id)
WHERE p.name = :name AND b.request_key = :request_key
ORDER BY b.batch_id DESC
LIMIT 1;
