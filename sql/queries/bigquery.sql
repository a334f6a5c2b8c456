-- bigquery: what the rows of a table of BigQuery say, in its own SQL.

-- name: count
SELECT COUNT(*) FROM `{table}` WHERE _semel_batch = @batch;

-- name: notes
-- Of a table that is clustered by _semel_batch this reads what is from @first on.
SELECT _semel_batch, _semel_seq, COUNT(*) FROM `{table}`
WHERE _semel_batch >= @first
GROUP BY 1, 2
ORDER BY 1 DESC
LIMIT {most};

-- name: rows
SELECT {columns} FROM `{table}` WHERE _semel_batch = @batch;
