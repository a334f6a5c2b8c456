-- A sink is not always a folder: the ledger knows its address. And what semel keeps of a pipeline's
-- batches has a folder of its own, the archive, which may lie beside the sink.
ALTER TABLE semel.pipeline RENAME COLUMN sink_path TO sink_address;
ALTER TABLE semel.pipeline ADD COLUMN archive_path text;
-- Where each earlier version put it.
UPDATE semel.pipeline SET archive_path = sink_address || '/_semel';
ALTER TABLE semel.pipeline
    ALTER COLUMN archive_path SET NOT NULL,
    ADD CONSTRAINT pipeline_archive_unique UNIQUE (archive_path);
-- From PostgreSQL 18 on, NOT NULL is a constraint with a name, in which the column's old one stays.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_constraint WHERE conname = 'pipeline_sink_path_not_null') THEN
        ALTER TABLE semel.pipeline
            RENAME CONSTRAINT pipeline_sink_path_not_null TO pipeline_sink_address_not_null;
    END IF;
END $$;
