-- adopt: take over what a lost ledger's batches left.

-- name: now
SELECT clock_timestamp() AS now;

-- name: lock_numbers
-- Until the sequences have passed the numbers that are taken over, no plan draws a new one.
LOCK TABLE semel.source_partition, semel.batch IN SHARE ROW EXCLUSIVE MODE;

-- name: taken
-- Numbers that are given to others in this ledger.
SELECT 'batch' AS what, b.batch_id AS number, p.name
FROM semel.batch AS b JOIN semel.pipeline AS p USING (pipeline_id)
WHERE b.batch_id = ANY(CAST(:batches AS bigint[]))
UNION ALL
SELECT 'source partition', s.source_partition_id, p.name
FROM semel.source_partition AS s JOIN semel.pipeline AS p USING (pipeline_id)
WHERE s.source_partition_id = ANY(CAST(:partitions AS bigint[]))
ORDER BY what, number;

-- name: pass_numbers
-- Keeps D5.
-- Only upwards: what was drawn stays drawn.
SELECT setval(pg_get_serial_sequence('semel.batch', 'batch_id'),
              GREATEST(:batch_max, nextval(pg_get_serial_sequence('semel.batch', 'batch_id')))),
       setval(pg_get_serial_sequence('semel.source_partition', 'source_partition_id'),
              GREATEST(:partition_max,
                       nextval(pg_get_serial_sequence('semel.source_partition',
                                                      'source_partition_id'))));

-- name: insert_pipeline
INSERT INTO semel.pipeline (name, sink_address, archive_path, identity, shards, bucket_seconds,
                            commit_seq, batch_time_last, forgotten, sink_schema, exact_from,
                            created_at, covered, event_time)
VALUES (:name, :sink_address, :archive_path, :identity, :shards, :bucket_seconds, :commit_seq,
        COALESCE(:batch_time_last, CAST('1970-01-01 00:00:00+00' AS timestamptz)),
        CAST(:forgotten AS int8multirange), :sink_schema, :exact_from,
        -- By it the notes in its target are its own.
        COALESCE(CAST(:created_at AS timestamptz), clock_timestamp()),
        CAST(:covered AS tstzmultirange), CAST(:event_time AS timestamptz))
ON CONFLICT DO NOTHING
RETURNING pipeline_id;

-- name: insert_partitions
-- Of a closed one nobody knows more than what was read.
INSERT INTO semel.source_partition
    (source_partition_id, pipeline_id, name, generation, identity, fingerprint, settled, reached,
     seen, evidence, closed_at, accounted)
OVERRIDING SYSTEM VALUE
SELECT f.source_partition_id, :pipeline_id, f.name, f.generation, f.identity, f.fingerprint,
       f.settled, f.reached, f.seen, f.evidence, CASE WHEN f.closed THEN clock_timestamp() END,
       f.closed
FROM jsonb_to_recordset(CAST(:partitions AS jsonb))
         AS f (source_partition_id bigint, name text, generation int, identity text,
               fingerprint text, settled boolean, reached bigint, seen bigint, evidence jsonb,
               closed boolean);

-- name: insert_batches
-- A marker is written when all else of its batch is durable: so its batch is finalized.
INSERT INTO semel.batch
    (batch_id, pipeline_id, request_key, ordinal, status, spec, spec_digest, split_bytes,
     interval_start, interval_end, commit_seq, batch_time, planned_at, seen_at, committed_at,
     finalized_at, replays, generation, judged_by, admits, admission, covers)
OVERRIDING SYSTEM VALUE
SELECT b.batch_id, :pipeline_id, b.request_key, b.ordinal, 'finalized', b.spec,
       b.spec_digest, :split_bytes, b.interval_start, b.interval_end, b.commit_seq, b.batch_time,
       b.committed_at, b.committed_at, b.committed_at,
       -- When a replay was finalized nobody knows: what it replaced may be read still.
       CASE WHEN b.replays IS NULL THEN b.committed_at ELSE clock_timestamp() END,
       b.replays, b.generation, b.judged_by, b.admits, b.admission,
       b.covers
FROM jsonb_to_recordset(CAST(:batches AS jsonb))
         AS b (batch_id bigint, request_key text, ordinal int, spec jsonb, spec_digest text,
               interval_start timestamptz, interval_end timestamptz, commit_seq bigint,
               batch_time timestamptz, committed_at timestamptz, replays bigint, generation int,
               judged_by bigint, admits bigint, admission int, covers tstzmultirange);

-- name: replaced
-- Collect removes what is left of their files.
UPDATE semel.batch AS b SET replaced_by = r.replaced_by
FROM jsonb_to_recordset(CAST(:replaced AS jsonb)) AS r (batch_id bigint, replaced_by bigint)
WHERE b.batch_id = r.batch_id;

-- name: insert_attempts
INSERT INTO semel.attempt
    (batch_id, fence, status, snapshot_seq, forgotten, driver, input_digest, sink_schema,
     {<count>}, reason, started_at, staged_at, ended_at)
SELECT b.batch_id, a.fence, 'won', COALESCE(b.commit_seq, r.commit_seq) - 1, p.forgotten, 'adopt',
       a.input_digest, a.sink_schema, {a.<count>},
       'taken over by adopt', b.committed_at, b.committed_at, b.committed_at
FROM jsonb_to_recordset(CAST(:attempts AS jsonb))
         AS a (batch_id bigint, fence int, input_digest text, sink_schema text,
               {<count> bigint})
JOIN semel.batch AS b USING (batch_id)
JOIN semel.pipeline AS p USING (pipeline_id)
LEFT JOIN semel.batch AS r ON r.batch_id = b.replays;

-- name: insert_claims
INSERT INTO semel.claim (batch_id, ordinal, source_partition_id, span, evidence, time_min, time_max)
SELECT c.batch_id, c.ordinal, c.source_partition_id, int8range(c.start, c."end"), c.evidence,
       c.time_min, c.time_max
FROM jsonb_to_recordset(CAST(:claims AS jsonb))
         AS c (batch_id bigint, ordinal int, source_partition_id bigint, start bigint, "end" bigint,
               evidence jsonb, time_min timestamptz, time_max timestamptz);

-- name: insert_files
-- The staged names are gone; nobody asks for those of a finalized batch.
INSERT INTO semel.manifest_file (attempt_id, batch_id, ordinal, kind, staged_path, final_path,
                                 records, bytes, checksum)
SELECT a.attempt_id, f.batch_id, f.ordinal, f.kind, '', f.final_path, f.records, f.bytes, f.checksum
FROM jsonb_to_recordset(CAST(:files AS jsonb))
         AS f (batch_id bigint, ordinal int, kind text, final_path text, records bigint,
               bytes bigint, checksum text)
JOIN semel.attempt AS a ON a.batch_id = f.batch_id AND a.status = 'won';
