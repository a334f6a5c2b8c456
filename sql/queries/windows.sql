-- windows: the rows of windows, merged from partial rows, in DuckDB and in PostgreSQL.

-- name: level
-- Of one level; GROUPING SETS would do for all, but then PostgreSQL computes all windows before it
-- looks for those that are asked for. {start} is that of the partial rows where a window is one slice,
-- so that their index finds those of some windows.
SELECT {start} AS window_start, w.window_end, w.final, {columns}, {number} AS _semel_level
FROM {parts} AS p
JOIN {windows} AS w ON w.slice = p.window_start
GROUP BY {by};

-- name: no_key
-- What is no key of a level: null, of the key's type.
(SELECT {key} FROM {parts} LIMIT 0);
