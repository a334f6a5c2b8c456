-- assets: which finalized batches Airflow is to be told of.

-- name: finalized
-- Nothing, when it was finalized so long ago that Airflow may have forgotten its event.
SELECT batch_id, COALESCE(replays, batch_id) AS root, generation, finalized_at
FROM semel.batch
WHERE batch_id = :batch_id
  AND finalized_at > clock_timestamp() - make_interval(secs => :window_seconds);

-- name: lately
-- Committed so long ago that no run will come back to tell of them.
SELECT b.batch_id, COALESCE(b.replays, b.batch_id) AS root, b.generation, b.finalized_at
FROM semel.batch AS b
JOIN semel.pipeline AS p USING (pipeline_id)
WHERE p.name = :pipeline AND b.status = 'finalized'
  AND b.committed_at < clock_timestamp() - make_interval(secs => :orphan_seconds)
  AND b.finalized_at > clock_timestamp() - make_interval(secs => :window_seconds)
ORDER BY b.finalized_at DESC
LIMIT :batches_max;
