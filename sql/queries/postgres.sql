-- The Postgres sink: statements for the target, which is any PostgreSQL and no ledger. What stands
-- in braces is put in by the sink, quoted: names, and beside them values (a name may hold a %).

-- name: settings
SELECT set_config('synchronous_commit', 'on', true), set_config('lock_timeout', %(lock)s, true),
       set_config('idle_in_transaction_session_timeout', %(idle)s, true),
       set_config('TimeZone', 'UTC', true),
       set_config('DateStyle', 'ISO, YMD', true),
       set_config('standard_conforming_strings', 'on', true),
       set_config('tcp_keepalives_idle', '30', true),
       set_config('tcp_keepalives_interval', '10', true),
       set_config('tcp_keepalives_count', '6', true),
       -- Millions of rows take what they take; PostgreSQL has the second one from 17 on.
       set_config('statement_timeout', '0', true),
       CASE WHEN current_setting('server_version_num')::integer >= 170000
            THEN set_config('transaction_timeout', '0', true) END;

-- name: server
SELECT current_setting('server_version_num')::integer AS version,
       current_setting('server_encoding') AS encoding,
       current_setting('transaction_read_only') = 'on' AS read_only,
       has_database_privilege(current_database(), 'TEMP') AS may_temp,
       n.oid IS NOT NULL AS has_schema,
       coalesce(has_schema_privilege(n.oid, 'USAGE'), false) AS may_use,
       coalesce(has_schema_privilege(n.oid, 'CREATE'), false) AS may_create,
       b.oid IS NOT NULL AS has_batches,
       coalesce(has_table_privilege(b.oid, 'SELECT') AND has_table_privilege(b.oid, 'INSERT')
                AND has_table_privilege(b.oid, 'UPDATE'), false) AS may_note,
       t.oid AS oid, t.relkind::text AS kind,
       t.relpersistence = 'u' AS unlogged, b.relpersistence = 'u' AS batches_unlogged,
       pg_has_role(t.relowner, 'USAGE') AS is_owner,
       has_table_privilege(t.oid, 'INSERT') AS may_insert,
       has_table_privilege(t.oid, 'UPDATE') AS may_update,
       coalesce(row_security_active(t.oid), false) AS row_security
FROM (SELECT 1) AS one
LEFT JOIN pg_namespace AS n ON n.nspname = %(schema)s
LEFT JOIN pg_class AS b ON b.relnamespace = n.oid AND b.relname = %(batches)s
LEFT JOIN pg_class AS t ON t.relnamespace = n.oid AND t.relname = %(table)s;

-- name: columns
SELECT a.attname AS name, format_type(a.atttypid, NULL) AS type, a.atttypmod AS typmod,
       a.attnotnull AS not_null,
       a.atthasdef OR a.attidentity <> '' AS has_default,
       a.attgenerated <> '' OR a.attidentity = 'a' AS generated,
       coalesce(c.collisdeterministic, true) AS deterministic,
       has_column_privilege(a.attrelid, a.attnum, 'INSERT') AS may_insert,
       has_column_privilege(a.attrelid, a.attnum, 'SELECT') AS may_select,
       has_column_privilege(a.attrelid, a.attnum, 'UPDATE') AS may_update
FROM pg_attribute AS a
LEFT JOIN pg_collation AS c ON c.oid = a.attcollation
WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum;

-- name: unique_keys
SELECT array_agg(a.attname::text ORDER BY k.at) AS columns, NOT i.indimmediate AS deferred
FROM pg_index AS i
CROSS JOIN unnest(i.indkey::smallint[]) WITH ORDINALITY AS k(number, at)
JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = %(oid)s AND i.indisunique AND i.indisvalid
  AND i.indpred IS NULL AND i.indexprs IS NULL AND k.at <= i.indnkeyatts
GROUP BY i.indexrelid;

-- name: rules
-- What may refuse a row: a CHECK with its text; and other things, of which only the kind is known.
-- Of triggers those that act on what is put in, also of a part of the table.
WITH RECURSIVE family (oid) AS (
    SELECT %(oid)s::oid
    UNION
    SELECT i.inhrelid FROM family AS f JOIN pg_inherits AS i ON i.inhparent = f.oid
)
SELECT c.conname::text AS name, c.contype::text AS kind, pg_get_constraintdef(c.oid) AS text,
       ARRAY(SELECT a.attname::text FROM pg_attribute AS a
             WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)) AS columns
FROM pg_constraint AS c
WHERE c.conrelid = %(oid)s AND c.contype IN ('c', 'f', 'u', 'p', 'x')
UNION ALL
SELECT tgname::text, 't', tgrelid::regclass::text, ARRAY[]::text[]
FROM pg_trigger
WHERE tgrelid IN (SELECT oid FROM family) AND NOT tgisinternal AND tgparentid = 0
  AND tgtype & 20 <> 0 AND tgenabled <> 'D'
UNION ALL
SELECT rulename::text, 'r', '', ARRAY[]::text[]
FROM pg_rewrite
WHERE ev_class = %(oid)s AND ev_type IN ('2', '3') AND ev_enabled <> 'D'
ORDER BY 1;

-- name: repeats
-- A key that several rows have.
SELECT 1 FROM {table} GROUP BY {key} HAVING count(*) > 1 LIMIT 1;

-- name: lock_schema
SELECT pg_advisory_xact_lock(hashtextextended('semel sink ' || %(schema)s, 0));

-- name: create_batches
CREATE TABLE IF NOT EXISTS {batches} (
    -- This prevents that a batch lands twice.
    PRIMARY KEY (table_name, pipeline, batch_id),
    table_name   text        NOT NULL,
    pipeline     text        NOT NULL,
    batch_id     bigint      NOT NULL,
    fence        integer     NOT NULL,
    commit_seq   bigint      NOT NULL,
    digest       text        NOT NULL,
    rows         bigint      NOT NULL,
    refused      bigint      NOT NULL DEFAULT 0,
    generation   integer     NOT NULL,
    ledger       text        NOT NULL,
    mode         text        NOT NULL,
    published_at timestamptz NOT NULL DEFAULT now()
);

-- name: look
SELECT digest, refused
FROM {batches}
WHERE table_name = {table} AND pipeline = {pipeline} AND batch_id = {batch_id};

-- name: note
INSERT INTO {batches} (table_name, pipeline, batch_id, fence, commit_seq, digest, rows, generation,
                       ledger, mode)
VALUES ({table}, {pipeline}, {batch_id}, {fence}, {commit_seq}, {digest}, {rows}, {generation},
        {ledger}, {mode})
ON CONFLICT (table_name, pipeline, batch_id) DO NOTHING
RETURNING batch_id;

-- name: note_refused
UPDATE {batches} SET rows = rows - {refused}, refused = {refused}
WHERE table_name = {table} AND pipeline = {pipeline} AND batch_id = {batch_id};

-- name: hold_table
LOCK TABLE {table} IN ROW EXCLUSIVE MODE;

-- name: copy
COPY {into} ({columns}) FROM STDIN (FORMAT binary);

-- name: make_incoming
CREATE TEMP TABLE {incoming} ON COMMIT DROP AS SELECT {columns} FROM {table} WITH NO DATA;

-- name: upsert
-- In the order of the key: two finalizers lock the rows that they share in one order.
INSERT INTO {table} AS stored ({columns})
SELECT {columns} FROM {incoming} ORDER BY {key}
ON CONFLICT ({key}) DO UPDATE SET {assignments}
WHERE coalesce(stored._semel_seq, 0) < excluded._semel_seq;

-- name: rows_there
-- Those of a batch, in mode append.
SELECT count(*) AS rows FROM {table} WHERE _semel_batch = {batch_id} AND _semel_seq = {commit_seq};

-- name: rows_lacking
-- Those whose key has neither this batch's row nor one of a later commit, in mode upsert.
SELECT count(*) AS rows FROM {incoming} AS incoming
WHERE NOT EXISTS (SELECT FROM {table} AS there
                  WHERE {same}
                    AND (there._semel_seq > {commit_seq}
                         OR there._semel_seq = {commit_seq} AND there._semel_batch = {batch_id}));

-- name: rows
SELECT {columns} FROM {table} WHERE _semel_batch = {batch_id};

-- name: create_index
-- A few pages: the rows of a batch lie together, and are found without reading the whole table.
CREATE INDEX ON {table} USING brin (_semel_batch) WITH (autosummarize = on);

-- name: comment
-- What stands at the name of the view of windows.
SELECT c.relkind::text AS kind, obj_description(c.oid, 'pg_class') AS comment
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(view)s;

-- name: beside
-- What stands at the names of the tables beside the view, and its columns.
SELECT c.relname::text AS name, array_agg(a.attname::text ORDER BY a.attnum) AS columns
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = %(schema)s AND c.relname = ANY(%(names)s)
GROUP BY c.oid;

-- name: create_windows
CREATE TABLE IF NOT EXISTS {windows} (
    slice        timestamptz NOT NULL,
    window_start timestamptz NOT NULL,
    window_end   timestamptz NOT NULL,
    PRIMARY KEY (window_start, slice)
);
CREATE TABLE IF NOT EXISTS {complete} (
    table_name   text PRIMARY KEY,
    covered      tstzmultirange NOT NULL,
    delay        interval NOT NULL
);

-- name: forget_complete
-- What is said of a table that was there before, and is gone.
DELETE FROM {complete} WHERE table_name = {table};

-- name: create_start_index
CREATE INDEX ON {table} ({start});

-- name: windows
(SELECT w.slice, w.window_start, w.window_end,
        coalesce(c.covered @> tstzrange(w.window_start, w.window_end + c.delay), false) AS final
 FROM {windows} AS w LEFT JOIN {complete} AS c ON c.table_name = {table});

-- name: create_view
CREATE VIEW {view} AS {merged};

-- name: comment_view
COMMENT ON VIEW {view} IS {comment};

-- name: counted
SELECT * FROM {view}
WHERE _semel_level = {level} AND window_start >= {since}
  AND window_start < coalesce(CAST({until} AS timestamptz), 'infinity')
ORDER BY window_start DESC LIMIT {count};

-- name: all_counted
SELECT * FROM {view} ORDER BY window_start, _semel_level;

-- name: note_windows
-- {edges}: starts of slices, in seconds since 1970, without gaps around those at {places} (from 1 on).
-- In one order, so that two batches that note the same ones wait for each other and no more.
WITH edge AS (
    SELECT to_timestamp(seconds) AS at, place
    FROM unnest(CAST({edges} AS bigint[])) WITH ORDINALITY AS e (seconds, place)
)
INSERT INTO {windows} (slice, window_start, window_end)
SELECT s.at, first.at, until.at
FROM unnest(CAST({places} AS bigint[])) AS slice (place)
JOIN edge AS s USING (place)
CROSS JOIN generate_series(0, {count} - 1) AS n
JOIN edge AS first ON first.place = s.place - n
JOIN edge AS until ON until.place = first.place + {count}
ORDER BY 2, 1
ON CONFLICT DO NOTHING;

-- name: note_complete
-- The delay in seconds: a day of an interval may have 23 hours where the reader is.
INSERT INTO {complete} AS c (table_name, covered, delay)
VALUES ({table}, CAST({covered} AS tstzmultirange), make_interval(secs => {delay}))
ON CONFLICT (table_name) DO UPDATE
SET covered = c.covered + excluded.covered, delay = excluded.delay;

-- name: create_key
CREATE UNIQUE INDEX ON {table} ({key});

-- name: notes
SELECT * FROM {batches} WHERE table_name = {table} ORDER BY batch_id;

-- name: newest_notes
-- The newest of a pipeline, and one of others.
(SELECT * FROM {batches} WHERE table_name = {table} AND pipeline = {pipeline}
 ORDER BY batch_id DESC LIMIT {newest})
UNION ALL
(SELECT * FROM {batches} WHERE table_name = {table} AND pipeline < {pipeline} LIMIT 1)
UNION ALL
(SELECT * FROM {batches} WHERE table_name = {table} AND pipeline > {pipeline} LIMIT 1);

-- name: unnoted
-- Whether rows of any batch are there.
SELECT EXISTS (SELECT FROM {table} WHERE _semel_batch IS NOT NULL) AS there;

-- name: told
-- What is said of a batch, of the newest output at its place in the order of commits, and of later
-- places whose rows may have taken those of others.
SELECT (SELECT rows FROM {batches}
        WHERE table_name = {table} AND pipeline = {pipeline} AND batch_id = {batch_id}) AS rows,
       coalesce(max(batch_id) FILTER (WHERE commit_seq = {commit_seq}), 0) AS newest,
       count(*) FILTER (WHERE commit_seq > {commit_seq} AND mode = 'upsert') > 0 AS later
FROM {batches}
WHERE table_name = {table} AND pipeline = {pipeline} AND commit_seq >= {commit_seq};

-- name: strays
SELECT _semel_batch AS batch_id, count(*) AS rows FROM {table}
WHERE _semel_batch <> ALL (CAST({known} AS bigint[]))
GROUP BY 1;

-- name: delete
-- The rows that a replay replaces.
DELETE FROM {rows} WHERE _semel_batch IN ({replaced}) AND _semel_seq = {commit_seq};

-- name: left
-- What is still there of them. Counted, so that the planner takes the way that `delete` takes.
SELECT count(*) AS rows FROM {rows}
WHERE _semel_batch IN ({replaced}) AND _semel_seq = {commit_seq};

-- name: may_delete
-- Whether rows can be found and deleted, by rights and index.
SELECT t.oid,
       has_table_privilege(t.oid, 'DELETE')
       AND has_column_privilege(t.oid, '_semel_batch', 'SELECT')
       AND has_column_privilege(t.oid, '_semel_seq', 'SELECT') AS may_delete,
       has_column_privilege(t.oid, '_semel_batch', 'SELECT')
       AND has_column_privilege(t.oid, '_semel_seq', 'SELECT') AS may_find,
       EXISTS (SELECT FROM pg_index AS i
               JOIN pg_class AS c ON c.oid = i.indexrelid
               JOIN pg_am AS m ON m.oid = c.relam
               JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attname = '_semel_batch'
               WHERE i.indrelid = t.oid AND i.indisvalid AND i.indpred IS NULL
                 AND (i.indkey[0] = a.attnum
                      OR m.amname = 'brin' AND a.attnum = ANY (i.indkey::smallint[]))) AS indexed
FROM pg_class AS t
JOIN pg_namespace AS n ON n.oid = t.relnamespace
WHERE n.nspname = %(schema)s AND t.relname = %(table)s;

-- name: of_deletes
-- What acts on a deleted row of a table, or of a part of it: foreign keys, rules, triggers.
WITH RECURSIVE family (oid) AS (
    SELECT %(oid)s::oid
    UNION
    SELECT i.inhrelid FROM family AS f JOIN pg_inherits AS i ON i.inhparent = f.oid
)
SELECT c.contype::text AS kind, quote_ident(c.conname) AS name, c.conrelid::regclass::text AS place
FROM pg_constraint AS c
WHERE c.contype = 'f' AND c.conparentid = 0 AND c.confrelid IN (SELECT oid FROM family)
  AND pg_get_constraintdef(c.oid) NOT LIKE '%%NOT ENFORCED'
UNION ALL
SELECT 'r', quote_ident(rulename), ev_class::regclass::text
FROM pg_rewrite
WHERE ev_class = %(oid)s AND ev_type = '4' AND ev_enabled <> 'D'
UNION ALL
SELECT 't', quote_ident(tgname), tgrelid::regclass::text
FROM pg_trigger
WHERE tgrelid IN (SELECT oid FROM family) AND NOT tgisinternal AND tgparentid = 0
  AND tgtype & 8 <> 0 AND tgenabled <> 'D'
ORDER BY 1, 2, 3;
