-- A batch, for every verb after plan.

-- name: batch
SELECT b.batch_id, b.pipeline_id, p.name, b.request_key, b.ordinal, b.status, b.spec, b.spec_digest,
       b.split_bytes, b.interval_start, b.interval_end, b.commit_seq, b.batch_time
FROM semel.batch AS b
JOIN semel.pipeline AS p USING (pipeline_id)
WHERE b.batch_id = :batch_id;
