-- compare: what the ledger says of the batches in a range.

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
SELECT b.batch_id, b.status, b.split_bytes, b.packed_in,
       (SELECT min(r.batch_id) FROM semel.batch AS r
        WHERE r.replays = b.batch_id AND r.status IN ('planned', 'committed')) AS replay
FROM semel.batch AS b
WHERE b.status <> 'abandoned' AND b.replays IS NULL
  AND (b.batch_id IN (SELECT batch_id FROM own) OR b.admits IN (SELECT batch_id FROM own))
ORDER BY b.commit_seq, b.batch_id;

-- name: claims
-- What the newest outputs of some batches are of. Admissions have none of their own.
SELECT b.batch_id, c.ordinal, c.source_partition_id, p.name, p.identity, c.start, c."end", c.evidence
FROM semel.batch AS b
CROSS JOIN LATERAL (SELECT n.batch_id FROM semel.batch AS n
                    WHERE COALESCE(n.replays, n.batch_id) = b.batch_id AND n.status = 'finalized'
                    ORDER BY n.generation DESC LIMIT 1) AS n
JOIN semel.reads AS c ON c.batch_id = n.batch_id
JOIN semel.source_partition AS p USING (source_partition_id)
WHERE b.batch_id = ANY(CAST(:batches AS bigint[])) AND b.admits IS NULL
ORDER BY b.batch_id, c.ordinal;
