-- A record is late only when the ids of its bucket were forgotten: the buckets of the runs that were
-- retired by age. Those that nobody ever read are open again.
ALTER TABLE semel.id_run ADD COLUMN buckets int8multirange;
UPDATE semel.id_run SET buckets = int8multirange(int8range(bucket_start, bucket_end))
WHERE bucket_start IS NOT NULL;
ALTER TABLE semel.id_run
    DROP COLUMN bucket_start,
    DROP COLUMN bucket_end,
    ADD CONSTRAINT id_run_buckets_whole CHECK (NOT isempty(buckets));

-- What a pipeline had forgotten before it was adopted, no run tells: all below its watermark.
ALTER TABLE semel.pipeline ADD COLUMN forgotten int8multirange NOT NULL DEFAULT '{}';
UPDATE semel.pipeline AS p SET forgotten = COALESCE(
    CASE WHEN EXISTS (SELECT FROM semel.attempt AS a JOIN semel.batch AS b USING (batch_id)
                      WHERE b.pipeline_id = p.pipeline_id AND a.driver = 'adopt')
         THEN int8multirange(int8range(CAST('-9223372036854775808' AS bigint), p.gc_floor))
         ELSE (SELECT range_agg(s.span) FROM semel.id_run AS r, unnest(r.buckets) AS s (span)
               WHERE r.pipeline_id = p.pipeline_id AND r.retired_at IS NOT NULL
                 AND r.retired_by IS NULL AND r.seq_min IS NOT NULL)
    END, '{}')
WHERE p.gc_floor > CAST('-9223372036854775808' AS bigint);
ALTER TABLE semel.pipeline DROP COLUMN gc_floor;

ALTER TABLE semel.attempt
    ADD COLUMN forgotten int8multirange NOT NULL DEFAULT '{}',
    ADD COLUMN buckets int8multirange;
UPDATE semel.attempt
SET forgotten = int8multirange(int8range(CAST('-9223372036854775808' AS bigint), gc_floor))
WHERE gc_floor > CAST('-9223372036854775808' AS bigint);
-- Of an attempt that may still win: from its first open bucket to the last of its runs.
UPDATE semel.attempt AS a
SET buckets = (SELECT int8multirange(int8range(a.bucket_min, upper(r.buckets)))
               FROM semel.id_run AS r WHERE r.attempt_id = a.attempt_id LIMIT 1)
WHERE a.bucket_min IS NOT NULL AND a.status = 'staged';
ALTER TABLE semel.attempt
    ALTER COLUMN forgotten DROP DEFAULT,
    DROP COLUMN gc_floor,
    DROP COLUMN bucket_min;
