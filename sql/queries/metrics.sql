-- metrics: what Airflow's metrics are told that no verb answers.

-- name: lag
-- Since the oldest batch that is not finalized was planned.
SELECT coalesce(extract(epoch FROM clock_timestamp() - min(b.planned_at)), 0)::float8 AS seconds
FROM semel.pipeline AS p
JOIN semel.batch AS b USING (pipeline_id)
WHERE p.name = :pipeline AND b.status IN ('planned', 'committed');
