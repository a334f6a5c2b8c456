-- collect: forget what no promise needs any more.

-- name: unfinished
-- Committed, and its run has not come back for long: nobody else would finalize it.
SELECT batch_id FROM semel.batch
WHERE pipeline_id = :pipeline_id AND status = 'committed'
  AND committed_at < clock_timestamp() - make_interval(secs => :orphan_seconds)
ORDER BY batch_id;

-- name: attempt_ends
-- Which attempts' folders may go: proven lost, or won with all their files under final names.
SELECT a.fence, a.status, b.status AS batch_status
FROM semel.attempt AS a
JOIN semel.batch AS b USING (batch_id)
WHERE b.batch_id = :batch_id AND b.pipeline_id = :pipeline_id;

-- name: replaced
-- Outputs whose replay has been finalized for long, and whose files are there still.
SELECT b.batch_id, b.generation, COALESCE(b.replays, b.batch_id) AS root
FROM semel.batch AS b
JOIN semel.batch AS r ON r.batch_id = b.replaced_by
WHERE b.pipeline_id = :pipeline_id AND b.replaced_by IS NOT NULL AND b.files_removed_at IS NULL
  AND r.finalized_at < clock_timestamp() - make_interval(secs => :keep_seconds)
ORDER BY b.batch_id;

-- name: files_removed
UPDATE semel.batch SET files_removed_at = clock_timestamp()
WHERE batch_id = :batch_id AND replaced_by IS NOT NULL
RETURNING batch_id;

-- name: accounted
-- Open partitions that are read to their end, and of which each position is in a finalized batch or
-- lost, the last of them so many seconds ago.
-- Keeps G9, Q5.
SELECT p.source_partition_id, p.name, p.generation, p.identity, p.fingerprint, p.settled, p.reached,
       p.seen, p.evidence, false AS closed
FROM semel.source_partition AS p
WHERE p.pipeline_id = :pipeline_id AND p.retired_at IS NULL AND p.closed_at IS NULL
  AND p.settled AND p.reached = p.seen
  AND (
      SELECT int8range(0, p.reached) <@ COALESCE(range_agg(s.span), CAST('{}' AS int8multirange))
             AND max(s.since) <= clock_timestamp() - make_interval(secs => :kept_seconds)
      FROM (SELECT c.span, b.finalized_at AS since
            FROM semel.claim AS c
            JOIN semel.batch AS b USING (batch_id)
            WHERE c.source_partition_id = p.source_partition_id AND b.status = 'finalized'
            UNION ALL
            SELECT l.span, l.accepted_at FROM semel.loss AS l
            WHERE l.source_partition_id = p.source_partition_id) AS s)
ORDER BY p.source_partition_id;

-- name: packable
SELECT b.batch_id FROM semel.batch AS b
WHERE b.pipeline_id = :pipeline_id AND {may_pack b}
ORDER BY b.finalized_at, b.batch_id
LIMIT :count;

-- name: begin_pack
-- Keeps HI1.
-- Before the pack is written: from here on no replay or admission of these batches is planned.
UPDATE semel.batch AS b SET packed_in = :pack
WHERE b.batch_id = ANY(CAST(:batches AS bigint[])) AND b.pipeline_id = :pipeline_id AND {may_pack b}
RETURNING b.batch_id;

-- name: release_pack
-- Its batches are in no pack.
UPDATE semel.batch SET packed_in = NULL
WHERE pipeline_id = :pipeline_id AND packed_in = :pack AND packed_at IS NULL;

-- name: packs_begun
SELECT b.packed_in AS pack, array_agg(b.batch_id ORDER BY b.batch_id) AS batches
FROM semel.batch AS b
WHERE b.pipeline_id = :pipeline_id AND b.packed_in IS NOT NULL AND b.packed_at IS NULL
GROUP BY b.packed_in
ORDER BY b.packed_in;

-- name: adjacent_claims
-- Claims that become one: of some packed batches without intervals, and what touches them of those
-- packed before. `batch_id` and `ordinal` are those of the claim that reaches furthest, which stays.
WITH mine AS (
    SELECT c.* FROM semel.claim AS c JOIN semel.batch AS b USING (batch_id)
    WHERE c.batch_id = ANY(CAST(:batches AS bigint[])) AND b.interval_start IS NULL
      AND NOT isempty(c.span)
), every AS (
    SELECT * FROM mine
    UNION
    SELECT n.* FROM mine AS m
    JOIN semel.claim AS n ON n.source_partition_id = m.source_partition_id AND n.span -|- m.span
    JOIN semel.batch AS b ON b.batch_id = n.batch_id
    WHERE b.packed_at IS NOT NULL AND b.interval_start IS NULL
), islands AS (
    SELECT source_partition_id, unnest(range_agg(span)) AS island
    FROM every GROUP BY source_partition_id
)
SELECT i.source_partition_id, lower(i.island) AS start, upper(i.island) AS "end",
       (array_agg(e.batch_id ORDER BY upper(e.span) DESC))[1] AS batch_id,
       (array_agg(e.ordinal ORDER BY upper(e.span) DESC))[1] AS ordinal,
       min(e.time_min) AS time_min, max(e.time_max) AS time_max
FROM islands AS i
JOIN every AS e ON e.source_partition_id = i.source_partition_id AND e.span <@ i.island
GROUP BY i.source_partition_id, i.island
HAVING count(*) > 1;

-- name: remove_claims
-- Keeps HI3.
-- Of each span the claims that another one takes in.
DELETE FROM semel.claim AS c
USING jsonb_to_recordset(CAST(:spans AS jsonb))
          AS s (source_partition_id bigint, start bigint, "end" bigint, batch_id bigint, ordinal int)
WHERE c.source_partition_id = s.source_partition_id AND c.span <@ int8range(s.start, s."end")
  AND NOT isempty(c.span)
  AND (c.batch_id, c.ordinal) <> (s.batch_id, s.ordinal);

-- name: extend_claims
UPDATE semel.claim AS c
SET span = int8range(s.start, s."end"), time_min = s.time_min, time_max = s.time_max
FROM jsonb_to_recordset(CAST(:spans AS jsonb))
         AS s (start bigint, "end" bigint, batch_id bigint, ordinal int, time_min timestamptz,
               time_max timestamptz)
WHERE c.batch_id = s.batch_id AND c.ordinal = s.ordinal;

-- name: remove_manifests
DELETE FROM semel.manifest_file AS f
USING semel.attempt AS a
WHERE a.batch_id = ANY(CAST(:batches AS bigint[])) AND f.attempt_id = a.attempt_id;

-- name: end_pack
-- Of the declaration only what lists and later replays ask for.
UPDATE semel.batch AS b
SET packed_at = clock_timestamp(), spec = jsonb_build_object(
        'name', b.spec -> 'name', 'guarantee', b.spec -> 'guarantee',
        'source', jsonb_build_object('type', b.spec #> '{source,type}',
                                     'format', b.spec #> '{source,format}'),
        'sink', jsonb_build_object('type', b.spec #> '{sink,type}',
                                   'mode', b.spec #> '{sink,mode}'))
WHERE b.pipeline_id = :pipeline_id AND b.packed_in = :pack AND b.packed_at IS NULL;

-- name: remove_runs
-- Keeps HI4.
-- The headers of segments that were dropped long ago, before the first one that was not: a run is merged
-- into one of its own or of a later segment, so no other header names these.
DELETE FROM semel.id_run AS r
USING semel.segment AS s
WHERE s.pipeline_id = :pipeline_id AND r.segment_id = s.segment_id
  AND s.segment_id < ALL (
      SELECT k.segment_id FROM semel.segment AS k
      WHERE k.pipeline_id = :pipeline_id
        AND (k.dropped_at IS NULL
             OR k.dropped_at >= statement_timestamp() - make_interval(secs => :keep_seconds)));

-- name: remove_segments
DELETE FROM semel.segment AS s
WHERE s.pipeline_id = :pipeline_id
  AND s.dropped_at < statement_timestamp() - make_interval(secs => :keep_seconds)
  AND NOT EXISTS (SELECT FROM semel.id_run AS r WHERE r.segment_id = s.segment_id);
