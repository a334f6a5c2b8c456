-- A batch, for every verb after plan.

-- name: batch
SELECT b.batch_id, b.pipeline_id, p.name, b.request_key, b.ordinal, b.status, b.spec, b.spec_digest,
       b.split_bytes, b.interval_start, b.interval_end, b.commit_seq, b.batch_time
FROM semel.batch AS b
JOIN semel.pipeline AS p USING (pipeline_id)
WHERE b.batch_id = :batch_id;

-- name: committed
-- Which attempts are in the output, or will be, and in which order they came.
SELECT b.batch_id, b.commit_seq, a.fence
FROM semel.batch AS b
JOIN semel.attempt AS a ON a.batch_id = b.batch_id AND a.status = 'won'
WHERE b.pipeline_id = :pipeline_id AND b.status IN ('committed', 'finalized');
