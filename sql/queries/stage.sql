-- stage: one attempt at a batch, from a new fence to a sealed manifest.

-- name: staged
-- Keeps C1.
-- The attempt that commit would take: the highest staged fence.
SELECT attempt_id, batch_id, fence, status, snapshot_seq, input_digest, sink_schema,
       {<count>}
FROM semel.attempt
WHERE batch_id = :batch_id AND status IN ('staged', 'won')
ORDER BY fence DESC
LIMIT 1;

-- name: begin_attempt
-- Keeps S1.
-- The next fence, which is a sign of life. None when the batch is not planned any more.
WITH b AS (
    UPDATE semel.batch SET seen_at = clock_timestamp()
    WHERE batch_id = :batch_id AND status = 'planned'
    RETURNING batch_id, pipeline_id, planned_at
)
INSERT INTO semel.attempt (batch_id, fence, snapshot_seq, forgotten, driver)
SELECT b.batch_id,
       1 + COALESCE((SELECT max(a.fence) FROM semel.attempt AS a WHERE a.batch_id = b.batch_id), 0),
       :snapshot_seq, CAST(:forgotten AS int8multirange), :driver
FROM b
RETURNING attempt_id, batch_id, fence, status, snapshot_seq, input_digest, sink_schema,
          started_at, CAST(extract(epoch FROM clock_timestamp()) AS bigint) AS now_seconds,
          (SELECT b.planned_at FROM b) AS planned_at,
          (SELECT a.duplicates_spread FROM semel.attempt AS a
           WHERE a.status = 'won' AND a.batch_id =
               (SELECT l.batch_id FROM semel.batch AS l
                WHERE l.pipeline_id = (SELECT b.pipeline_id FROM b) AND l.commit_seq = :snapshot_seq))
              AS last_spread;

-- name: sign_of_life
UPDATE semel.batch SET seen_at = clock_timestamp()
WHERE batch_id = :batch_id AND status = 'planned';

-- name: began
-- Keeps S23.
SELECT started_at FROM semel.attempt WHERE attempt_id = :attempt_id;

-- name: latest
-- The attempt that commit would take; without one the newest attempt. With the last sign of life of
-- the batch.
SELECT a.attempt_id, a.batch_id, a.fence, a.status, a.snapshot_seq, a.input_digest, a.sink_schema,
       a.driver, a.started_at, a.reason, b.seen_at, {a.<count>}
FROM semel.attempt AS a
JOIN semel.batch AS b USING (batch_id)
WHERE a.batch_id = :batch_id
ORDER BY a.status IN ('staged', 'won') DESC, a.fence DESC
LIMIT 1;

-- name: attempt_status
SELECT status, reason FROM semel.attempt WHERE attempt_id = :attempt_id;

-- name: became
-- What became of a batch: the attempt that won, where one did, with its counts.
SELECT b.batch_id, b.request_key, b.status, b.committed_at, b.reason, a.fence, {a.<count>}
FROM semel.batch AS b
LEFT JOIN semel.attempt AS a ON a.batch_id = b.batch_id AND a.status = 'won'
WHERE b.batch_id = :batch_id;

-- name: seal
-- Keeps S11.
-- With its manifest, and the record times of its claims, which each attempt finds alike.
WITH sealed AS (
    UPDATE semel.attempt
    SET status = 'staged', staged_at = clock_timestamp(),
        buckets = CAST(:buckets AS int8multirange),
        times = CAST(:touches AS tstzmultirange), duplicates_spread = :duplicates_spread,
        input_digest = :input_digest, sink_schema = :sink_schema, {<count> = :<count>}
    WHERE attempt_id = :attempt_id AND status = 'running'
    RETURNING attempt_id, batch_id
), listed AS (
    INSERT INTO semel.manifest_file (attempt_id, batch_id, ordinal, kind, staged_path, final_path,
                                     records, bytes, checksum)
    SELECT sealed.attempt_id, sealed.batch_id, f.ordinal, f.kind, f.staged_path, f.final_path,
           f.records, f.bytes, f.checksum
    FROM sealed
    CROSS JOIN jsonb_to_recordset(CAST(:files AS jsonb))
             AS f (ordinal int, kind text, staged_path text, final_path text, records bigint,
                   bytes bigint, checksum text)
), timed AS (
    UPDATE semel.claim AS c SET time_min = t.time_min, time_max = t.time_max
    FROM sealed, jsonb_to_recordset(CAST(:times AS jsonb))
                     AS t (ordinal int, time_min timestamptz, time_max timestamptz)
    WHERE c.batch_id = sealed.batch_id AND c.ordinal = t.ordinal
)
SELECT attempt_id FROM sealed;

-- name: other_digest
-- Keeps S13.
-- Every attempt of a batch must have read the same bytes.
SELECT fence, input_digest
FROM semel.attempt
WHERE batch_id = :batch_id AND input_digest IS NOT NULL AND input_digest <> :input_digest
LIMIT 1;

-- name: lose
-- The committed `-> lost` is the proof that this attempt never lands.
UPDATE semel.attempt
SET status = 'lost', ended_at = clock_timestamp(), reason = :reason
WHERE attempt_id = :attempt_id AND status IN ('running', 'staged')
RETURNING attempt_id;
