-- lineage: what OpenLineage is told of a finalized batch that its account does not hold.

-- name: output
SELECT p.sink_address, a.sink_schema, count(f.*) AS files,
       coalesce(sum(f.bytes), 0)::int8 AS bytes
FROM semel.batch AS b
JOIN semel.pipeline AS p USING (pipeline_id)
JOIN semel.attempt AS a ON a.batch_id = b.batch_id AND a.status = 'won'
LEFT JOIN semel.manifest_file AS f ON f.attempt_id = a.attempt_id AND f.kind = 'data'
WHERE b.batch_id = :batch_id
GROUP BY p.sink_address, a.sink_schema;
