-- completeness: what a pipeline has read, in time.

-- name: pipeline
SELECT covered, event_time, arrived_to FROM semel.pipeline WHERE name = :name;

-- name: batch
SELECT covers, passed_from, passed_to FROM semel.batch WHERE batch_id = :batch_id;

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
