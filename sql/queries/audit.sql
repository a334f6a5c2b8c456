-- audit: proofs over files alone. These statements run in DuckDB, in a database that lives as long
-- as one audit; what stands in {braces} is made from the declared columns.

-- name: tables
CREATE TABLE batch (batch BIGINT, commit_seq BIGINT, batch_time TIMESTAMP, horizon_seconds DOUBLE,
                    matched_by VARCHAR, identified BOOLEAN, bucketed BOOLEAN, timed BOOLEAN, transformed BOOLEAN,
                    checked BOOLEAN, registered BOOLEAN, replaced BOOLEAN, reread BOOLEAN, proven BOOLEAN);
-- In scope bucket: which buckets the ids of a batch are of, by its marker. Its end is exclusive.
CREATE TABLE named (batch BIGINT, commit_seq BIGINT, low BIGINT, high BIGINT);
CREATE TABLE source (batch BIGINT, claim INTEGER, part BIGINT, pos BIGINT, word VARCHAR,
                     why VARCHAR, id VARCHAR, bucket BIGINT, content UBIGINT,
                     -- What windows count: the time, and the columns that they need, as texts.
                     time TIMESTAMP, cells VARCHAR[]);
-- The same, read by the declaration of the newest output, where that reads it otherwise.
CREATE TABLE reread AS FROM source;
CREATE TABLE decision (batch BIGINT, part BIGINT, pos BIGINT, reason VARCHAR, id VARCHAR);
CREATE TABLE letter (batch BIGINT, part BIGINT, pos BIGINT, reason VARCHAR, wrong_bytes BOOLEAN);
CREATE TABLE output (batch BIGINT, file VARCHAR, id VARCHAR, part BIGINT, pos BIGINT,
                     content UBIGINT);
-- Partial rows: a slice of time, how many records it counts, and its columns, as texts.
CREATE TABLE partial (batch BIGINT, file VARCHAR, start TIMESTAMP, records BIGINT, cells VARCHAR[]);
CREATE MACRO floored(shown, since, length) AS shown - ((shown - since) % length + length) % length;

-- name: sift_jsonl
-- What DuckDB's JSON parser alone can call good; it is laxer than JSON with commas and constants.
CREATE OR REPLACE TEMP TABLE sifted AS
WITH screened AS (
    SELECT * EXCLUDE (line), line IS NULL AS nothing,
           CASE WHEN starts_with(line, chr(123)) AND json_valid(line)
                     AND NOT regexp_matches(line, ',\s*[}}\]]')
                     AND NOT CASE WHEN contains(lower(line), 'nan') OR contains(lower(line), 'inf')
                                  THEN regexp_matches(line, '(?i)[-:,\[]\s*(nan|inf)')
                                  ELSE false END
                THEN line END AS line
    FROM incoming
), parsed AS (
    SELECT * EXCLUDE (line), json_type(line, {paths}) AS t, json_extract_string(line, {paths}) AS f,
           json_keys(line) AS k
    FROM screened
)
SELECT line_no, batch, claim, part, pos, beside, {values} AS f,
       nothing OR
       COALESCE(CASE WHEN len(k) = list_count(t) THEN true ELSE list_unique(k) = len(k) END
                AND {good}, false) AS good
FROM parsed;

-- name: sift_csv
CREATE OR REPLACE TEMP TABLE sifted AS
WITH screened AS (
    SELECT * EXCLUDE (line), line IS NULL AS nothing,
           CASE WHEN NOT contains(line, {quote}) AND NOT contains(line, chr(13))
                THEN string_split(line, {delimiter}) END AS s
    FROM (SELECT * EXCLUDE (line), regexp_replace(line, '\r?\n$', '') AS line FROM incoming)
), parsed AS (
    SELECT * EXCLUDE (s), len(s) AS fields, {values} AS f
    FROM screened
)
SELECT line_no, batch, claim, part, pos, beside, f,
       nothing OR COALESCE(fields = {count} AND {good}, false) AS good
FROM parsed;

-- name: sift_bytes
-- A value is one column as it is; DuckDB's text of bytes is what it casts to them.
CREATE OR REPLACE TEMP TABLE sifted AS
SELECT line_no, batch, claim, part, pos, beside, [CAST(line AS VARCHAR)] AS f, true AS good
FROM incoming;

-- name: read_rows
-- Rows of a file of Parquet. They come in their order, one by one, as preserve_insertion_order has it;
-- ORDER BY would hold them all.
SELECT {columns}
FROM read_parquet($path, file_row_number = true)
WHERE file_row_number >= $low AND file_row_number < $high;

-- name: cast_rows
-- The values of rows as the declared types have them.
SELECT struct_pack({values}) AS beside FROM rows;

-- name: unsifted
-- Lines that only the exact path may judge.
SELECT line_no FROM sifted WHERE NOT good;

-- name: insert
INSERT INTO {table} BY NAME SELECT * FROM incoming;

-- name: insert_source
INSERT INTO {table}
SELECT batch, claim, part, pos, word, why, {id}, {bucket}, {content}, {time}, {cells}
FROM (SELECT batch, claim, part, pos, 'good' AS word, '' AS why, f, beside FROM sifted WHERE good
      UNION ALL
      SELECT batch, claim, part, pos, word, why, f, beside FROM incoming);

-- name: insert_output
INSERT INTO output
SELECT _semel_batch, _semel_file, {id}, {part}, {pos}, {content}
FROM incoming;

-- name: insert_partial
INSERT INTO partial
SELECT _semel_batch, _semel_file, {start}, {records}, {cells}
FROM incoming;

-- name: insert_decision
INSERT INTO decision
SELECT _semel_batch, source_partition_id, "offset", reason, {id}
FROM incoming;

-- name: record
-- Each record of the source with what became of it. Batches whose source is lost prove nothing.
-- `content`, `time`, `cells` and `now` are by the declaration of the newest output, and so is `id_now` where that
-- reads the source otherwise than the batch did.
CREATE TABLE record AS
SELECT s.* REPLACE (CASE WHEN b.reread THEN n.content ELSE s.content END AS content,
                    CASE WHEN b.reread THEN n.time ELSE s.time END AS time,
                    CASE WHEN b.reread THEN n.cells ELSE s.cells END AS cells),
       n.id AS id_now, n.why AS why_now,
       CASE WHEN b.reread THEN COALESCE(n.word, 'bad') END AS now, d.reason AS decision, d.id AS said, l.reason AS letter, l.wrong_bytes,
       d.reason IS NULL AND l.reason IS NULL AS survives,
       COALESCE(d.times, 0) AS decided, COALESCE(l.times, 0) AS lettered
FROM source AS s
JOIN batch AS b ON b.batch = s.batch AND b.proven
LEFT JOIN reread AS n ON n.batch = s.batch AND n.part = s.part AND n.pos = s.pos
LEFT JOIN (SELECT batch, part, pos, min(reason) AS reason, min(id) AS id, count(*) AS times
           FROM decision GROUP BY batch, part, pos) AS d
       ON d.batch = s.batch AND d.part = s.part AND d.pos = s.pos
LEFT JOIN (SELECT batch, part, pos, min(reason) AS reason, bool_or(wrong_bytes) AS wrong_bytes,
                  count(*) AS times
           FROM letter GROUP BY batch, part, pos) AS l
       ON l.batch = s.batch AND l.part = s.part AND l.pos = s.pos;
DROP TABLE source;
DROP TABLE reread;

-- name: accounted
SELECT batch, part, pos, id, what, count(*) OVER () AS total
FROM (
    SELECT batch, part, pos, id, 'a decision about a place where no claimed record begins' AS what
    FROM decision JOIN batch USING (batch) ANTI JOIN record USING (batch, part, pos) WHERE proven
    UNION ALL
    SELECT batch, part, pos, NULL, 'a dead letter from a place where no claimed record begins'
    FROM letter JOIN batch USING (batch) ANTI JOIN record USING (batch, part, pos) WHERE proven
    UNION ALL
    SELECT batch, part, pos, id,
           CASE WHEN decided > 0 AND lettered > 0
                THEN 'the record is in the decisions and a dead letter'
                WHEN decided > 1 THEN 'the record is in the decisions twice'
                ELSE 'the record is a dead letter twice' END
    FROM record WHERE decided + lettered > 1
)
ORDER BY batch, part, pos LIMIT $shown;

-- name: records
SELECT batch, part, pos, id, what, count(*) OVER () AS total
FROM (
    SELECT batch, part, pos, r.id,
           CASE WHEN word = 'bad'
                THEN 'this is no record, but it is not in the dead letters: ' || why
                WHEN word = 'good' AND identified AND r.id IS NULL
                THEN 'a part of the id is null, but it is not in the dead letters'
                WHEN word = 'good' AND bucketed AND bucket IS NULL
                THEN 'record_time is null, but it is not in the dead letters'
                WHEN word = 'good' AND timed AND (time IS NULL OR (year(time) < 100 OR year(time) >= 9900))
                THEN 'record_time is in no window, but it is not in the dead letters'
                WHEN survives AND now = 'bad'
                THEN 'the survivor is no record by the declaration of the replay: '
                     || COALESCE(why_now, 'none begins there')
                END AS what
    FROM record AS r JOIN batch USING (batch)
    WHERE letter IS NULL
)
WHERE what IS NOT NULL
ORDER BY batch, part, pos LIMIT $shown;

-- name: letters
SELECT batch, part, pos, id, what, count(*) OVER () AS total
FROM (
    SELECT batch, part, pos, r.id,
           CASE WHEN wrong_bytes THEN 'the dead letter keeps other bytes than the source has'
                WHEN timed AND letter IN ('record_time_missing', 'record_time_outside')
                THEN CASE WHEN word = 'bad'
                          THEN 'a dead letter says ' || letter || ', but it is no record'
                          WHEN word = 'good' AND NOT (CASE letter WHEN 'record_time_missing'
                                                      THEN time IS NULL ELSE (year(time) < 100 OR year(time) >= 9900) END)
                          THEN 'a dead letter says ' || letter || ', but record_time does not' END
                WHEN letter = ANY($of_the_text)
                THEN CASE WHEN word = 'good'
                          THEN 'a valid record is a dead letter with the reason ' || letter END
                WHEN letter = 'id_missing'
                THEN CASE WHEN word = 'bad' OR r.id IS NOT NULL
                          THEN 'a dead letter says id_missing, but no part of the id is null' END
                WHEN letter = ANY($of_the_time) AND bucketed
                THEN CASE WHEN word = 'bad'
                          THEN 'a dead letter says ' || letter || ', but it is no record'
                          WHEN word = 'good' AND (letter = 'record_time_missing') <> (bucket IS NULL)
                          THEN 'a dead letter says ' || letter || ', but record_time does not'
                          END
                WHEN letter = ANY($of_the_sink) AND checked
                THEN CASE WHEN word = 'bad'
                          THEN 'a dead letter says ' || letter || ', but it is no record' END
                -- What a registry did not have then, it may have now.
                WHEN letter = ANY($of_the_registry) AND registered THEN NULL
                ELSE 'a dead letter has the reason ' || letter || ', which cannot be' END AS what
    FROM record AS r JOIN batch USING (batch)
    WHERE letter IS NOT NULL
)
WHERE what IS NOT NULL
ORDER BY batch, part, pos LIMIT $shown;

-- name: buckets
-- Late is only what is of a bucket that an earlier batch had: else nobody can have forgotten it. And
-- what a marker says of its batch's buckets is true, from the first to the last of each range.
WITH there AS (
    SELECT batch, bucket, min(part) AS part, min(pos) AS pos
    FROM record JOIN batch USING (batch)
    WHERE letter IS NULL AND bucketed AND bucket IS NOT NULL
    GROUP BY batch, bucket
)
SELECT "check", batch, part, pos, id, what, count(*) OVER (PARTITION BY "check") AS total
FROM (
    SELECT 'dead letters' AS "check", batch, part, pos, r.id,
           'a dead letter says late, but no earlier batch has a record of its bucket' AS what
    FROM record AS r JOIN batch AS b USING (batch)
    WHERE letter = 'late' AND bucket IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM named AS n WHERE n.commit_seq < b.commit_seq
                      AND r.bucket >= n.low AND r.bucket < n.high)
    UNION ALL
    SELECT 'records', batch, part, pos, NULL,
           'its marker does not name the bucket ' || bucket || ' of record_time'
    FROM there AS t
    WHERE NOT EXISTS (SELECT 1 FROM named AS n WHERE n.batch = t.batch
                      AND t.bucket >= n.low AND t.bucket < n.high)
    UNION ALL
    SELECT 'records', batch, NULL, NULL, NULL,
           'its marker names the bucket ' || bucket || ' of record_time, and it has no record of it'
    FROM (SELECT batch, unnest([low, high - 1]) AS bucket FROM named)
    JOIN batch USING (batch) ANTI JOIN there USING (batch, bucket)
    WHERE proven
)
QUALIFY row_number() OVER (PARTITION BY "check" ORDER BY batch, part, pos) <= $shown
ORDER BY "check", batch, part, pos;

-- name: decisions
-- $proven_below: from this place in the order of commits on, the survivors of an earlier batch are
-- unknown, because its source is lost; that is told elsewhere.
WITH repeated AS (
    SELECT r.*, b.commit_seq FROM record AS r JOIN batch AS b USING (batch)
    WHERE decision IS NOT NULL
), first AS (
    SELECT r.id, r.bucket, r.claim, r.pos, b.commit_seq
    FROM record AS r JOIN batch AS b USING (batch)
    WHERE survives AND r.id IN (SELECT id FROM repeated)
), borne AS (
    SELECT p.batch, p.part, p.pos, p.id, p.said, p.word, p.decision, p.commit_seq,
           bool_or(f.commit_seq = p.commit_seq AND (f.claim, f.pos) < (p.claim, p.pos)) AS in_batch,
           bool_or(f.commit_seq < p.commit_seq) AS in_catalog
    FROM repeated AS p LEFT JOIN first AS f ON f.id = p.id AND f.bucket = p.bucket
    GROUP BY ALL
)
SELECT batch, part, pos, id, what, count(*) OVER () AS total
FROM (
    SELECT batch, part, pos, id,
           CASE WHEN word = 'bad' THEN 'a decision about what is no record'
                WHEN id IS NULL THEN 'a decision about a record without an id'
                WHEN said IS DISTINCT FROM id
                THEN 'the decision names another id: ' || COALESCE(said, 'null')
                WHEN decision = 'duplicate_in_batch'
                THEN CASE WHEN in_batch IS NOT TRUE
                          THEN 'duplicate_in_batch, but no earlier record of its batch survives' END
                WHEN decision = 'duplicate_in_catalog'
                THEN CASE WHEN in_catalog IS NOT TRUE AND commit_seq < $proven_below
                          THEN 'duplicate_in_catalog, but none of an earlier batch survives' END
                ELSE 'a decision for the unknown reason ' || decision END AS what
    FROM borne
)
WHERE what IS NOT NULL
ORDER BY batch, part, pos LIMIT $shown;

-- name: ids
-- The id of a survivor counts for the horizon that its own batch was declared with. What was made at
-- least once may repeat it; what was made exactly once does not.
WITH many AS (
    SELECT id, bucket FROM record WHERE survives AND id IS NOT NULL
    GROUP BY id, bucket HAVING count(*) > 1
), copy AS (
    SELECT r.*, b.commit_seq, b.identified, epoch_us(b.batch_time) AS began,
           epoch_us(b.batch_time) + b.horizon_seconds * 1000000 AS until
    FROM record AS r JOIN many AS m ON r.id = m.id AND r.bucket IS NOT DISTINCT FROM m.bucket
    JOIN batch AS b ON b.batch = r.batch
    WHERE r.survives
), ordered AS (
    SELECT *, max(until) OVER earlier AS known_until, arg_max(batch, until) OVER earlier AS known_by
    FROM copy
    WINDOW earlier AS (PARTITION BY id, bucket ORDER BY commit_seq, claim, pos
                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT batch, part, pos, id, 'the id survived in batch ' || known_by || ' already' AS what,
       count(*) OVER () AS total
FROM ordered
WHERE identified AND began < known_until
ORDER BY batch, part, pos LIMIT $shown;

-- name: output
-- Survivors and output rows by what identifies both. The two sides meet in one aggregation.
WITH side AS (
    SELECT batch, CASE matched_by WHEN 'id' THEN COALESCE(r.id_now, r.id) WHEN 'position' THEN part || ':' || pos
                                  ELSE CAST(content AS VARCHAR) END AS key,
           1 AS survivor, 0 AS written, content AS read, NULL AS wrote, part, pos, NULL AS file,
           r.id
    FROM record AS r JOIN batch USING (batch)
    WHERE survives AND matched_by <> 'windows' AND (matched_by <> 'counts' OR NOT transformed)
    UNION ALL
    SELECT batch, CASE matched_by WHEN 'id' THEN o.id WHEN 'position' THEN part || ':' || pos
                                  ELSE CAST(content AS VARCHAR) END,
           0, 1, NULL, content, NULL, NULL, file, o.id
    FROM output AS o JOIN batch USING (batch)
    WHERE proven AND matched_by <> 'windows' AND (matched_by <> 'counts' OR NOT transformed)
), met AS (
    SELECT batch, key, sum(survivor) AS survivors, sum(written) AS written, min(part) AS part,
           min(pos) AS pos, min(file) AS file, min(id) AS id,
           bit_xor(read) IS DISTINCT FROM bit_xor(wrote) AS altered
    FROM side
    GROUP BY batch, key
    HAVING survivors <> written OR altered
)
SELECT batch, part, pos, file, id, "check", what, count(*) OVER (PARTITION BY "check") AS total
FROM (
    SELECT batch, part, pos, file, m.id, 'output' AS "check",
           CASE WHEN survivors = 0 THEN 'a row that is no survivor of its batch'
                WHEN written = 0 THEN 'the survivor is not in the output'
                ELSE written || ' rows for ' || survivors || ' survivors' END AS what
    FROM met AS m JOIN batch USING (batch)
    WHERE survivors <> written AND NOT ((transformed OR replaced) AND written < survivors)
    UNION ALL
    SELECT batch, part, pos, file, m.id, 'content', 'the row has other values than the record'
    FROM met AS m JOIN batch USING (batch)
    WHERE altered AND survivors = written AND NOT transformed AND matched_by <> 'counts'
)
QUALIFY row_number() OVER (PARTITION BY "check" ORDER BY batch, part, pos, file) <= $shown
ORDER BY "check", batch, part, pos, file;

-- name: times_of_records
CREATE OR REPLACE TEMP TABLE met AS
SELECT DISTINCT time FROM record WHERE survives AND time IS NOT NULL;

-- name: times_of_rows
CREATE OR REPLACE TEMP TABLE met AS
SELECT DISTINCT CAST(time AS TIMESTAMP) AS time FROM incoming WHERE time IS NOT NULL;

-- name: times
SELECT min(time) AS first, max(time) AS last FROM met;

-- name: clock
-- In seconds since 1970: the periods in which a zone's clock keeps its distance from UTC.
CREATE OR REPLACE TEMP TABLE clock AS SELECT "begin", until, ahead FROM incoming;

-- name: slices
-- A slice starts at the newest moment by which the clock came to a multiple of {seconds}, or jumped
-- over one. A day starts at the first of two midnights, so at a multiple after all `shown` before.
CREATE OR REPLACE TEMP TABLE slice AS
WITH period AS (
    SELECT begin, until, ahead, floored(begin + ahead, {since}, {seconds}) AS first,
           floored(begin - 1 + lag(ahead, 1, ahead) OVER (ORDER BY begin), {since}, {seconds}) AS last,
           max(floored(until - 1 + ahead, {since}, {seconds})) OVER (
               ORDER BY begin ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS shown
    FROM clock
), ends AS (
    SELECT *, CASE WHEN {by_day} THEN COALESCE(shown, first - 1) ELSE first - 1 END AS threshold,
           CASE WHEN {by_day} THEN COALESCE(shown, first - 1) ELSE last END AS jumped
    FROM period
), moment AS (
    SELECT time, epoch_us(time) // 1000000 AS seconds FROM met
), reached AS (
    SELECT time, begin, ahead, threshold, first, jumped,
           floored(least(seconds, until - 1) + ahead, {since}, {seconds}) AS multiple
    FROM moment JOIN ends ON moment.seconds >= begin AND moment.seconds < until + {seconds} + 259200
)
SELECT time, make_timestamp(1000000 * max(
           CASE WHEN multiple - ahead >= begin AND multiple > threshold THEN multiple - ahead
                WHEN first > jumped THEN begin END)) AS start
FROM reached GROUP BY time;

-- name: slices_of_dates
-- A date is in the slice that starts when the clock first comes to its midnight, or jumps over it
-- (weeks: to that of its Monday).
CREATE OR REPLACE TEMP TABLE slice AS
WITH day AS (
    SELECT time, floored(epoch_us(time) // 1000000, {since}, {seconds}) AS midnight FROM met
)
SELECT time, make_timestamp(1000000 * min(greatest(begin, midnight - ahead))) AS start
FROM day JOIN clock ON greatest(begin, midnight - ahead) < until
GROUP BY time;

-- name: astray
-- Rows that lie in a folder that is not named after their slice.
WITH shown AS (
    SELECT time, ahead, make_timestamp(epoch_us(start) + 1000000 * ahead) AS start
    FROM slice JOIN clock ON epoch_us(start) >= 1000000 * begin AND epoch_us(start) < 1000000 * until
), named AS (
    SELECT time, strftime(start, $form) || CASE WHEN $distance THEN
               CASE WHEN ahead < 0 THEN '-' ELSE '+' END
               || strftime(make_timestamp(1000000 * abs(ahead)), '%H%M')
               || CASE WHEN ahead % 60 = 0 THEN '' ELSE lpad(abs(ahead) % 60 || '', 2, '0') END
           ELSE '' END AS name
    FROM shown
)
SELECT count(*) AS rows
FROM incoming AS i LEFT JOIN named AS n ON n.time = CAST(i.time AS TIMESTAMP)
WHERE COALESCE(i.folder, $nothing) <> COALESCE(n.name, $nothing);

-- name: windows
-- Each batch's survivors, counted, beside its partial rows, added up.
WITH expected AS (
    SELECT r.batch, s.start, {read_key} AS key, count(*) AS records, {read} AS found,
           any_value(b.replaced) AS erased
    FROM record AS r JOIN batch AS b USING (batch) JOIN slice AS s ON s.time = r.time
    WHERE survives AND timed
    GROUP BY r.batch, s.start, {read_key}
), written AS (
    SELECT p.batch, p.start, {row_key} AS key, CAST(sum(p.records) AS BIGINT) AS records,
           {wrote} AS found, min(p.file) AS file
    FROM partial AS p JOIN batch AS b USING (batch)
    WHERE proven AND timed
    GROUP BY p.batch, p.start, {row_key}
), met AS (
    SELECT COALESCE(e.batch, w.batch) AS batch, COALESCE(e.start, w.start) AS start,
           COALESCE(e.key, w.key) AS key, w.file,
           CASE WHEN w.batch IS NULL AND e.erased THEN NULL
                WHEN w.batch IS NULL THEN e.records || ' records of it are not in the output'
                WHEN e.batch IS NULL THEN 'it has ' || w.records || ' records, and none survived'
                WHEN e.records <> w.records
                THEN 'it has ' || w.records || ' records, and ' || e.records || ' survived' END
               AS miscounted,
           CASE WHEN e.found <> w.found
                THEN 'it says ' || w.found || ', and its records make ' || e.found END AS altered
    FROM expected AS e
    FULL JOIN written AS w ON w.batch = e.batch AND w.start = e.start AND w.key = e.key
)
SELECT batch, NULL AS part, NULL AS pos, file, NULL AS id,
       CASE WHEN miscounted IS NULL THEN 'content' ELSE 'output' END AS "check",
       'the slice at ' || start || 'Z, ' || key || ': ' || COALESCE(miscounted, altered) AS what,
       count(*) OVER (PARTITION BY miscounted IS NULL) AS total
FROM met
WHERE miscounted IS NOT NULL OR altered IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY miscounted IS NULL ORDER BY batch, start, key) <= $shown
ORDER BY "check", batch, start, key;

-- name: sums
-- What source and files show for each batch, beside which the marker's account is held.
SELECT b.batch, COALESCE(r.records_read, 0) AS records_read, COALESCE(r.survivors, 0) AS survivors,
       COALESCE(r.duplicates_batch, 0) AS duplicates_batch,
       COALESCE(r.duplicates_catalog, 0) AS duplicates_catalog,
       COALESCE(r.quarantined, 0) AS quarantined, COALESCE(r.late, 0) AS late,
       COALESCE(o.rows_written, 0) AS rows_written
FROM batch AS b
LEFT JOIN (
    SELECT batch, count(*) AS records_read, count(*) FILTER (survives) AS survivors,
           count(*) FILTER (decision = 'duplicate_in_batch') AS duplicates_batch,
           count(*) FILTER (decision = 'duplicate_in_catalog') AS duplicates_catalog,
           count(*) FILTER (letter <> 'late') AS quarantined,
           count(*) FILTER (letter = 'late') AS late
    FROM record GROUP BY batch
) AS r USING (batch)
LEFT JOIN (SELECT batch, count(*) AS rows_written FROM output GROUP BY batch) AS o USING (batch)
WHERE b.proven
ORDER BY b.batch;
