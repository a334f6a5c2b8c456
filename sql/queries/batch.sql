-- A batch, for every verb after plan.

-- name: batch
-- A replay stands where the batch stands that it replays, and admits what that one admits. An
-- admission stands in the interval of the batch whose dead letters it judges. With its pipeline.
SELECT b.batch_id, b.pipeline_id, p.name, b.request_key, b.ordinal, b.status, b.spec, b.spec_digest,
       b.split_bytes, COALESCE(b.interval_start, r.interval_start, o.interval_start) AS interval_start,
       COALESCE(b.interval_end, r.interval_end, o.interval_end) AS interval_end,
       COALESCE(b.commit_seq, r.commit_seq) AS commit_seq,
       COALESCE(b.batch_time, r.batch_time) AS batch_time, b.replays, b.generation,
       COALESCE(b.admits, r.admits) AS admits, COALESCE(b.admission, r.admission) AS admission,
       COALESCE(b.judged_by, b.batch_id) AS judged_by,
       p.sink_address, p.archive_path, p.identity, p.shards, p.bucket_seconds, p.exact_from,
       p.sink_schema, p.commit_seq AS pipeline_seq, p.created_at
FROM semel.batch AS b
JOIN semel.pipeline AS p USING (pipeline_id)
LEFT JOIN semel.batch AS r ON r.batch_id = b.replays
LEFT JOIN semel.batch AS o ON o.batch_id = COALESCE(b.admits, r.admits)
WHERE b.batch_id = :batch_id;

-- name: known
-- What may be in a pipeline's target, with how much of it: the newest batches, NULL: all. `left`:
-- without the rows that were erased.
SELECT b.batch_id, COALESCE(b.replays, b.batch_id) AS root,
       COALESCE(b.commit_seq, r.commit_seq) AS commit_seq, a.fence, a.rows_written AS rows,
       a.rows_written - CAST(COALESCE((
           SELECT sum(e.rows) FROM semel.erasure AS e
           WHERE e.batch_id = COALESCE(b.replays, b.batch_id)), 0) AS bigint) AS "left",
       b.finalized_at, b.replaced_by IS NOT NULL AS replaced
FROM semel.batch AS b
JOIN semel.attempt AS a ON a.batch_id = b.batch_id AND a.status = 'won'
LEFT JOIN semel.batch AS r ON r.batch_id = b.replays
WHERE b.pipeline_id = :pipeline_id AND b.status IN ('committed', 'finalized')
ORDER BY b.batch_id DESC
LIMIT CAST(:newest AS bigint);

-- name: committed
-- Which attempts are in the output, or will be, and in which order they came.
SELECT b.batch_id, b.commit_seq, a.fence
FROM semel.batch AS b
JOIN semel.attempt AS a ON a.batch_id = b.batch_id AND a.status = 'won'
WHERE b.pipeline_id = :pipeline_id AND b.status IN ('committed', 'finalized');

-- name: failed
-- For the braces of other statements: whether no attempt at a planned batch `b` is at work, after at
-- least one. Its attempts are lost, or the last one's worker has died.
(<b>.status = 'planned'
 AND EXISTS (SELECT FROM semel.attempt AS t WHERE t.batch_id = <b>.batch_id)
 AND NOT EXISTS (
     SELECT FROM semel.attempt AS t
     WHERE t.batch_id = <b>.batch_id
       AND (t.status = 'staged' OR t.status = 'running' AND <b>.seen_at
            > clock_timestamp() - make_interval(secs => :silent_seconds))));

-- name: may_pack
-- For the braces of other statements: whether nobody needs more of a batch `b` than its marker and its
-- account. It is finalized for long, no batch replays it or judges its dead letters, and nothing of it
-- is erased; and it is none of the newest committed ones, which are compared with the target.
-- Keeps HI2.
(<b>.status = 'finalized' AND <b>.packed_in IS NULL
 AND <b>.finalized_at < statement_timestamp() - make_interval(secs => :keep_seconds)
 AND <b>.replays IS NULL AND <b>.admits IS NULL AND <b>.replaced_by IS NULL
 AND <b>.batch_id < (SELECT min(n.batch_id) FROM (
     SELECT n.batch_id FROM semel.batch AS n
     WHERE n.pipeline_id = :pipeline_id AND n.status IN ('committed', 'finalized')
     ORDER BY n.batch_id DESC LIMIT :newest) AS n)
 AND NOT EXISTS (SELECT FROM semel.batch AS r
                 WHERE COALESCE(r.replays, r.batch_id) = <b>.batch_id AND r.generation > 1
                   AND r.status <> 'abandoned')
 AND NOT EXISTS (SELECT FROM semel.batch AS a
                 WHERE a.admits = <b>.batch_id AND a.status <> 'abandoned')
 AND NOT EXISTS (SELECT FROM semel.erasure AS e WHERE e.batch_id = <b>.batch_id));
