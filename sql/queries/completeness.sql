-- completeness: what a pipeline has read, in time.

-- name: pipeline
SELECT covered, event_time FROM semel.pipeline WHERE name = :name;

-- name: batch
SELECT covers, passed_from, passed_to FROM semel.batch WHERE batch_id = :batch_id;
