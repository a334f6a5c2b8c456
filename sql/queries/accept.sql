-- accept: a person's word on what plan refused.

-- name: open
SELECT name, source_partition_id, generation
FROM semel.source_partition
WHERE pipeline_id = :pipeline_id AND name = :name AND retired_at IS NULL AND closed_at IS NULL;

-- name: gone
SELECT p.name, p.source_partition_id, lower(l.span) AS start, upper(l.span) AS "end"
FROM semel.loss AS l
JOIN semel.source_partition AS p USING (source_partition_id)
WHERE p.pipeline_id = :pipeline_id AND l.reason = 'gone'
ORDER BY p.name, p.source_partition_id, start;

-- name: settle
DELETE FROM semel.refusal WHERE pipeline_id = :pipeline_id AND name = :name;

-- name: forget_columns
UPDATE semel.pipeline SET sink_schema = NULL WHERE pipeline_id = :pipeline_id;

-- name: late
-- Keeps W10.
UPDATE semel.pipeline
SET event_time = arrived_to, late_by = :by, late_at = clock_timestamp()
WHERE name = :name AND arrived_to > COALESCE(event_time, '-infinity')
RETURNING event_time;
