-- sealed: source partitions that a part may be, by their content. The open ones of which nothing was
-- read are no concern here: each plan has them.

-- name: keys
-- Those of some keys that a partition has of which something was read, or one that is gone and of
-- which something was not.
SELECT k.key
FROM unnest(CAST(:keys AS text[])) AS k (key)
WHERE EXISTS (
    SELECT FROM semel.source_partition AS q
    WHERE q.pipeline_id = :pipeline_id AND q.reached > 0 AND q.evidence ->> 'head_hash' = k.key)
UNION
SELECT q.evidence ->> 'head_hash'
FROM semel.source_partition AS q
WHERE q.pipeline_id = :pipeline_id
  AND q.retired_at IS NULL AND q.closed_at IS NOT NULL AND NOT q.accounted
  AND q.evidence ->> 'head_hash' = ANY(CAST(:keys AS text[]));

-- name: like
-- All such partitions of some contents, the closed ones first; also those that accept retired. A
-- content has one key, and that has an index, which OFFSET makes Postgres ask for one key at a time:
-- for many at once it would read the whole table.
WITH p AS (
    SELECT q.*
    FROM unnest(CAST(:keys AS text[])) AS k (key)
    CROSS JOIN LATERAL (
        SELECT * FROM semel.source_partition AS r
        WHERE r.pipeline_id = :pipeline_id AND r.reached > 0 AND r.evidence ->> 'head_hash' = k.key
        OFFSET 0) AS q
    UNION ALL
    SELECT * FROM semel.source_partition AS q
    WHERE q.pipeline_id = :pipeline_id AND q.reached = 0
      AND q.retired_at IS NULL AND q.closed_at IS NOT NULL AND NOT q.accounted
)
SELECT p.source_partition_id, p.name, p.generation, p.identity, p.fingerprint, p.settled, p.reached,
       p.seen, p.evidence, p.closed_at IS NOT NULL AS closed, p.retired_at IS NOT NULL AS retired
FROM p
WHERE p.evidence ->> 'content' = ANY(CAST(:contents AS text[]))
ORDER BY p.closed_at IS NULL, p.source_partition_id;

-- name: closed
-- The newest closed partition of each of some names.
SELECT DISTINCT ON (p.name)
       p.source_partition_id, p.name, p.generation, p.identity, p.fingerprint, p.settled, p.reached,
       p.seen, p.evidence, true AS closed
FROM semel.source_partition AS p
WHERE p.pipeline_id = :pipeline_id AND p.name = ANY(CAST(:names AS text[]))
  AND p.closed_at IS NOT NULL
ORDER BY p.name, p.generation DESC;

-- name: committed
-- Of some names, the newest partition that a batch which has committed claimed something of, and the
-- batch that it is, or that it replays. What accept put aside counts, too: it was read.
SELECT DISTINCT ON (p.name)
       p.source_partition_id, p.name, p.generation, p.identity, p.fingerprint, p.settled, p.reached,
       p.seen, p.evidence, p.closed_at IS NOT NULL AS closed,
       COALESCE(b.replays, b.batch_id) AS root
FROM semel.source_partition AS p
JOIN semel.claim AS c USING (source_partition_id)
JOIN semel.batch AS b USING (batch_id)
WHERE p.pipeline_id = :pipeline_id AND p.name = ANY(CAST(:names AS text[]))
  AND b.status IN ('committed', 'finalized')
ORDER BY p.name, p.generation DESC, root;

-- name: replayed
-- The partitions of some names and contents that the newest replay of their batch has claimed, and
-- whether that one has committed.
SELECT p.source_partition_id, p.name, p.generation, p.identity, p.fingerprint, p.settled, p.reached,
       p.seen, p.evidence, p.closed_at IS NOT NULL AS closed, b.status <> 'planned' AS committed
FROM unnest(CAST(:names AS text[]), CAST(:contents AS text[])) AS s (name, content)
JOIN semel.source_partition AS p
    ON p.pipeline_id = :pipeline_id AND p.name = s.name AND p.evidence ->> 'content' = s.content
JOIN semel.claim AS c USING (source_partition_id)
JOIN semel.batch AS b USING (batch_id)
WHERE b.replays IS NOT NULL
  AND NOT EXISTS (SELECT FROM semel.batch AS g
                  JOIN semel.claim AS k USING (batch_id)
                  WHERE g.replays = b.replays AND g.generation > b.generation
                    AND k.ordinal = c.ordinal);

-- name: address
-- The address that the newest ids of messages begin with; NULL where an older semel made them.
SELECT p.evidence ->> 'address' AS address
FROM semel.source_partition AS p
WHERE p.pipeline_id = :pipeline_id AND p.reached > 0
ORDER BY p.source_partition_id DESC
LIMIT 1;

-- name: newest
-- The newest partition of which something was read, also one that is gone, and whether any such one
-- has one of some names or identities.
SELECT p.name, p.evidence ->> 'content' AS content,
       EXISTS (SELECT FROM semel.source_partition AS q
               WHERE q.pipeline_id = :pipeline_id AND q.retired_at IS NULL
                 AND q.reached > 0
                 AND (q.name = ANY(CAST(:names AS text[]))
                      OR q.identity = ANY(CAST(:identities AS text[])))) AS there
FROM semel.source_partition AS p
WHERE p.pipeline_id = :pipeline_id AND p.retired_at IS NULL
  AND p.reached > 0
ORDER BY p.source_partition_id DESC
LIMIT 1;
