-- accept: a person's word on what plan refused.

-- name: retire
UPDATE semel.source_partition
SET retired_at = clock_timestamp()
WHERE pipeline_id = :pipeline_id AND retired_at IS NULL
  AND (path = :path OR (device = :device AND inode = :inode))
RETURNING source_partition_id, path, generation;

-- name: move_partition
UPDATE semel.source_partition
SET path = :path, device = :device, inode = :inode
WHERE source_partition_id = :source_partition_id AND retired_at IS NULL
RETURNING source_partition_id, path, generation;

-- name: settle
DELETE FROM semel.refusal WHERE pipeline_id = :pipeline_id AND path = :path;

-- name: forget_columns
UPDATE semel.pipeline SET sink_schema = NULL WHERE pipeline_id = :pipeline_id
RETURNING name;
