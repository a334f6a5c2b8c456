-- completeness: what a pipeline has read, in time.

-- name: pipeline
SELECT covered, event_time, arrived_to FROM semel.pipeline WHERE name = :name;

-- name: open
-- The intervals of the batches that are not finalized.
SELECT b.interval_start, b.interval_end
FROM semel.pipeline AS p
JOIN semel.batch AS b USING (pipeline_id)
WHERE p.name = :name AND b.status IN ('planned', 'committed') AND b.interval_start IS NOT NULL;

-- name: began
-- From where the first run began that moved the event time. Older records may have come since.
SELECT b.passed_from
FROM semel.pipeline AS p
JOIN semel.batch AS b USING (pipeline_id)
WHERE p.name = :name AND b.passed_from IS NOT NULL
ORDER BY b.pipeline_id, b.batch_id
LIMIT 1;

-- name: first
-- The time of the first record. It reads all claims: asked only about time before `began`.
SELECT min(c.time_min) AS at
FROM semel.pipeline AS p
JOIN semel.batch AS b USING (pipeline_id)
JOIN semel.claim AS c USING (batch_id)
WHERE p.name = :name AND b.status = 'finalized';

-- name: batch
-- What it made complete, and the record times of its rows and of those that it replaces.
SELECT b.covers, b.passed_from, b.passed_to,
       (SELECT range_agg(part)
        FROM semel.batch AS g
        JOIN semel.attempt AS a USING (batch_id)
        CROSS JOIN LATERAL unnest(a.times) AS part
        WHERE COALESCE(g.replays, g.batch_id) = COALESCE(b.replays, b.batch_id)
          AND g.generation <= b.generation AND a.status = 'won') AS times
FROM semel.batch AS b
WHERE b.batch_id = :batch_id;

-- name: holders
-- The open batches of a pipeline, what the last plan refused, and what it saw and left.
SELECT *
FROM (SELECT 1 AS place, 'batch ' || b.batch_id AS name, 'it is ' || b.status AS why,
             CAST(NULL AS bigint) AS unread
      FROM semel.batch AS b JOIN semel.pipeline AS p USING (pipeline_id)
      WHERE p.name = :name AND b.status IN ('planned', 'committed')
        AND b.replays IS NULL AND b.admits IS NULL
      UNION ALL
      SELECT 2, r.name, 'refused as ' || r.reason, NULL
      FROM semel.refusal AS r JOIN semel.pipeline AS p USING (pipeline_id)
      WHERE p.name = :name
      UNION ALL
      SELECT 3, s.name, NULL, s.seen - s.reached
      FROM semel.source_partition AS s JOIN semel.pipeline AS p USING (pipeline_id)
      WHERE p.name = :name AND s.retired_at IS NULL AND s.closed_at IS NULL
        AND s.reached < s.seen) AS holders
ORDER BY place, name
LIMIT :count;
