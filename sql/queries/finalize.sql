-- finalize: give the winner's files their final names.

-- name: won
SELECT attempt_id, batch_id, fence, status, snapshot_seq, buckets, input_digest, sink_schema,
       {<count>}, ended_at
FROM semel.attempt
WHERE batch_id = :batch_id AND status = 'won';

-- name: manifest
SELECT kind, staged_path, final_path, records, bytes, checksum
FROM semel.manifest_file
WHERE attempt_id = :attempt_id
ORDER BY ordinal;

-- name: finalize_batch
UPDATE semel.batch
SET status = 'finalized', finalized_at = clock_timestamp()
WHERE batch_id = :batch_id AND status = 'committed'
RETURNING status;

-- name: batch_status
SELECT status FROM semel.batch WHERE batch_id = :batch_id;
