-- A task that stores ids locks its attempt with this function, because a plain FOR SHARE needs the right
-- to UPDATE attempts. Executors have no such right (sql/roles.sql).
CREATE FUNCTION semel.share_attempt(bigint) RETURNS TABLE (attempt_id bigint, status text)
    LANGUAGE sql SECURITY DEFINER ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'SELECT a.attempt_id, a.status FROM semel.attempt AS a WHERE a.attempt_id = $1 FOR SHARE';
REVOKE ALL ON FUNCTION semel.share_attempt(bigint) FROM PUBLIC;
