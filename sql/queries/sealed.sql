-- sealed: source partitions that a part may be, by what was read of them.

-- name: keys
-- Those of some keys that a partition has of which something was read.
SELECT k.key
FROM unnest(CAST(:keys AS text[])) AS k (key)
WHERE EXISTS (
    SELECT FROM semel.source_partition AS q
    WHERE q.pipeline_id = :pipeline_id AND q.reached > 0 AND q.evidence ->> 'head_hash' = k.key);

-- name: like
-- All partitions of some contents of which something was read, the closed ones first; also
-- those that accept retired. A content has one key, and that has an index.
SELECT p.source_partition_id, p.name, p.generation, p.identity, p.fingerprint, p.settled, p.reached,
       p.seen, p.evidence, p.closed_at IS NOT NULL AS closed, p.retired_at IS NOT NULL AS retired
FROM semel.source_partition AS p
WHERE p.pipeline_id = :pipeline_id AND p.reached > 0
  AND p.evidence ->> 'head_hash' = ANY(CAST(:keys AS text[]))
  AND p.evidence ->> 'content' = ANY(CAST(:contents AS text[]))
ORDER BY p.closed_at IS NULL, p.source_partition_id;
