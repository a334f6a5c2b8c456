-- replay: compute the output of a batch again.

-- name: roots
-- The batches that a replay of some numbers, or of an interval, means, and their newest output.
SELECT b.batch_id, b.request_key, b.status, b.interval_start, b.interval_end, b.commit_seq,
       n.batch_id AS newest, n.generation, n.status AS newest_status, n.request_key AS newest_key,
       a.records_read, a.survivors, a.duplicates_batch, a.duplicates_catalog, a.quarantined, a.late,
       a.rows_written, a.bytes_read
FROM semel.batch AS b
CROSS JOIN LATERAL (SELECT * FROM semel.batch AS n
                    WHERE COALESCE(n.replays, n.batch_id) = b.batch_id AND n.status <> 'abandoned'
                    ORDER BY n.generation DESC LIMIT 1) AS n
LEFT JOIN semel.attempt AS a ON a.batch_id = b.batch_id AND a.status = 'won'
WHERE b.pipeline_id = :pipeline_id AND b.replays IS NULL AND b.status <> 'abandoned'
  AND b.batch_id BETWEEN COALESCE(:first, b.batch_id) AND COALESCE(:last, b.batch_id)
  AND (CAST(:since AS timestamptz) IS NULL
       OR COALESCE(b.interval_start, b.batch_time) >= CAST(:since AS timestamptz)
          AND COALESCE(b.interval_end, b.batch_time + interval '1 microsecond')
              <= CAST(:until AS timestamptz))
ORDER BY b.commit_seq NULLS LAST, b.batch_id;

-- name: at_work
-- The replay of a batch that is planned or committed, and whether it shows life.
SELECT b.batch_id, b.request_key, b.status, b.spec_digest,
       b.seen_at > clock_timestamp() - make_interval(secs => :silent_seconds) AS alive
FROM semel.batch AS b
WHERE b.replays = :root AND b.status IN ('planned', 'committed');

-- name: insert
INSERT INTO semel.batch (pipeline_id, request_key, ordinal, spec, spec_digest, split_bytes,
                         replays, generation)
SELECT r.pipeline_id, :request_key,
       1 + COALESCE((SELECT max(b.ordinal) FROM semel.batch AS b
                     WHERE b.pipeline_id = r.pipeline_id AND b.request_key = :request_key), 0),
       CAST(:spec AS jsonb), :spec_digest, r.split_bytes, r.batch_id, :generation
FROM semel.batch AS r
WHERE r.batch_id = :root
RETURNING batch_id;

-- name: of_request
-- The newest replay of each batch that a request has replayed, or is replaying.
SELECT DISTINCT ON (replays) batch_id, replays, status
FROM semel.batch
WHERE pipeline_id = :pipeline_id AND request_key = :request_key AND replays IS NOT NULL
ORDER BY replays, ordinal DESC;

-- name: won
-- What the winner of the batch that is replayed read, and what became of it.
SELECT input_digest, records_read, survivors, duplicates_batch, duplicates_catalog, quarantined,
       late, rows_written, bytes_read
FROM semel.attempt
WHERE batch_id = :root AND status = 'won';

-- name: generations
-- The outputs of a batch before one, with the attempt that won each.
SELECT b.batch_id, b.generation, a.fence
FROM semel.batch AS b
JOIN semel.attempt AS a ON a.batch_id = b.batch_id AND a.status = 'won'
WHERE COALESCE(b.replays, b.batch_id) = :root AND b.generation < :generation
  AND b.status = 'finalized'
ORDER BY b.generation;
