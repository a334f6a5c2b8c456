-- pipelines: the row of each, for every verb; plan makes it.

-- name: by_name
SELECT pipeline_id, name, sink_address, archive_path, identity, shards, bucket_seconds, commit_seq,
       sink_schema, created_at, exact_from
FROM semel.pipeline
WHERE name = :name;

-- name: by_id
SELECT pipeline_id, name, sink_address, archive_path, identity, shards, bucket_seconds, commit_seq,
       sink_schema, created_at, exact_from
FROM semel.pipeline
WHERE pipeline_id = :pipeline_id;

-- name: owner
SELECT pipeline_id, name, sink_address, archive_path, identity, shards, bucket_seconds, commit_seq,
       sink_schema, created_at, exact_from
FROM semel.pipeline
WHERE sink_address = :sink_address OR archive_path = :archive_path
ORDER BY sink_address <> :sink_address
LIMIT 1;

-- name: lock
-- NO KEY: inserting a row that references the pipeline takes FOR KEY SHARE, which FOR UPDATE blocks.
SELECT sink_address, archive_path FROM semel.pipeline WHERE pipeline_id = :pipeline_id
FOR NO KEY UPDATE;

-- name: insert
INSERT INTO semel.pipeline (name, sink_address, archive_path, identity, shards, bucket_seconds,
                            exact_from)
VALUES (:name, :sink_address, :archive_path, :identity, :shards, :bucket_seconds, :exact_from)
-- Its name or its sink is known: what that means is decided after this statement.
ON CONFLICT DO NOTHING;

-- name: guarantee
-- Keeps P24.
-- Nothing has committed yet: there is no repeat, and no id to know.
UPDATE semel.pipeline SET exact_from = :exact_from
WHERE pipeline_id = :pipeline_id AND commit_seq = 0
RETURNING exact_from;

-- name: move_sink
-- Not under a batch that is on its way: its files and its marker would part.
UPDATE semel.pipeline AS p SET sink_address = :sink_address, archive_path = :archive_path
WHERE p.pipeline_id = :pipeline_id
  AND NOT EXISTS (SELECT FROM semel.batch AS b
                  WHERE b.pipeline_id = p.pipeline_id AND b.status IN ('planned', 'committed'))
RETURNING sink_address;

-- name: rename_sink
-- A table or topic, whose notes have proven that it is the same.
UPDATE semel.pipeline SET sink_address = :sink_address WHERE pipeline_id = :pipeline_id;

-- name: last_finalized
SELECT batch_id FROM semel.batch
WHERE pipeline_id = :pipeline_id AND status = 'finalized' AND replays IS NULL
ORDER BY commit_seq DESC
LIMIT 1;
