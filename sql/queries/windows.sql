-- windows: the rows of windows, merged from partial rows, in DuckDB and in PostgreSQL.

-- name: level
-- Of one level; GROUPING SETS would do for all, but then PostgreSQL computes all windows before it
-- looks for those that are asked for. {start} is that of the partial rows where a window is one slice,
-- so that their index finds those of some windows.
SELECT {start} AS window_start, w.window_end, w.final, {columns}, {number} AS _semel_level
FROM {parts} AS p
JOIN {windows} AS w ON w.slice = p.window_start
GROUP BY {by};

-- name: level_alone
-- The same from partial rows alone, without what markers or a calendar tell.
SELECT p.window_start, {columns}, {number} AS _semel_level
FROM {parts} AS p
GROUP BY {by};

-- name: of_files
-- For a person's DuckDB: the batches that markers list, whole. {slices}: how many make a window. Keys are in
-- the files; those of earlier versions have them in the names of their folders alone.
SET VARIABLE files = (
    SELECT list({folder} || file.path)
    FROM (SELECT unnest(files) AS file FROM read_json({markers})) WHERE file.kind = 'data');
WITH stored AS (
    SELECT CAST(NULL AS TIMESTAMPTZ) AS window_start{empty} WHERE false
    UNION ALL BY NAME
    FROM read_parquet(getvariable('files'), hive_partitioning = false, union_by_name = true,
                      filename = '_semel_file')
), parts AS (
    SELECT * REPLACE ({start} - _semel_slice * INTERVAL '{seconds} seconds' AS window_start{keys})
    FROM stored, range({slices}) AS slices(_semel_slice))
{merged}
ORDER BY ALL;

-- name: of_folder
-- A key, from the file or from its folder's name.
COALESCE({column}, CAST(url_decode(NULLIF(split_part(split_part(substr(_semel_file, {at}), {name}, 2),
    '/', 1), {nothing})) AS {kind}));

-- name: no_key
-- What is no key of a level: null, of the key's type.
(SELECT {key} FROM {parts} LIMIT 0);
