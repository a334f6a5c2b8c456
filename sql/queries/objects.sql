-- objects: which keys a plan has to list, and which it need not see any more.

-- name: begin
-- With keys in ascending order: a key before all that a plan may have to take. It was read before, or
-- is the beginning of the first one that was not: refused, not read to its end, or of a batch that is
-- not finalized. Null: nothing was read yet.
WITH unsettled AS (
    SELECT p.name FROM semel.source_partition AS p
    WHERE p.pipeline_id = :pipeline_id AND p.retired_at IS NULL AND p.closed_at IS NULL
      AND (NOT p.settled OR p.reached <> p.seen)
    UNION ALL
    SELECT p.name FROM semel.source_partition AS p
    WHERE p.pipeline_id = :pipeline_id AND p.retired_at IS NULL AND p.closed_at IS NOT NULL
      AND NOT p.accounted
    UNION ALL
    SELECT p.name FROM semel.batch AS b
    JOIN semel.claim AS c USING (batch_id)
    JOIN semel.source_partition AS p USING (source_partition_id)
    WHERE b.pipeline_id = :pipeline_id AND b.status = 'planned'
    UNION ALL
    SELECT r.name FROM semel.refusal AS r WHERE r.pipeline_id = :pipeline_id
), newest AS (
    SELECT p.name FROM semel.source_partition AS p
    WHERE p.pipeline_id = :pipeline_id AND p.reached > 0
    ORDER BY p.source_partition_id DESC
    LIMIT 1
)
SELECT CASE WHEN min(u.name COLLATE "C") <= (SELECT n.name FROM newest AS n) COLLATE "C"
            THEN left(min(u.name COLLATE "C"), -1)
            ELSE (SELECT n.name FROM newest AS n) END AS name
FROM unsettled AS u;

-- name: in_work
-- Of some source partitions, the few of which a batch is at work.
SELECT i.id
FROM unnest(CAST(:partitions AS bigint[])) AS i (id)
WHERE EXISTS (
    SELECT FROM semel.claim AS c
    JOIN semel.batch AS b USING (batch_id)
    WHERE b.pipeline_id = :pipeline_id AND c.source_partition_id = i.id
      AND b.status IN ('planned', 'committed'));

-- name: refused
-- What the last plan refused: the next one looks at it again, whatever else it lists.
SELECT r.name FROM semel.refusal AS r WHERE r.pipeline_id = :pipeline_id;
