-- partitions: which source partitions are known, and what was read of them.

-- name: version
SELECT source_version FROM semel.pipeline WHERE pipeline_id = :pipeline_id;

-- name: touch
UPDATE semel.pipeline SET source_version = source_version + 1 WHERE pipeline_id = :pipeline_id;

-- name: settled
-- Of the open partitions, some ten thousand a row: which are settled, each with 16 bytes of a digest
-- of how it looked; and which are not. Settled is what was read to its end, while it looks so: only
-- the rest need be looked at. No name or identity holds two slashes in a row.
WITH known AS (
    SELECT p.*, p.settled AND p.reached = p.seen AND p.source_partition_id NOT IN (
               SELECT c.source_partition_id FROM semel.claim AS c
               WHERE c.batch_id = ANY(CAST(:orphans AS bigint[]))) AS is_over
    FROM semel.source_partition AS p
    WHERE p.pipeline_id = :pipeline_id AND p.retired_at IS NULL AND p.closed_at IS NULL
)
SELECT COALESCE(string_agg(int8send(k.source_partition_id), '') FILTER (WHERE k.is_over), '')
           AS settled,
       COALESCE(string_agg(substr(sha256(convert_to(
           k.name || '//' || k.identity || '//' || k.fingerprint, 'UTF8')), 1, 16), '')
           FILTER (WHERE k.is_over), '') AS looks,
       COALESCE(array_agg(k.source_partition_id) FILTER (WHERE NOT k.is_over), '{}') AS others
FROM known AS k
GROUP BY k.source_partition_id / 10000;

-- name: by_id
SELECT p.source_partition_id, p.name, p.generation, p.identity, p.fingerprint, p.settled, p.reached,
       p.seen, p.evidence, false AS closed
FROM semel.source_partition AS p
WHERE p.source_partition_id = ANY(CAST(:partitions AS bigint[]))
ORDER BY p.source_partition_id;

-- name: state
-- Keeps P2, P11.
-- The latest batch of a request, the planned ones of others that gave no sign of life for long, and
-- whether a plan has left nothing since the newest batch of all.
SELECT p.source_version AS version,
       (SELECT b.batch_id FROM semel.batch AS b
        WHERE b.pipeline_id = p.pipeline_id AND b.request_key = :request_key
          AND b.replays IS NULL AND b.admits IS NULL
        ORDER BY b.ordinal DESC
        LIMIT 1) AS latest,
       ARRAY(SELECT b.batch_id FROM semel.batch AS b
             WHERE b.pipeline_id = p.pipeline_id
               AND b.status = 'planned' AND b.replays IS NULL AND b.admits IS NULL
               AND b.request_key <> :request_key
               AND b.seen_at < clock_timestamp() - make_interval(secs => :orphan_seconds)
             ORDER BY b.batch_id) AS orphans,
       COALESCE((SELECT b.is_full FROM semel.batch AS b
                 WHERE b.pipeline_id = p.pipeline_id
                 ORDER BY b.batch_id DESC
                 LIMIT 1), true) AS is_full
FROM semel.pipeline AS p
WHERE p.pipeline_id = :pipeline_id;

-- name: holders
-- Of some batches: those that have claimed a range of some partitions.
SELECT DISTINCT c.batch_id
FROM semel.claim AS c
WHERE c.batch_id = ANY(CAST(:batches AS bigint[]))
  AND c.source_partition_id = ANY(CAST(:partitions AS bigint[]))
ORDER BY c.batch_id;

-- name: free_ranges
-- Of each partition up to an end: what no batch but an orphan has claimed, and what is not lost.
-- Before a partition's floor nothing is free.
SELECT w.source_partition_id, lower(f.span) AS start, upper(f.span) AS "end"
FROM jsonb_to_recordset(CAST(:ends AS jsonb)) AS w (source_partition_id bigint, record_end bigint)
JOIN semel.source_partition AS p USING (source_partition_id)
CROSS JOIN LATERAL (
    SELECT unnest(int8multirange(int8range(LEAST(p.floor, w.record_end), w.record_end))
                  - COALESCE(range_agg(taken.span), CAST('{}' AS int8multirange))) AS span
    FROM (SELECT c.span FROM semel.claim AS c
          WHERE c.source_partition_id = w.source_partition_id
            AND c.span && int8range(p.floor, NULL)
            AND NOT c.batch_id = ANY(CAST(:orphans AS bigint[]))
          UNION ALL
          SELECT l.span FROM semel.loss AS l
          WHERE l.source_partition_id = w.source_partition_id
            AND l.span && int8range(p.floor, NULL)) AS taken
) AS f
ORDER BY w.source_partition_id, start;

-- name: raise_floor
-- To the first position that is free, or may become free: its batch can still be abandoned. Claims
-- are found by their partition: by those of a planned batch, which may have very many, each
-- partition would look at them all.
UPDATE semel.source_partition AS p
SET floor = f.floor
FROM (SELECT p.source_partition_id,
             LEAST(t."end",
                   (SELECT min(lower(c.span)) FILTER (WHERE c.batch_id = ANY(ARRAY(
                        SELECT b.batch_id FROM semel.batch AS b WHERE b.status = 'planned')))
                    FROM semel.claim AS c
                    WHERE c.source_partition_id = p.source_partition_id
                      AND c.span && int8range(p.floor, NULL))) AS floor
      FROM semel.source_partition AS p
      JOIN semel.taken AS t USING (source_partition_id)
      WHERE p.source_partition_id = ANY(CAST(:partitions AS bigint[]))) AS f
WHERE p.source_partition_id = f.source_partition_id AND f.floor > p.floor;

-- name: finalized
-- Of the partitions that a batch has claimed: up to where all is finalized or lost.
SELECT p.name, p.identity,
       LEAST(t."end", (SELECT min(lower(c.span)) FROM semel.claim AS c
                       JOIN semel.batch AS b USING (batch_id)
                       WHERE b.pipeline_id = p.pipeline_id AND b.status IN ('planned', 'committed')
                         AND c.source_partition_id = p.source_partition_id)) AS "end"
FROM semel.source_partition AS p
JOIN semel.taken AS t USING (source_partition_id)
WHERE p.source_partition_id IN (SELECT c.source_partition_id FROM semel.claim AS c
                                WHERE c.batch_id = :batch_id);

-- name: unaccounted
SELECT p.source_partition_id, p.name, p.generation, p.identity, p.fingerprint, p.settled, p.reached,
       p.seen, p.evidence, true AS closed
FROM semel.source_partition AS p
WHERE p.pipeline_id = :pipeline_id
  AND p.retired_at IS NULL AND p.closed_at IS NOT NULL AND NOT p.accounted
ORDER BY p.name, p.source_partition_id;

-- name: close
-- They are gone, or are something else now: their names and identities are free.
UPDATE semel.source_partition AS p
SET closed_at = clock_timestamp(), seen = f.seen, accounted = f.accounted
FROM jsonb_to_recordset(CAST(:partitions AS jsonb))
         AS f (source_partition_id bigint, seen bigint, accounted boolean)
WHERE p.source_partition_id = f.source_partition_id;

-- name: account
UPDATE semel.source_partition SET accounted = true
WHERE source_partition_id = ANY(CAST(:partitions AS bigint[])) AND closed_at IS NOT NULL;

-- name: retire
UPDATE semel.source_partition SET retired_at = clock_timestamp()
WHERE source_partition_id = ANY(CAST(:partitions AS bigint[])) AND retired_at IS NULL;

-- name: update
-- Keeps P25.
-- What was renamed keeps its partition, what came back opens it again, and what is claimed now moves
-- the end of what was read. No row where a claim stands on other content.
UPDATE semel.source_partition AS p
SET name = f.name, identity = f.identity, fingerprint = f.fingerprint, settled = f.settled,
    reached = f.reached, seen = f.seen, evidence = f.evidence, closed_at = NULL, accounted = false
FROM jsonb_to_recordset(CAST(:partitions AS jsonb))
         AS f (source_partition_id bigint, name text, identity text, fingerprint text,
               settled boolean, reached bigint, seen bigint, evidence jsonb)
WHERE p.source_partition_id = f.source_partition_id
  AND (p.evidence ->> 'content' IS NOT DISTINCT FROM f.evidence ->> 'content'
       OR NOT EXISTS (SELECT FROM semel.claim AS c
                      WHERE c.source_partition_id = p.source_partition_id
                        AND c.evidence ->> 'content' IS DISTINCT FROM f.evidence ->> 'content'));

-- name: insert
-- Each is the next generation of its name.
INSERT INTO semel.source_partition
    (pipeline_id, name, generation, identity, fingerprint, settled, reached, seen, evidence)
SELECT :pipeline_id, f.name,
       1 + COALESCE((SELECT max(p.generation) FROM semel.source_partition AS p
                     WHERE p.pipeline_id = :pipeline_id AND p.name = f.name), 0),
       f.identity, f.fingerprint, f.settled, f.reached, f.seen, f.evidence
FROM jsonb_to_recordset(CAST(:partitions AS jsonb))
         AS f (name text, identity text, fingerprint text, settled boolean, reached bigint,
               seen bigint, evidence jsonb)
RETURNING source_partition_id, name, generation;

-- name: lose
INSERT INTO semel.loss (source_partition_id, span, reason, accepted_by)
SELECT f.source_partition_id, int8range(f.start, f."end"), :reason, :accepted_by
FROM jsonb_to_recordset(CAST(:spans AS jsonb))
         AS f (source_partition_id bigint, start bigint, "end" bigint);

-- name: restore
-- What was read of them is what is still claimed. They are looked at again: some of them is free.
WITH last AS (
    SELECT f.source_partition_id, c.span, c.evidence
    FROM unnest(CAST(:partitions AS bigint[])) AS f (source_partition_id)
    LEFT JOIN LATERAL (
        SELECT * FROM semel.claim AS c
        WHERE c.source_partition_id = f.source_partition_id
        ORDER BY upper(c.span) DESC LIMIT 1) AS c ON true
)
UPDATE semel.source_partition AS p
SET reached = COALESCE(upper(last.span), 0), evidence = p.evidence || COALESCE(last.evidence, '{}'),
    settled = false, accounted = false
FROM last
WHERE p.source_partition_id = last.source_partition_id
RETURNING p.source_partition_id, p.seen, p.retired_at IS NOT NULL AS retired;

-- name: refused
SELECT name, reason, detail, inode, size, copy_of, behind
FROM semel.refusal
WHERE pipeline_id = :pipeline_id;

-- name: losses
SELECT p.name, lower(l.span) AS start, upper(l.span) AS "end", l.reason, l.accepted_by,
       l.accepted_at
FROM semel.loss AS l
JOIN semel.source_partition AS p USING (source_partition_id)
WHERE p.pipeline_id = :pipeline_id AND l.reason IN ('gone', 'replaced')
ORDER BY l.accepted_at DESC, p.name, l.span
LIMIT :count;
