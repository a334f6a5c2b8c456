-- days: the batches of some time, and their accounts.

-- name: batches
-- By cells, each of which begins at an edge: the newest batches of each group that begins and ends in
-- the same cells, and the sums of the whole group. Where a pipeline has no intervals, a batch stands
-- at the time of its commit, and before that at the time of its plan. A replay stands in no cell: its
-- batch has the account of the newest output, and names who made that, and who is at work on another.
-- An admission stands in the interval of the batch whose dead letters it judges.
WITH found AS (
    (SELECT batch_id, request_key, status, interval_start, interval_end, seen_at, committed_at,
            interval_start AS since, interval_end AS until
     FROM semel.batch
     WHERE CAST(:select AS text) = 'interval' AND pipeline_id = :pipeline_id
       AND interval_start < :until AND interval_end > :since
     UNION ALL
     SELECT b.batch_id, b.request_key, b.status, o.interval_start, o.interval_end, b.seen_at,
            b.committed_at, o.interval_start, o.interval_end
     FROM semel.batch AS o
     JOIN semel.batch AS b ON b.admits = o.batch_id AND b.status <> 'abandoned'
     WHERE CAST(:select AS text) = 'interval' AND o.pipeline_id = :pipeline_id
       AND o.interval_start < :until AND o.interval_end > :since
     UNION ALL
     SELECT batch_id, request_key, status, interval_start, interval_end, seen_at, committed_at,
            batch_time, batch_time + interval '1 microsecond'
     FROM semel.batch
     WHERE CAST(:select AS text) = 'arrival' AND pipeline_id = :pipeline_id
       AND commit_seq >= :commit_first AND commit_seq < :commit_end
     UNION ALL
     SELECT batch_id, request_key, status, interval_start, interval_end, seen_at, committed_at,
            planned_at, planned_at + interval '1 microsecond'
     FROM semel.batch
     WHERE CAST(:select AS text) = 'arrival' AND pipeline_id = :pipeline_id AND replays IS NULL
       AND status = 'planned' AND planned_at >= :since AND planned_at < :until)
    ORDER BY since DESC, batch_id DESC
    LIMIT :count
), placed AS (
    SELECT f.*, f.status IN ('planned', 'committed') AS is_open,
           GREATEST(f.seen_at, f.committed_at)
               < clock_timestamp() - make_interval(secs => :orphan_seconds) AS silent,
           {failed f} AS failed,
           width_bucket(f.since, CAST(:edges AS timestamptz[])) AS cell_first,
           width_bucket(f.until - interval '1 microsecond', CAST(:edges AS timestamptz[]))
               AS cell_last,
           COALESCE(n.batch_id, f.batch_id) AS newest, COALESCE(n.generation, 1) AS generation,
           n.finalized_at AS made_at, w.batch_id AS replaying,
           {failed w} AS replay_failed,
           {a.<count>}
    FROM found AS f
    LEFT JOIN LATERAL (SELECT * FROM semel.batch AS n
                       WHERE COALESCE(n.replays, n.batch_id) = f.batch_id AND n.generation > 1
                         AND n.status = 'finalized'
                       ORDER BY n.generation DESC LIMIT 1) AS n ON true
    LEFT JOIN LATERAL (SELECT * FROM semel.batch AS w
                       WHERE COALESCE(w.replays, w.batch_id) = f.batch_id AND w.generation > 1
                         AND w.status IN ('planned', 'committed')
                       LIMIT 1) AS w ON true
    LEFT JOIN LATERAL (SELECT * FROM semel.attempt AS a
                       WHERE a.batch_id = COALESCE(n.batch_id, f.batch_id)
                         AND a.status = 'won' LIMIT 1) AS a ON true
), summed AS (
    SELECT p.*, row_number() OVER (PARTITION BY cell_first, cell_last
                                   ORDER BY batch_id DESC) AS place,
           count(*) OVER cells AS batches, count(records_read) OVER cells AS counted,
           count(*) FILTER (WHERE status = 'finalized') OVER cells AS finalized,
           count(*) FILTER (WHERE is_open) OVER cells AS open,
           count(*) FILTER (WHERE failed) OVER cells AS failed_count,
           count(*) FILTER (WHERE is_open AND silent) OVER cells AS silent_count,
           count(*) FILTER (WHERE status = 'planned' AND silent) OVER cells AS stuck,
           {CAST(sum(<count>) OVER cells AS bigint) AS sum_<count>},
           count(*) OVER () AS found, min(since) OVER () AS oldest
    FROM placed AS p
    WINDOW cells AS (PARTITION BY cell_first, cell_last)
)
SELECT * FROM summed WHERE place <= :named ORDER BY batch_id DESC;

-- name: commit
SELECT batch_time
FROM semel.batch
WHERE pipeline_id = :pipeline_id AND commit_seq >= :commit_seq
ORDER BY commit_seq
LIMIT 1;

-- name: newest_interval
SELECT max(interval_end) AS at FROM semel.batch WHERE pipeline_id = :pipeline_id;

-- name: newest_commit
SELECT batch_time AS at
FROM semel.batch
WHERE pipeline_id = :pipeline_id AND commit_seq IS NOT NULL
ORDER BY commit_seq DESC
LIMIT 1;
