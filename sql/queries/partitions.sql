-- partitions: which files are known, and what was read of them.

-- name: version
SELECT source_version FROM semel.pipeline WHERE pipeline_id = :pipeline_id;

-- name: touch
UPDATE semel.pipeline SET source_version = source_version + 1 WHERE pipeline_id = :pipeline_id;

-- name: unsettled
-- Which listed files and which open partitions are not settled: only these need to be looked at. A
-- file is settled that is as it was, and that was read to its end. No path holds two slashes in a row.
WITH listed AS (
    SELECT l.*
    FROM unnest(string_to_array(CAST(:paths AS text), '//'), CAST(:devices AS bigint[]),
                CAST(:inodes AS bigint[]), CAST(:sizes AS bigint[]), CAST(:mtimes AS bigint[]),
                CAST(:ctimes AS bigint[]))
             WITH ORDINALITY AS l (path, device, inode, size, mtime_ns, ctime_ns, place)
), known AS (
    SELECT p.source_partition_id, p.path, p.device, p.inode, p.mtime_ns, p.ctime_ns,
           -- No listed file has the size -1.
           CASE WHEN p.reached <> p.content OR p.source_partition_id IN (
                    SELECT c.source_partition_id FROM semel.claim AS c
                    WHERE c.batch_id = ANY(CAST(:orphans AS bigint[])))
                THEN -1 ELSE p.size END AS size
    FROM semel.source_partition AS p
    WHERE p.pipeline_id = :pipeline_id AND p.retired_at IS NULL AND p.closed_at IS NULL
)
SELECT COALESCE(array_agg(l.place) FILTER (WHERE k.source_partition_id IS NULL), '{}') AS places,
       COALESCE(array_agg(k.source_partition_id) FILTER (WHERE l.place IS NULL), '{}') AS partitions
FROM listed AS l
FULL JOIN known AS k USING (path, device, inode, size, mtime_ns, ctime_ns);

-- name: by_id
SELECT p.source_partition_id, p.path, p.generation, p.device, p.inode, p.head_length, p.head_hash,
       p.first_hash, p.reached, p.tail_hash, p.last_length, p.last_hash, p.content, p.size,
       p.mtime_ns, p.ctime_ns, p.birth_ns, p.packed, false AS closed
FROM semel.source_partition AS p
WHERE p.source_partition_id = ANY(CAST(:partitions AS bigint[]))
ORDER BY p.source_partition_id;

-- name: lengths
-- The lengths of the beginnings that are known of files with some first records: one step of the
-- index for each. Not all lengths that are known: of small files there are thousands.
WITH RECURSIVE known AS (
    SELECT f.first_hash,
           (SELECT min(p.head_length)
            FROM semel.source_partition AS p
            WHERE p.pipeline_id = :pipeline_id AND p.retired_at IS NULL AND p.reached > 0
              AND p.first_hash = f.first_hash) AS head_length
    FROM unnest(CAST(:firsts AS text[])) AS f (first_hash)
    UNION ALL
    SELECT known.first_hash,
           (SELECT min(p.head_length)
            FROM semel.source_partition AS p
            WHERE p.pipeline_id = :pipeline_id AND p.retired_at IS NULL AND p.reached > 0
              AND p.first_hash = known.first_hash AND p.head_length > known.head_length)
    FROM known
    WHERE known.head_length IS NOT NULL
)
SELECT first_hash, head_length FROM known WHERE head_length IS NOT NULL;

-- name: like
-- Partitions that a file may begin with, the closed and the newest first, some for each beginning;
-- and the last closed ones of its inode, which may be given to many files, and of its path.
SELECT p.source_partition_id, p.path, p.generation, p.device, p.inode, p.head_length, p.head_hash,
       p.first_hash, p.reached, p.tail_hash, p.last_length, p.last_hash, p.content, p.size,
       p.mtime_ns, p.ctime_ns, p.birth_ns, p.packed, p.closed_at IS NOT NULL AS closed
FROM jsonb_to_recordset(CAST(:heads AS jsonb)) AS h (head_length int, head_hash text)
CROSS JOIN LATERAL (
    SELECT * FROM semel.source_partition AS q
    WHERE q.pipeline_id = :pipeline_id AND q.retired_at IS NULL AND q.reached > 0
      AND q.head_length = h.head_length AND q.head_hash = h.head_hash
    ORDER BY q.closed_at IS NULL, q.source_partition_id DESC
    LIMIT :count) AS p
UNION
SELECT p.source_partition_id, p.path, p.generation, p.device, p.inode, p.head_length, p.head_hash,
       p.first_hash, p.reached, p.tail_hash, p.last_length, p.last_hash, p.content, p.size,
       p.mtime_ns, p.ctime_ns, p.birth_ns, p.packed, true AS closed
FROM unnest(CAST(:inodes AS bigint[])) AS i (inode)
CROSS JOIN LATERAL (
    SELECT * FROM semel.source_partition AS q
    WHERE q.pipeline_id = :pipeline_id AND q.retired_at IS NULL AND q.closed_at IS NOT NULL
      AND q.reached > 0 AND q.inode = i.inode
    ORDER BY q.source_partition_id DESC
    LIMIT :count) AS p
UNION
SELECT p.source_partition_id, p.path, p.generation, p.device, p.inode, p.head_length, p.head_hash,
       p.first_hash, p.reached, p.tail_hash, p.last_length, p.last_hash, p.content, p.size,
       p.mtime_ns, p.ctime_ns, p.birth_ns, p.packed, true AS closed
FROM unnest(CAST(:paths AS text[])) AS f (path)
CROSS JOIN LATERAL (
    SELECT * FROM semel.source_partition AS q
    WHERE q.pipeline_id = :pipeline_id AND q.path = f.path
    ORDER BY q.generation DESC LIMIT 1) AS p
WHERE p.retired_at IS NULL AND p.closed_at IS NOT NULL
ORDER BY source_partition_id;

-- name: orphans
-- Keeps P11.
SELECT b.batch_id
FROM semel.batch AS b
WHERE b.pipeline_id = :pipeline_id
  AND b.status = 'planned'
  AND b.request_key <> :request_key
  AND b.seen_at < clock_timestamp() - make_interval(secs => :orphan_seconds)
ORDER BY b.batch_id;

-- name: holders
-- Of some batches: those that have claimed a range of some partitions.
SELECT DISTINCT c.batch_id
FROM semel.claim AS c
WHERE c.batch_id = ANY(CAST(:batches AS bigint[]))
  AND c.source_partition_id = ANY(CAST(:partitions AS bigint[]))
ORDER BY c.batch_id;

-- name: free_ranges
-- Of each partition up to an end: what no batch but an orphan has claimed, and what is not lost.
SELECT w.source_partition_id, lower(f.span) AS start, upper(f.span) AS "end"
FROM jsonb_to_recordset(CAST(:ends AS jsonb)) AS w (source_partition_id bigint, record_end bigint)
CROSS JOIN LATERAL (
    SELECT unnest(int8multirange(int8range(0, w.record_end))
                  - COALESCE(range_agg(taken.span), CAST('{}' AS int8multirange))) AS span
    FROM (SELECT c.span FROM semel.claim AS c
          WHERE c.source_partition_id = w.source_partition_id
            AND NOT c.batch_id = ANY(CAST(:orphans AS bigint[]))
          UNION ALL
          SELECT l.span FROM semel.loss AS l
          WHERE l.source_partition_id = w.source_partition_id) AS taken
) AS f
ORDER BY w.source_partition_id, start;

-- name: unaccounted
SELECT p.source_partition_id, p.path, p.generation, p.device, p.inode, p.head_length, p.head_hash,
       p.first_hash, p.reached, p.tail_hash, p.last_length, p.last_hash, p.content, p.size,
       p.mtime_ns, p.ctime_ns, p.birth_ns, p.packed, true AS closed
FROM semel.source_partition AS p
WHERE p.pipeline_id = :pipeline_id
  AND p.retired_at IS NULL AND p.closed_at IS NOT NULL AND NOT p.accounted
ORDER BY p.path, p.source_partition_id;

-- name: close
-- Their files are gone, or hold something else: their paths and inodes are free.
UPDATE semel.source_partition AS p
SET closed_at = clock_timestamp(), content = f.content, accounted = f.accounted
FROM jsonb_to_recordset(CAST(:partitions AS jsonb))
         AS f (source_partition_id bigint, content bigint, accounted boolean)
WHERE p.source_partition_id = f.source_partition_id;

-- name: account
UPDATE semel.source_partition SET accounted = true
WHERE source_partition_id = ANY(CAST(:partitions AS bigint[])) AND closed_at IS NOT NULL;

-- name: retire
UPDATE semel.source_partition SET retired_at = clock_timestamp()
WHERE source_partition_id = ANY(CAST(:partitions AS bigint[])) AND retired_at IS NULL;

-- name: update
-- A file that was renamed keeps its partition, one that came back opens it again, and what is
-- claimed now moves the end of what was read.
UPDATE semel.source_partition AS p
SET path = f.path, device = f.device, inode = f.inode, birth_ns = f.birth_ns, size = f.size,
    mtime_ns = f.mtime_ns, ctime_ns = f.ctime_ns, content = f.content, reached = f.reached,
    head_length = f.head_length, head_hash = f.head_hash, first_hash = f.first_hash,
    last_length = f.last_length, last_hash = f.last_hash, tail_hash = f.tail_hash, closed_at = NULL,
    accounted = false
FROM jsonb_to_recordset(CAST(:partitions AS jsonb))
         AS f (source_partition_id bigint, path text, device bigint, inode bigint, birth_ns bigint,
               size bigint, mtime_ns bigint, ctime_ns bigint, content bigint, reached bigint,
               head_length int, head_hash text, first_hash text, last_length int, last_hash text,
               tail_hash text)
WHERE p.source_partition_id = f.source_partition_id;

-- name: insert
-- Each is the next generation of its path.
INSERT INTO semel.source_partition
    (pipeline_id, path, generation, device, inode, birth_ns, size, mtime_ns, ctime_ns, content,
     reached, head_length, head_hash, first_hash, last_length, last_hash, tail_hash)
SELECT :pipeline_id, f.path,
       1 + COALESCE((SELECT max(p.generation) FROM semel.source_partition AS p
                     WHERE p.pipeline_id = :pipeline_id AND p.path = f.path), 0),
       f.device, f.inode, f.birth_ns, f.size, f.mtime_ns, f.ctime_ns, f.content, f.reached,
       f.head_length, f.head_hash, f.first_hash, f.last_length, f.last_hash, f.tail_hash
FROM jsonb_to_recordset(CAST(:partitions AS jsonb))
         AS f (path text, device bigint, inode bigint, birth_ns bigint, size bigint,
               mtime_ns bigint, ctime_ns bigint, content bigint, reached bigint, head_length int,
               head_hash text, first_hash text, last_length int, last_hash text, tail_hash text)
RETURNING source_partition_id, path, generation;

-- name: lose
INSERT INTO semel.loss (source_partition_id, span, reason, accepted_by)
SELECT f.source_partition_id, int8range(f.start, f."end"), :reason, :accepted_by
FROM jsonb_to_recordset(CAST(:spans AS jsonb))
         AS f (source_partition_id bigint, start bigint, "end" bigint);

-- name: restore
-- What was read of them is what is still claimed. They are looked at again: some of them is free.
WITH last AS (
    SELECT f.source_partition_id, c.span, c.tail_hash, c.head_length, c.head_hash, c.first_hash,
           c.last_length, c.last_hash
    FROM unnest(CAST(:partitions AS bigint[])) AS f (source_partition_id)
    LEFT JOIN LATERAL (
        SELECT * FROM semel.claim AS c
        WHERE c.source_partition_id = f.source_partition_id
        ORDER BY upper(c.span) DESC LIMIT 1) AS c ON true
)
UPDATE semel.source_partition AS p
SET reached = COALESCE(upper(last.span), 0), tail_hash = COALESCE(last.tail_hash, ''),
    head_length = COALESCE(last.head_length, 0), head_hash = COALESCE(last.head_hash, ''),
    first_hash = COALESCE(last.first_hash, ''), last_length = COALESCE(last.last_length, 0),
    last_hash = COALESCE(last.last_hash, ''), size = -1, accounted = false
FROM last
WHERE p.source_partition_id = last.source_partition_id
RETURNING p.source_partition_id, p.content, p.retired_at IS NOT NULL AS retired;

-- name: refused
SELECT path, reason, detail, inode, size, copy_of, behind
FROM semel.refusal
WHERE pipeline_id = :pipeline_id;

-- name: losses
SELECT p.path, lower(l.span) AS start, upper(l.span) AS "end", l.reason, l.accepted_by,
       l.accepted_at
FROM semel.loss AS l
JOIN semel.source_partition AS p USING (source_partition_id)
WHERE p.pipeline_id = :pipeline_id AND l.reason IN ('gone', 'replaced')
ORDER BY l.accepted_at DESC, p.path, l.span
LIMIT :count;
