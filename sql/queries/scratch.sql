-- scratch: a database beside the ledger, for one compare. {database} stands for its quoted name.

-- name: hold
-- One at a time makes or removes them: between CREATE and its maker's `keep` nobody else may look.
SELECT pg_advisory_lock(:key);

-- name: release
SELECT pg_advisory_unlock(:key);

-- name: create
-- template0: what an administrator put into template1 is not the ledger's.
CREATE DATABASE {database} TEMPLATE template0;

-- name: user
SELECT current_user AS name;

-- name: keep
-- While its maker lives, it holds a lock in it.
SELECT pg_advisory_lock(:key), set_config('idle_session_timeout', '0', false);

-- name: left
-- Those of this user in which no maker holds a lock.
SELECT d.datname AS name
FROM pg_database AS d
WHERE pg_get_userbyid(d.datdba) = current_user
  AND left(d.datname, length(CAST(:beginning AS text))) = :beginning
  AND NOT EXISTS (SELECT FROM pg_locks AS l
                  WHERE l.database = d.oid AND l.locktype = 'advisory' AND l.granted);

-- name: there
SELECT d.datname AS name
FROM pg_database AS d
WHERE left(d.datname, length(CAST(:beginning AS text))) = :beginning;

-- name: drop
DROP DATABASE IF EXISTS {database} WITH (FORCE);
