-- files: source partitions that a file may be, by what was read of them.

-- name: lengths
-- The lengths of the beginnings that are known of files with some first records: one step of the
-- index for each. Not all lengths that are known: of small files there are thousands.
WITH RECURSIVE known AS (
    SELECT f.first_hash,
           (SELECT min(CAST(p.evidence ->> 'head_length' AS int))
            FROM semel.source_partition AS p
            WHERE p.pipeline_id = :pipeline_id AND p.retired_at IS NULL AND p.reached > 0
              AND p.evidence ->> 'first_hash' = f.first_hash) AS head_length
    FROM unnest(CAST(:firsts AS text[])) AS f (first_hash)
    UNION ALL
    SELECT known.first_hash,
           (SELECT min(CAST(p.evidence ->> 'head_length' AS int))
            FROM semel.source_partition AS p
            WHERE p.pipeline_id = :pipeline_id AND p.retired_at IS NULL AND p.reached > 0
              AND p.evidence ->> 'first_hash' = known.first_hash
              AND CAST(p.evidence ->> 'head_length' AS int) > known.head_length)
    FROM known
    WHERE known.head_length IS NOT NULL
)
SELECT first_hash, head_length FROM known WHERE head_length IS NOT NULL;

-- name: like
-- Partitions that a file may begin with, the closed and the newest first, some for each beginning;
-- and the last closed ones of its inode, which may be given to many files, and of its path.
SELECT p.source_partition_id, p.name, p.generation, p.identity, p.fingerprint, p.settled, p.reached,
       p.seen, p.evidence, p.closed_at IS NOT NULL AS closed
FROM jsonb_to_recordset(CAST(:heads AS jsonb)) AS h (head_length int, head_hash text)
CROSS JOIN LATERAL (
    SELECT * FROM semel.source_partition AS q
    WHERE q.pipeline_id = :pipeline_id AND q.retired_at IS NULL AND q.reached > 0
      AND q.evidence ->> 'head_hash' = h.head_hash
      AND CAST(q.evidence ->> 'head_length' AS int) = h.head_length
    ORDER BY q.closed_at IS NULL, q.source_partition_id DESC
    LIMIT :count) AS p
UNION
SELECT p.source_partition_id, p.name, p.generation, p.identity, p.fingerprint, p.settled, p.reached,
       p.seen, p.evidence, true AS closed
FROM unnest(CAST(:inodes AS text[])) AS i (inode)
CROSS JOIN LATERAL (
    SELECT * FROM semel.source_partition AS q
    WHERE q.pipeline_id = :pipeline_id AND q.retired_at IS NULL AND q.closed_at IS NOT NULL
      AND q.reached > 0 AND split_part(q.identity, ':', 2) = i.inode
    ORDER BY q.source_partition_id DESC
    LIMIT :count) AS p
UNION
SELECT p.source_partition_id, p.name, p.generation, p.identity, p.fingerprint, p.settled, p.reached,
       p.seen, p.evidence, true AS closed
FROM unnest(CAST(:names AS text[])) AS f (name)
CROSS JOIN LATERAL (
    SELECT * FROM semel.source_partition AS q
    WHERE q.pipeline_id = :pipeline_id AND q.name = f.name
    ORDER BY q.generation DESC LIMIT 1) AS p
WHERE p.retired_at IS NULL AND p.closed_at IS NOT NULL
ORDER BY source_partition_id;
