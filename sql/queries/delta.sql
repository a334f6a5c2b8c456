-- delta: what the rows of a Delta table say, in DataFusion's SQL. Files are passed over by their
-- statistics.

-- name: count
SELECT count(*) AS n FROM told WHERE _semel_batch = {batch};

-- name: notes
SELECT _semel_batch, _semel_seq, count(*) AS n FROM told
WHERE _semel_batch >= {first}
GROUP BY _semel_batch, _semel_seq
ORDER BY _semel_batch DESC
LIMIT {most};

-- name: rows
SELECT {columns} FROM told WHERE _semel_batch = {batch};
