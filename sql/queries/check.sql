-- check: whether driver and executors see one ledger.

-- name: wait
-- This transaction idles while executors look for its lock.
SELECT set_config('lock_timeout', '0', true),
       set_config('idle_in_transaction_session_timeout', '0', true);

-- name: server
SELECT current_setting('server_version') AS version,
       CAST(current_setting('server_version_num') AS int) AS version_num,
       pg_is_in_recovery() AS standby;

-- name: hold
-- Held until the transaction ends: who sees this lock is in the same database.
SELECT pg_advisory_xact_lock(:key);

-- name: look
SELECT EXISTS (
           SELECT FROM pg_locks
           WHERE locktype = 'advisory' AND granted
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
             AND (CAST(classid AS bigint) << 32) + CAST(objid AS bigint) = :key
       ) AS held,
       CAST(current_user AS text) AS user_name, current_database() AS database,
       extract(epoch FROM clock_timestamp()) AS now_seconds;
