-- compare: what the ledger says of the batches in a range, and the one batch of the scratch ledger.

-- name: batches
-- Those that were not given up; a batch that has not committed may yet get a time in the range. A
-- replay stands at its root's place, and has its output; an admission belongs to its root.
WITH own AS (
    SELECT b.batch_id
    FROM semel.batch AS b
    WHERE b.pipeline_id = :pipeline_id AND b.status <> 'abandoned'
      AND b.replays IS NULL AND b.admits IS NULL
      AND CASE CAST(:by AS text)
              WHEN 'number' THEN b.batch_id BETWEEN CAST(:first AS bigint) AND CAST(:last AS bigint)
              WHEN 'interval' THEN b.interval_start >= CAST(:start AS timestamptz)
                                   AND b.interval_end <= CAST(:end AS timestamptz)
              ELSE COALESCE(b.batch_time, clock_timestamp()) >= CAST(:start AS timestamptz)
                   AND COALESCE(b.batch_time, clock_timestamp()) < CAST(:end AS timestamptz) END
)
SELECT b.batch_id, b.status, b.split_bytes,
       (SELECT min(r.batch_id) FROM semel.batch AS r
        WHERE r.replays = b.batch_id AND r.status IN ('planned', 'committed')) AS replay
FROM semel.batch AS b
WHERE b.status <> 'abandoned' AND b.replays IS NULL
  AND (b.batch_id IN (SELECT batch_id FROM own) OR b.admits IN (SELECT batch_id FROM own))
ORDER BY b.commit_seq, b.batch_id;

-- name: claims
SELECT c.batch_id, c.ordinal, c.source_partition_id, p.name, p.identity, lower(c.span) AS start,
       upper(c.span) AS "end", c.evidence
FROM semel.claim AS c
JOIN semel.source_partition AS p USING (source_partition_id)
WHERE c.batch_id = ANY(CAST(:batches AS bigint[]))
ORDER BY c.batch_id, c.ordinal;

-- name: insert_partitions
-- Under the numbers that they have in the ledger: so positions are the same. Closed, for no plan
-- asks for them, and two may have had one name.
INSERT INTO semel.source_partition (source_partition_id, pipeline_id, name, generation, identity,
                                    closed_at)
OVERRIDING SYSTEM VALUE
SELECT c.source_partition_id, :pipeline_id, c.name, 1, c.identity, clock_timestamp()
FROM jsonb_to_recordset(CAST(:partitions AS jsonb))
         AS c (source_partition_id bigint, name text, identity text);

-- name: insert_batch
-- Its number is none that a ledger gives.
INSERT INTO semel.batch (batch_id, pipeline_id, request_key, ordinal, spec, spec_digest,
                         split_bytes)
OVERRIDING SYSTEM VALUE
VALUES (0, :pipeline_id, 'compare', 1, CAST(:spec AS jsonb), :spec_digest, :split_bytes);

-- name: insert_claims
INSERT INTO semel.claim (batch_id, ordinal, source_partition_id, span, evidence)
SELECT :batch_id, c.ordinal, c.source_partition_id, int8range(c.start, c."end"), c.evidence
FROM jsonb_to_recordset(CAST(:claims AS jsonb))
         AS c (ordinal int, source_partition_id bigint, start bigint, "end" bigint, evidence jsonb);
