-- differences: two outputs side by side. These statements run in DuckDB, in a database that lives
-- as long as one compare; what stands in {braces} is made from columns. Side 0 is the live path, 1 the
-- other one, 2 the batch path run once more.

-- name: tables
CREATE TABLE output (side TINYINT, batch BIGINT, file INTEGER, key VARCHAR, content UBIGINT,
                     part BIGINT, pos BIGINT);
CREATE TABLE apart (side TINYINT, batch BIGINT, part BIGINT, pos BIGINT, reason VARCHAR,
                    letter BOOLEAN, key VARCHAR);
CREATE TABLE claim (batch BIGINT, part BIGINT, first BIGINT, behind BIGINT);
CREATE TABLE repeated (seq BIGINT, h1 UBIGINT, h2 UINTEGER, shard USMALLINT);
CREATE TABLE first_seen (seq BIGINT, h1 UBIGINT, h2 UINTEGER);

-- name: insert_repeated
INSERT INTO repeated SELECT seq, h1, h2, shard FROM incoming;

-- name: insert_first_seen
INSERT INTO first_seen
SELECT i.seq, i.h1, i.h2 FROM incoming AS i SEMI JOIN repeated AS r ON r.h1 = i.h1 AND r.h2 = i.h2;

-- name: known
-- Ids that the catalog knew of a batch outside of the range: none in it, up to there, took them.
SELECT DISTINCT shard, h1, h2
FROM repeated AS r
WHERE NOT EXISTS (SELECT 1 FROM first_seen AS f
                  WHERE f.h1 = r.h1 AND f.h2 = r.h2 AND f.seq <= r.seq)
ORDER BY shard, h1, h2;

-- name: insert_output
INSERT INTO output
SELECT {side}, {batch}, {file}, {key}, {content}, {part}, {pos} FROM incoming;

-- name: insert_apart
INSERT INTO apart
SELECT {side}, {batch}, source_partition_id, "offset", reason, {letter}, {key} FROM incoming;

-- name: insert_claims
INSERT INTO claim SELECT batch, part, first, behind FROM incoming;

-- name: differ
-- Records that one side alone kept out of its output.
CREATE TABLE verdict AS
SELECT a.* FROM apart AS a
ANTI JOIN apart AS b ON b.side <> a.side AND b.part = a.part AND b.pos = a.pos;

CREATE TABLE counted AS
SELECT key, content, count(*) FILTER (side = 0) AS live, count(*) FILTER (side = 1) AS other
FROM output WHERE side < 2
GROUP BY key, content;

CREATE TABLE difference AS
WITH differing AS (
    SELECT key, sum(live) AS live, sum(other) AS other,
           sum(greatest(live - other, 0)) AS live_only,
           sum(greatest(other - live, 0)) AS other_only
    FROM counted GROUP BY key HAVING bool_or(live <> other)
), example AS (
    SELECT o.side, o.key, min(o.rowid) AS at
    FROM output AS o
    JOIN counted AS c ON c.key = o.key AND c.content = o.content
    WHERE o.side = 0 AND c.live > c.other OR o.side = 1 AND c.other > c.live
    GROUP BY o.side, o.key
), placed AS (
    SELECT e.side, e.key, struct_pack(batch := o.batch, file := o.file, content := o.content,
                                      part := o.part, pos := o.pos) AS at
    FROM example AS e JOIN output AS o ON o.rowid = e.at
)
SELECT d.key, CAST(d.live AS BIGINT) AS live, CAST(d.other AS BIGINT) AS other,
       CASE WHEN live_only > 0 AND other_only > 0 THEN 'values'
            WHEN d.other = 0 THEN 'only_live'
            WHEN d.live = 0 THEN 'only_other'
            WHEN live_only > 0 THEN 'more_live'
            ELSE 'more_other' END AS kind,
       l.at AS live_at, o.at AS other_at, l.at.batch AS batch,
       CAST(NULL AS VARCHAR) AS cause, CAST(NULL AS VARCHAR) AS reason,
       CAST(NULL AS BIGINT) AS live_part, CAST(NULL AS BIGINT) AS live_pos,
       CAST(NULL AS BIGINT) AS other_part, CAST(NULL AS BIGINT) AS other_pos
FROM differing AS d
LEFT JOIN placed AS l ON l.key = d.key AND l.side = 0
LEFT JOIN placed AS o ON o.key = d.key AND o.side = 1;

-- A row that only the batch path has is of the batch that claimed its record.
UPDATE difference AS d SET batch = c.batch
FROM claim AS c
WHERE d.batch IS NULL AND c.part = d.other_at.part
  AND c.first <= d.other_at.pos AND d.other_at.pos < c.behind;

-- name: apart
SELECT CASE side WHEN 0 THEN 'only_live' ELSE 'only_other' END AS side, reason, count(*) AS records
FROM verdict GROUP BY ALL ORDER BY ALL;

-- name: blame_letters
-- What the batch path took, and the live path set aside.
UPDATE difference SET cause = CASE v.reason WHEN 'late' THEN 'late' ELSE 'quarantined' END,
                      reason = v.reason, live_part = v.part, live_pos = v.pos
FROM verdict AS v
WHERE v.side = 0 AND v.letter AND v.part = other_at.part AND v.pos = other_at.pos;

-- name: blame_letters_of_none
-- Behind transforms a row has no position: its record is one that the live path set aside, if there
-- are as many of these as there are such rows.
UPDATE difference SET cause = CASE v.reason WHEN 'late' THEN 'late' ELSE 'quarantined' END,
                      reason = v.reason
FROM (SELECT min(reason) AS reason, count(*) AS letters FROM verdict
      WHERE side = 0 AND letter) AS v
WHERE cause IS NULL AND kind IN ('only_other', 'more_other') AND other_at.part IS NULL
  AND v.letters >= (SELECT count(*) FROM difference
                    WHERE cause IS NULL AND kind IN ('only_other', 'more_other'));

-- name: blame_copies
-- Of a repeated id the live path dropped one copy, and the other path another. Where that one kept
-- none, it had dropped all: the live path took the id twice.
UPDATE difference AS d
SET cause = CASE WHEN v.kept_part IS NULL THEN 'forgotten' ELSE 'copy_won' END,
    live_part = v.live_part, live_pos = v.live_pos,
    other_part = v.kept_part, other_pos = v.kept_pos
FROM (
    SELECT l.key, l.at.part AS live_part, l.at.pos AS live_pos,
           o.at.part AS kept_part, o.at.pos AS kept_pos
    FROM (SELECT key, max(struct_pack(part := part, pos := pos)) AS at FROM verdict
          WHERE side = 1 AND NOT letter GROUP BY key) AS l
    LEFT JOIN (SELECT key, min(struct_pack(part := part, pos := pos)) AS at FROM verdict
               WHERE side = 0 AND NOT letter GROUP BY key) AS o ON o.key = l.key
) AS v
WHERE d.cause IS NULL AND v.key = d.key
  AND (v.kept_part IS NOT NULL OR d.kind IN ('only_live', 'more_live'));

-- name: blame_other_letters
UPDATE difference SET cause = 'quarantined_in_batch_path', reason = v.reason
FROM (SELECT batch, min(reason) AS reason FROM (
          SELECT c.batch, v.reason FROM verdict AS v
          JOIN claim AS c ON c.part = v.part AND c.first <= v.pos AND v.pos < c.behind
          WHERE v.side = 1 AND v.letter)
      GROUP BY batch) AS v
WHERE difference.cause IS NULL AND kind IN ('only_live', 'more_live')
  AND v.batch = difference.batch;

-- name: unexplained
SELECT DISTINCT batch FROM difference WHERE cause IS NULL ORDER BY batch;

-- name: blame_batches
-- One whose batch is not known may be of any of them.
UPDATE difference SET cause = $cause
WHERE cause IS NULL AND (batch IS NULL OR batch = ANY($batches));

-- name: blame_random
UPDATE difference SET cause = 'not_deterministic'
WHERE cause IS NULL
  AND ($keyless AND EXISTS (SELECT 1 FROM (SELECT key, side FROM output WHERE side > 0)
                            GROUP BY key HAVING count(*) FILTER (side = 1)
                                                <> count(*) FILTER (side = 2))
       OR key IN (SELECT key FROM (SELECT key, content, count(*) FILTER (side = 1) AS one,
                                          count(*) FILTER (side = 2) AS two
                                   FROM output WHERE side > 0 GROUP BY key, content)
                  WHERE one <> two));

-- name: blame_rest
UPDATE difference SET cause = $cause WHERE cause IS NULL;

-- name: totals
SELECT cause, count(*) AS differences FROM difference GROUP BY cause ORDER BY 2 DESC, 1;

-- name: rows
SELECT count(*) FILTER (side = 0) AS live, count(*) FILTER (side = 1) AS other FROM output;

-- name: shown
SELECT key, live, other, kind, cause, reason, live_at, other_at,
       COALESCE(live_part, live_at.part) AS live_part, COALESCE(live_pos, live_at.pos) AS live_pos,
       COALESCE(other_part, other_at.part) AS other_part,
       COALESCE(other_pos, other_at.pos) AS other_pos
FROM difference
ORDER BY batch, key LIMIT $shown;

-- name: examples
SELECT {key}, {content}, {columns} FROM incoming WHERE {content} = ANY($contents)
QUALIFY row_number() OVER (PARTITION BY {key}, {content}) = 1;
