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
       p.seen, p.evidence, p.closed_at IS NOT NULL AS closed, p.retired_at IS NOT NULL AS retired,
       (SELECT min(lower(l.span)) FROM semel.loss AS l
        WHERE l.source_partition_id = p.source_partition_id AND l.reason = 'gone') AS lost
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

-- name: readers
-- Each claim on a partition of some names, the newest generation first: its content, its batch, the
-- batch that this one is or replays, and whether it is the newest replay that claims this part. What
-- accept put aside counts, too: it was read.
SELECT p.source_partition_id, p.name, p.generation, p.identity, p.fingerprint, p.settled, p.reached,
       p.seen, p.evidence, p.closed_at IS NOT NULL AS closed, c.evidence ->> 'content' AS content,
       b.batch_id, b.request_key, COALESCE(b.replays, b.batch_id) AS root,
       b.status <> 'planned' AS committed,
       b.seen_at < clock_timestamp() - make_interval(secs => :silent_seconds) AS silent,
       b.replays IS NOT NULL AND NOT EXISTS (
           SELECT FROM semel.batch AS g
           JOIN semel.claim AS k USING (batch_id)
           WHERE g.replays = b.replays AND g.generation > b.generation
             AND k.ordinal = c.ordinal) AS newest_replay
FROM semel.source_partition AS p
JOIN semel.claim AS c USING (source_partition_id)
JOIN semel.batch AS b USING (batch_id)
WHERE p.pipeline_id = :pipeline_id AND p.name = ANY(CAST(:names AS text[]))
ORDER BY p.name, p.generation DESC, root;

-- name: address
-- The address that the newest ids of messages begin with; NULL where an older semel made them.
SELECT p.evidence ->> 'address' AS address
FROM semel.source_partition AS p
WHERE p.pipeline_id = :pipeline_id AND p.reached > 0
ORDER BY p.source_partition_id DESC
LIMIT 1;

-- name: newest
-- The newest partition of which something was read, also one that is gone, unless somebody accepted
-- that; and whether any such one has one of some names or identities.
SELECT p.name, p.evidence ->> 'content' AS content,
       EXISTS (SELECT FROM semel.source_partition AS q
               WHERE q.pipeline_id = :pipeline_id AND q.retired_at IS NULL
                 AND q.reached > 0
                 AND (q.name = ANY(CAST(:names AS text[]))
                      OR q.identity = ANY(CAST(:identities AS text[])))) AS there
FROM semel.source_partition AS p
WHERE p.pipeline_id = :pipeline_id AND p.retired_at IS NULL
  AND p.reached > 0
  AND NOT EXISTS (SELECT FROM semel.loss AS l
                  WHERE l.source_partition_id = p.source_partition_id AND l.reason = 'gone')
ORDER BY p.source_partition_id DESC
LIMIT 1;
