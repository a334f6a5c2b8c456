-- plan: fix the batch before any work.

-- name: latest_batch
SELECT batch_id, pipeline_id, request_key, ordinal, status, spec, spec_digest, split_bytes,
       interval_start, interval_end, commit_seq, batch_time, replays, generation, admits, admission,
       batch_id AS judged_by
FROM semel.batch
WHERE pipeline_id = :pipeline_id AND request_key = :request_key
  AND replays IS NULL AND admits IS NULL
ORDER BY ordinal DESC
LIMIT 1;

-- name: insert_batch
-- Keeps P1.
-- With its claims, which are a change of the pipeline's source.
WITH touched AS (
    UPDATE semel.pipeline SET source_version = source_version + 1
    WHERE pipeline_id = :pipeline_id
), b AS (
    INSERT INTO semel.batch (pipeline_id, request_key, ordinal, spec, spec_digest, split_bytes,
                             interval_start, interval_end, covers, is_full)
    VALUES (:pipeline_id, :request_key, :ordinal, CAST(:spec AS jsonb), :spec_digest, :split_bytes,
            :interval_start, :interval_end, CAST(:covers AS tstzmultirange), :is_full)
    RETURNING batch_id, pipeline_id, request_key, ordinal, status, spec, spec_digest, split_bytes,
              interval_start, interval_end, commit_seq, batch_time, replays, generation, admits,
              admission, batch_id AS judged_by
), claimed AS (
    INSERT INTO semel.claim (batch_id, ordinal, source_partition_id, span, evidence)
    SELECT b.batch_id, c.ordinal, c.source_partition_id, int8range(c.start, c."end"), c.evidence
    FROM b
    CROSS JOIN jsonb_to_recordset(CAST(:claims AS jsonb))
             AS c (ordinal int, source_partition_id bigint, start bigint, "end" bigint,
                   evidence jsonb)
)
SELECT * FROM b;

-- name: now
SELECT clock_timestamp() AS now;

-- name: covers
-- Keeps W2.
-- Of a time that was looked at: what no open batch may have claimed some of. One without an interval
-- may have claimed of any. If something unclaimed is of a time before it that is covered (:late), the
-- first :delay of it stays open, and with that the windows which end before it.
WITH looked AS (
    SELECT tstzmultirange(tstzrange(CAST(:start AS timestamptz),
                                    CAST(:end AS timestamptz)))
           - COALESCE(range_agg(tstzrange(
                 b.interval_start - make_interval(secs => CAST(extract(
                     epoch FROM CAST(b.spec #>> '{source,lookback}' AS interval)) AS float8)),
                 b.interval_end)), '{}') AS covers
    FROM semel.batch AS b
    WHERE b.pipeline_id = :pipeline_id AND b.status IN ('planned', 'committed')
      AND b.replays IS NULL AND b.admits IS NULL
)
SELECT c.covers, NOT p.covered @> c.covers AS is_new
FROM looked AS l, semel.pipeline AS p, LATERAL (
    SELECT CASE WHEN EXISTS (SELECT FROM unnest(CAST(:late AS timestamptz[])) AS late (at)
                             WHERE p.covered @> late.at)
                THEN l.covers - tstzmultirange(tstzrange(
                    CAST(:start AS timestamptz), CAST(:start AS timestamptz) + CAST(:delay AS interval)))
                ELSE l.covers END AS covers) AS c
WHERE p.pipeline_id = :pipeline_id;

-- name: cover
-- Keeps W1.
UPDATE semel.pipeline SET covered = covered + CAST(:covers AS tstzmultirange)
WHERE pipeline_id = :pipeline_id;

-- name: leaves_nothing
-- Keeps W6.
-- A plan without a batch saw nothing but what is claimed.
UPDATE semel.batch SET is_full = true
WHERE batch_id = (SELECT max(b.batch_id) FROM semel.batch AS b
                  WHERE b.pipeline_id = :pipeline_id);

-- name: claims
-- What a batch reads. Materialized, so that also before its tables are analysed Postgres begins with
-- the batch's claims, and does not ask for each partition which claims it has.
WITH c AS MATERIALIZED (
    SELECT * FROM semel.reads WHERE batch_id = :batch_id
)
SELECT c.ordinal, c.source_partition_id, p.name, p.identity, c.start, c."end", c.evidence
FROM c
JOIN semel.source_partition AS p USING (source_partition_id)
ORDER BY c.ordinal;

-- name: clear_refusals
DELETE FROM semel.refusal WHERE pipeline_id = :pipeline_id;

-- name: insert_refusals
INSERT INTO semel.refusal (pipeline_id, name, reason, detail, inode, size, copy_of, behind)
SELECT :pipeline_id, name, reason, detail, inode, size, copy_of, behind
FROM jsonb_to_recordset(CAST(:refusals AS jsonb))
         AS r (name text, reason text, detail text, inode bigint, size bigint, copy_of text,
              behind bigint)
ON CONFLICT (pipeline_id, name) DO NOTHING;
