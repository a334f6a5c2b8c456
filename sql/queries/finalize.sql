-- finalize: give the winner's files their final names.

-- name: won
SELECT a.attempt_id, a.batch_id, a.fence, a.status, a.snapshot_seq, a.buckets, a.input_digest,
       a.sink_schema, {a.<count>}, a.ended_at, b.covers
FROM semel.attempt AS a
JOIN semel.batch AS b USING (batch_id)
WHERE a.batch_id = :batch_id AND a.status = 'won';

-- name: manifest
SELECT kind, staged_path, final_path, records, bytes, checksum
FROM semel.manifest_file
WHERE attempt_id = :attempt_id
ORDER BY ordinal;

-- name: finalize_batch
UPDATE semel.batch
SET status = 'finalized', finalized_at = clock_timestamp()
WHERE batch_id = :batch_id AND status = 'committed'
RETURNING status;

-- name: times
-- The first and the last record time of what a batch has claimed: of each partition that is a stream,
-- or of all.
SELECT CASE WHEN CAST(:streams AS boolean) THEN source_partition_id END AS source_partition_id,
       min(time_min) AS time_min, max(time_max) AS time_max
FROM semel.claim
WHERE batch_id = :batch_id AND time_max IS NOT NULL
GROUP BY 1
ORDER BY 1;

-- name: advance
-- Of the partitions that a batch has claimed, or of all: up to where all is finalized or lost, and the
-- greatest record time before that. Claims with a time ahead of their plan by more tell nothing.
WITH ends AS (
    SELECT p.source_partition_id, LEAST(t."end",
               (SELECT min(lower(c.span)) FROM semel.claim AS c
                JOIN semel.batch AS b USING (batch_id)
                WHERE b.pipeline_id = p.pipeline_id AND b.status IN ('planned', 'committed')
                  AND c.source_partition_id = p.source_partition_id)) AS "end"
    FROM semel.source_partition AS p
    JOIN semel.taken AS t USING (source_partition_id)
    WHERE p.pipeline_id = :pipeline_id
      AND (CAST(:batch_id AS bigint) IS NULL
           OR p.source_partition_id IN (SELECT c.source_partition_id FROM semel.claim AS c
                                        WHERE c.batch_id = :batch_id))
)
UPDATE semel.source_partition AS p
SET finalized_to = e."end", moved_at = clock_timestamp(),
    event_time = GREATEST(p.event_time, (
        SELECT max(c.time_max) FILTER (WHERE c.time_max <= b.planned_at + CAST(:ahead AS interval))
        FROM semel.claim AS c
        JOIN semel.batch AS b USING (batch_id)
        WHERE c.source_partition_id = p.source_partition_id
          AND c.span && int8range(p.finalized_to, e."end")))
FROM ends AS e
WHERE p.source_partition_id = e.source_partition_id AND e."end" > p.finalized_to;

-- name: event_time_of_streams
-- Keeps W4, W5.
-- The least of those that have a backlog, or moved lately.
UPDATE semel.pipeline AS l
SET event_time = GREATEST(l.event_time, (
    SELECT CASE WHEN NOT bool_or(p.event_time IS NULL AND p.finalized_to < p.seen)
                THEN min(p.event_time) END
    FROM semel.source_partition AS p
    WHERE p.pipeline_id = l.pipeline_id AND p.retired_at IS NULL AND p.closed_at IS NULL
      AND (p.finalized_to < p.seen
           OR p.moved_at > clock_timestamp() - make_interval(secs => :idle_seconds))))
WHERE l.pipeline_id = :pipeline_id;

-- name: frontier
-- Keeps W4, W6.
-- Of a pipeline once a batch is finalized: the newest batch whose plan left nothing, with no open batch
-- at or before it; the first and the last record time of those that it adds; how far all records have
-- come; and whether the newest batch's plan left nothing. :ahead is how far a record.s clock may
-- be ahead of its plan.
WITH f AS (
    SELECT p.*, (SELECT max(b.batch_id) FROM semel.batch AS b
                 WHERE b.pipeline_id = p.pipeline_id AND b.is_full
                   AND b.batch_id < COALESCE(
                       (SELECT min(o.batch_id) FROM semel.batch AS o
                        WHERE o.pipeline_id = p.pipeline_id
                          AND o.status IN ('planned', 'committed')
                          AND o.replays IS NULL AND o.admits IS NULL
                          AND o.batch_id IS DISTINCT FROM CAST(:batch_id AS bigint)),
                       9223372036854775807)) AS newest
    FROM semel.pipeline AS p
    WHERE p.pipeline_id = :pipeline_id
)
SELECT f.event_time AS before, GREATEST(f.frontier, f.newest) AS frontier,
       COALESCE(added.time_min, (SELECT min(c.time_min) FROM semel.claim AS c
                                 WHERE c.batch_id = :batch_id)) AS time_min,
       GREATEST(f.event_time, added.time_max) AS event_time,
       GREATEST(f.arrived_to, added.time_max, (
           SELECT max(c.time_max)
           FROM semel.claim AS c
           JOIN semel.batch AS b USING (batch_id)
           WHERE b.batch_id = :batch_id AND c.time_max <= b.planned_at + CAST(:ahead AS interval))) AS arrived_to
FROM f
CROSS JOIN LATERAL (
    SELECT min(c.time_min) AS time_min, max(c.time_max) AS time_max
    FROM semel.batch AS b
    JOIN semel.claim AS c USING (batch_id)
    WHERE CAST(:timed AS boolean) AND b.pipeline_id = f.pipeline_id
      AND b.batch_id > f.frontier AND b.batch_id <= f.newest
      AND b.replays IS NULL AND b.admits IS NULL AND c.time_max <= b.planned_at + CAST(:ahead AS interval)
) AS added;

-- name: frontier_of_intervals
-- Keeps W7.
-- The same of a pipeline whose runs have intervals: the newest batch that covers something, with no
-- open batch at or before it; 0: what is covered has a hole.
SELECT CASE WHEN (SELECT count(*) FROM unnest(p.covered + COALESCE(b.covers, '{}'))) > 1 THEN 0
            ELSE COALESCE((
                SELECT n.batch_id FROM semel.batch AS n
                WHERE n.pipeline_id = p.pipeline_id AND n.status <> 'abandoned'
                  AND n.covers IS NOT NULL AND NOT isempty(n.covers)
                  AND n.batch_id < COALESCE(
                      (SELECT min(o.batch_id) FROM semel.batch AS o
                       WHERE o.pipeline_id = p.pipeline_id
                         AND o.status IN ('planned', 'committed')
                         AND o.replays IS NULL AND o.admits IS NULL
                         AND o.batch_id <> b.batch_id),
                      9223372036854775807)
                ORDER BY n.batch_id DESC LIMIT 1), 0) END AS frontier
FROM semel.pipeline AS p
CROSS JOIN semel.batch AS b
WHERE p.pipeline_id = :pipeline_id AND b.batch_id = :batch_id;

-- name: advance_files
UPDATE semel.pipeline
SET event_time = :event_time, arrived_to = :arrived_to, frontier = :frontier
WHERE pipeline_id = :pipeline_id;

-- name: passed
-- What a batch has moved the event time by: at first from the first of the times that count now.
UPDATE semel.batch SET passed_from = LEAST(:start, :end), passed_to = :end
WHERE batch_id = :batch_id;

-- name: event_time
SELECT event_time FROM semel.pipeline WHERE pipeline_id = :pipeline_id;

-- name: batch_status
SELECT status FROM semel.batch WHERE batch_id = :batch_id;
