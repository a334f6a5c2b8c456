-- plan: fix the batch before any work.

-- name: pipeline
SELECT pipeline_id, name, sink_path, identity, shards, bucket_seconds, commit_seq, gc_floor, sink_schema
FROM semel.pipeline
WHERE name = :name;

-- name: insert_pipeline
INSERT INTO semel.pipeline (name, sink_path, identity, shards, bucket_seconds)
VALUES (:name, :sink_path, :identity, :shards, :bucket_seconds)
-- Its name or its sink is known: what that means is decided after this statement.
ON CONFLICT DO NOTHING;

-- name: sink_owner
SELECT name FROM semel.pipeline WHERE sink_path = :sink_path;

-- name: move_sink
-- Not under a batch that is on its way: its files and its marker would part.
UPDATE semel.pipeline AS p SET sink_path = :sink_path
WHERE p.pipeline_id = :pipeline_id
  AND NOT EXISTS (SELECT FROM semel.batch AS b
                  WHERE b.pipeline_id = p.pipeline_id AND b.status IN ('planned', 'committed'))
RETURNING sink_path;

-- name: lock_pipeline
-- NO KEY: inserting a row that references the pipeline takes FOR KEY SHARE, which FOR UPDATE blocks.
SELECT sink_path FROM semel.pipeline WHERE pipeline_id = :pipeline_id FOR NO KEY UPDATE;

-- name: latest_batch
SELECT batch_id, pipeline_id, request_key, ordinal, status, spec, spec_digest, split_bytes,
       interval_start, interval_end, commit_seq, batch_time
FROM semel.batch
WHERE pipeline_id = :pipeline_id AND request_key = :request_key
ORDER BY ordinal DESC
LIMIT 1;

-- name: known
SELECT source_partition_id, path, generation, device, inode, head_length, head_hash,
       tail_end, tail_hash
FROM semel.source_partition
WHERE pipeline_id = :pipeline_id
  AND retired_at IS NULL
  AND (path = ANY(CAST(:paths AS text[]))
       OR inode = ANY(CAST(:inodes AS bigint[]))
       -- What may have been copied and cut: a short head tells nothing by its hash.
       OR (tail_end > 0
           AND (head_length < :head_bytes OR head_hash = ANY(CAST(:heads AS text[])))))
ORDER BY source_partition_id;

-- name: orphans
-- A planned batch that holds what we want and has not been heard of for too long.
SELECT b.batch_id
FROM semel.batch AS b
WHERE b.pipeline_id = :pipeline_id
  AND b.status = 'planned'
  AND b.request_key <> :request_key
  AND b.seen_at < clock_timestamp() - make_interval(secs => :orphan_seconds)
  AND EXISTS (SELECT FROM semel.claim AS c
              WHERE c.batch_id = b.batch_id
                AND c.source_partition_id = ANY(CAST(:partitions AS bigint[])))
ORDER BY b.batch_id;

-- name: free
-- Of each wanted partition up to its last record end: what no batch but an orphan has claimed.
SELECT w.source_partition_id, lower(f.span) AS start, upper(f.span) AS "end"
FROM unnest(CAST(:partitions AS bigint[]), CAST(:ends AS bigint[]))
         AS w (source_partition_id, record_end)
CROSS JOIN LATERAL (
    SELECT unnest(int8multirange(int8range(0, w.record_end))
                  - COALESCE(range_agg(c.span), CAST('{}' AS int8multirange))) AS span
    FROM semel.claim AS c
    WHERE c.source_partition_id = w.source_partition_id
      AND NOT c.batch_id = ANY(CAST(:orphans AS bigint[]))
) AS f
ORDER BY w.source_partition_id, start;

-- name: next_generation
SELECT path, max(generation) AS generation
FROM semel.source_partition
WHERE pipeline_id = :pipeline_id AND path = ANY(CAST(:paths AS text[]))
GROUP BY path;

-- name: retire_partitions
-- Their files are gone, and new files were given their inodes.
UPDATE semel.source_partition SET retired_at = clock_timestamp()
WHERE source_partition_id = ANY(CAST(:partitions AS bigint[]));

-- name: insert_partitions
INSERT INTO semel.source_partition
    (pipeline_id, path, generation, device, inode, head_length, head_hash)
SELECT :pipeline_id, path, generation, device, inode, head_length, head_hash
FROM unnest(CAST(:paths AS text[]), CAST(:generations AS int[]), CAST(:devices AS bigint[]),
            CAST(:inodes AS bigint[]), CAST(:head_lengths AS int[]), CAST(:heads AS text[]))
         AS f (path, generation, device, inode, head_length, head_hash)
RETURNING source_partition_id, path;

-- name: update_partitions
-- A file that was renamed keeps its partition; a file that grew gets a longer head; what is claimed
-- now moves the tail.
UPDATE semel.source_partition AS p
SET path = f.path, device = f.device, head_length = f.head_length, head_hash = f.head_hash,
    tail_end = f.tail_end, tail_hash = f.tail_hash
FROM unnest(CAST(:partitions AS bigint[]), CAST(:paths AS text[]), CAST(:devices AS bigint[]),
            CAST(:head_lengths AS int[]), CAST(:heads AS text[]), CAST(:tail_ends AS bigint[]),
            CAST(:tails AS text[]))
         AS f (source_partition_id, path, device, head_length, head_hash, tail_end, tail_hash)
WHERE p.source_partition_id = f.source_partition_id;

-- name: insert_batch
INSERT INTO semel.batch (pipeline_id, request_key, ordinal, spec, spec_digest, split_bytes,
                         interval_start, interval_end)
VALUES (:pipeline_id, :request_key, :ordinal, CAST(:spec AS jsonb), :spec_digest, :split_bytes,
        :interval_start, :interval_end)
RETURNING batch_id, pipeline_id, request_key, ordinal, status, spec, spec_digest, split_bytes,
          interval_start, interval_end, commit_seq, batch_time;

-- name: insert_claims
INSERT INTO semel.claim (batch_id, ordinal, source_partition_id, span, tail_hash)
SELECT :batch_id, c.ordinal - 1, c.source_partition_id, int8range(c.start, c."end"), c.tail_hash
FROM unnest(CAST(:partitions AS bigint[]), CAST(:starts AS bigint[]), CAST(:ends AS bigint[]),
            CAST(:tails AS text[]))
         WITH ORDINALITY AS c (source_partition_id, start, "end", tail_hash, ordinal);

-- name: claims
SELECT c.ordinal, c.source_partition_id, p.path, p.device, p.inode, p.head_length, p.head_hash,
       lower(c.span) AS start, upper(c.span) AS "end", c.tail_hash
FROM semel.claim AS c
JOIN semel.source_partition AS p USING (source_partition_id)
WHERE c.batch_id = :batch_id
ORDER BY c.ordinal;

-- name: clear_refusals
-- A plan of one interval has looked only at the files of that interval.
DELETE FROM semel.refusal
WHERE pipeline_id = :pipeline_id
  AND (:everything
       OR path = ANY(CAST(:paths AS text[]))
       -- These every listing finds anew, whatever the interval.
       OR reason IN ('name', 'symlink', 'unreadable', 'missing', 'kind', 'interval'));

-- name: insert_refusals
INSERT INTO semel.refusal (pipeline_id, path, reason, detail)
SELECT :pipeline_id, path, reason, detail
FROM unnest(CAST(:paths AS text[]), CAST(:reasons AS text[]), CAST(:details AS text[]))
         AS r (path, reason, detail)
ON CONFLICT (pipeline_id, path) DO NOTHING;
