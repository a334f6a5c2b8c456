-- The role of Spark's executors: it reads runs of the catalog and writes id runs, and nothing else.
-- The ledger's owner runs this, with the right to create roles (else an administrator runs the first
-- statement), after the first `semel migrate` and after each upgrade:
--     semel migrate --roles | psql --set ON_ERROR_STOP=1 "$SEMEL_LEDGER_DSN"
-- Then create a user for the executors' SEMEL_LEDGER_DSN:
--     CREATE ROLE semel_spark LOGIN PASSWORD '...' IN ROLE semel_executor;
-- All databases of a server share its roles. A user of two ledgers can write ids to both.

DO $$ BEGIN
    CREATE ROLE semel_executor NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;  -- It exists.
END $$;

BEGIN;
REVOKE ALL ON ALL TABLES IN SCHEMA semel FROM semel_executor;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA semel FROM semel_executor;
REVOKE ALL ON ALL ROUTINES IN SCHEMA semel FROM semel_executor;
REVOKE ALL ON SCHEMA semel FROM semel_executor;
GRANT USAGE ON SCHEMA semel TO semel_executor;

-- A task checks that this is the ledger of its attempt, and locks the attempt while it stores ids.
GRANT SELECT (attempt_id, started_at) ON semel.attempt TO semel_executor;
GRANT EXECUTE ON FUNCTION semel.share_attempt(bigint) TO semel_executor;

-- It stores headers that no batch can see yet: seq_min, seq_max, expires_at are commit's alone.
GRANT SELECT (id_run_id, pipeline_id, attempt_id, shard, buckets, seq_min, seq_max, expires_at,
              segment_id, ids, filter_bytes, checksum),
      INSERT (pipeline_id, attempt_id, shard, buckets, segment_id, ids, filter_bytes, checksum,
              asked, false_hits)
    ON semel.id_run TO semel_executor;

-- The tables of ids. Stage grants the same on each table that it creates later.
DO $$ DECLARE segment bigint; BEGIN
    FOR segment IN SELECT segment_id FROM semel.segment WHERE dropped_at IS NULL LOOP
        EXECUTE format('GRANT SELECT, INSERT ON semel.%I TO semel_executor', 'ids_' || segment);
    END LOOP;
END $$;
COMMIT;
