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

-- name: erasable
-- The finalized batches of a range that are no replays, and are neither being replayed nor packed.
SELECT b.batch_id
FROM semel.batch AS b
WHERE b.pipeline_id = :pipeline_id AND b.batch_id BETWEEN :first AND :last
  AND b.replays IS NULL AND b.status = 'finalized'
  AND (b.packed_in IS NULL OR b.packed_at IS NOT NULL)
  AND NOT EXISTS (SELECT FROM semel.batch AS r
                  WHERE COALESCE(r.replays, r.batch_id) = b.batch_id AND r.replays IS NOT NULL
                    AND r.status <> 'abandoned' AND r.status IN ('planned', 'committed'));

-- name: erase
-- Keeps ER2.
INSERT INTO semel.erasure (batch_id, accepted_at, accepted_by, reason, rows, records)
SELECT e.batch_id, e."at", e."by", e.why, e.rows, e.records
FROM jsonb_to_recordset(CAST(:erasures AS jsonb))
         AS e (batch_id bigint, "at" timestamptz, "by" text, why text, rows bigint, records bigint)
ON CONFLICT DO NOTHING;

-- name: erasures
SELECT e.batch_id, e.rows, e.records, e.reason, e.accepted_by, e.accepted_at
FROM semel.erasure AS e
JOIN semel.batch AS b USING (batch_id)
WHERE b.pipeline_id = :pipeline_id
ORDER BY e.accepted_at DESC, e.batch_id
LIMIT :count;

-- name: late
-- Keeps W10.
UPDATE semel.pipeline
SET event_time = arrived_to, late_by = :by, late_at = clock_timestamp()
WHERE name = :name AND arrived_to > COALESCE(event_time, '-infinity')
RETURNING event_time;
