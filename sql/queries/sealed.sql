-- sealed: source partitions that a part may be, by what was read of them.

-- name: like
-- Partitions whose key a part has, the closed and the newest first, some for each.
SELECT p.source_partition_id, p.name, p.generation, p.identity, p.fingerprint, p.settled, p.reached,
       p.seen, p.evidence, p.closed_at IS NOT NULL AS closed
FROM unnest(CAST(:keys AS text[])) AS k (key)
CROSS JOIN LATERAL (
    SELECT * FROM semel.source_partition AS q
    WHERE q.pipeline_id = :pipeline_id AND q.retired_at IS NULL AND q.reached > 0
      AND q.evidence ->> 'head_hash' = k.key
    ORDER BY q.closed_at IS NULL, q.source_partition_id DESC
    LIMIT :count) AS p
ORDER BY p.closed_at IS NULL, p.source_partition_id;
