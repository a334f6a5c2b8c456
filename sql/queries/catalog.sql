-- catalog: the headers of the id runs, and the segment tables that hold their payloads.
-- {segment_id} stands for a number: the payload of a segment is a table of its own.

-- name: snapshot
-- Keeps S2.
-- One statement, so one view: the commit sequence and the runs that were visible at it.
SELECT p.commit_seq, p.forgotten,
       r.id_run_id, r.pipeline_id, r.attempt_id, r.shard, r.buckets,
       r.seq_min, r.seq_max, r.expires_at, r.segment_id, r.ids, r.filter_bytes, r.checksum
FROM semel.pipeline AS p
LEFT JOIN semel.id_run AS r
    ON r.pipeline_id = p.pipeline_id AND r.seq_min IS NOT NULL AND r.retired_at IS NULL
WHERE p.pipeline_id = :pipeline_id
ORDER BY r.shard, r.id_run_id;

-- name: own_runs
SELECT id_run_id, pipeline_id, attempt_id, shard, buckets,
       seq_min, seq_max, expires_at, segment_id, ids, filter_bytes, checksum
FROM semel.id_run
WHERE attempt_id = :attempt_id
ORDER BY shard;

-- name: own_run
SELECT id_run_id, pipeline_id, attempt_id, shard, buckets,
       seq_min, seq_max, expires_at, segment_id, ids, filter_bytes, checksum
FROM semel.id_run
WHERE attempt_id = :attempt_id AND shard = :shard;

-- name: publish_runs
-- Within the commit of the attempt: from here on its ids are known to every later batch.
UPDATE semel.id_run
SET seq_min = :seq, seq_max = :seq, expires_at = :expires_at
WHERE attempt_id = :attempt_id
RETURNING id_run_id;

-- name: current_segment
SELECT segment_id
FROM semel.segment
WHERE pipeline_id = :pipeline_id AND dropped_at IS NULL
  AND span_start <= statement_timestamp() AND statement_timestamp() < span_end
ORDER BY segment_id DESC
LIMIT 1;

-- name: insert_segment
-- Spans are aligned to the epoch, and cut where an earlier one of another length ended.
INSERT INTO semel.segment (pipeline_id, span_start, span_end)
SELECT :pipeline_id,
       GREATEST(to_timestamp(s.ordinal * s.seconds),
                (SELECT max(g.span_end) FROM semel.segment AS g
                 WHERE g.pipeline_id = :pipeline_id AND g.span_end <= statement_timestamp())),
       to_timestamp((s.ordinal + 1) * s.seconds)
FROM (SELECT floor(extract(epoch FROM statement_timestamp()) / CAST(:seconds AS bigint)) AS ordinal,
             CAST(:seconds AS bigint) AS seconds) AS s
RETURNING segment_id;

-- name: create_payload
CREATE TABLE semel.ids_{segment_id} (
    id_run_id  bigint NOT NULL,
    piece      int NOT NULL,
    kind       smallint NOT NULL,
    payload    bytea NOT NULL,
    PRIMARY KEY (id_run_id, kind, piece)
) WITH (toast_tuple_target = 8160);

-- name: keep_payload_plain
-- Hashes do not compress: trying costs time for nothing. A chunk stays in its row, a page of its
-- own; only pieces of an index are moved out.
ALTER TABLE semel.ids_{segment_id} ALTER COLUMN payload SET STORAGE EXTERNAL;

-- name: grant_payload
-- The role of executors exists where somebody ran `semel migrate --roles`.
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'semel_executor') THEN
        GRANT SELECT, INSERT ON semel.ids_{segment_id} TO semel_executor;
    END IF;
END $$;

-- name: share_attempt
-- Keeps S9.
-- Shared, so that speculative tasks do not wait for each other, and nobody can lose it meanwhile.
SELECT attempt_id FROM semel.share_attempt(CAST(:attempt_id AS bigint))
WHERE status = 'running';

-- name: insert_run
-- Of an attempt, which commit makes visible. Executors may write these columns alone.
INSERT INTO semel.id_run (pipeline_id, attempt_id, shard, buckets, segment_id, ids, filter_bytes,
                          checksum, asked, false_hits)
VALUES (:pipeline_id, :attempt_id, :shard, CAST(:buckets AS int8multirange), :segment_id, :ids,
        :filter_bytes, :checksum, :asked, :false_hits)
ON CONFLICT (attempt_id, shard) DO NOTHING
RETURNING id_run_id, pipeline_id, attempt_id, shard, buckets,
          seq_min, seq_max, expires_at, segment_id, ids, filter_bytes, checksum;

-- name: insert_visible_run
-- Of a merge, or adopted.
INSERT INTO semel.id_run (pipeline_id, shard, buckets, seq_min, seq_max, expires_at, segment_id,
                          ids, filter_bytes, checksum)
VALUES (:pipeline_id, :shard, CAST(:buckets AS int8multirange), :seq_min, :seq_max, :expires_at,
        :segment_id, :ids, :filter_bytes, :checksum)
RETURNING id_run_id, segment_id;

-- name: seal_run
-- A merge knows its ids and checksum only when it has written them.
UPDATE semel.id_run
SET ids = :ids, checksum = :checksum, asked = p.asked, false_hits = p.false_hits
FROM (SELECT CAST(sum(asked) AS bigint) AS asked, CAST(sum(false_hits) AS bigint) AS false_hits
      FROM semel.id_run
      WHERE id_run_id = ANY(CAST(:parts AS bigint[]))) AS p
WHERE id_run_id = :id_run_id
RETURNING id_run_id, pipeline_id, attempt_id, shard, buckets,
          seq_min, seq_max, expires_at, segment_id, ids, filter_bytes, checksum;

-- name: copy_payload
-- The driver runs this by itself.
COPY semel.ids_{segment_id} (id_run_id, piece, kind, payload) FROM STDIN (FORMAT binary);

-- name: pieces
-- The driver runs this by itself, hence its own parameter style.
SELECT piece, payload
FROM semel.ids_{segment_id}
WHERE id_run_id = %(id_run_id)s AND kind = %(kind)s AND piece = ANY(%(pieces)s)
ORDER BY piece;

-- name: retire_merged
UPDATE semel.id_run
SET retired_at = clock_timestamp(), retired_by = :merged
WHERE id_run_id = ANY(CAST(:parts AS bigint[])) AND retired_at IS NULL
RETURNING id_run_id;

-- name: expired_buckets
SELECT r.buckets, p.forgotten
FROM semel.id_run AS r
JOIN semel.pipeline AS p USING (pipeline_id)
WHERE r.pipeline_id = :pipeline_id AND r.seq_min IS NOT NULL AND r.retired_at IS NULL
  AND r.expires_at <= clock_timestamp() AND r.buckets IS NOT NULL;

-- name: forget
-- Keeps G1.
-- Committed before the runs are retired: no attempt that began before it commits in these buckets.
UPDATE semel.pipeline SET forgotten = CAST(:forgotten AS int8multirange)
WHERE pipeline_id = :pipeline_id;

-- name: retire_expired
-- Keeps G1.
UPDATE semel.id_run
SET retired_at = clock_timestamp()
-- Who expires is published: the index of the live runs is for those.
WHERE pipeline_id = :pipeline_id AND seq_min IS NOT NULL AND retired_at IS NULL
  AND expires_at <= clock_timestamp()
  -- In scope bucket, once what it held is late.
  AND (buckets IS NULL
       OR buckets <@ (SELECT p.forgotten FROM semel.pipeline AS p
                      WHERE p.pipeline_id = :pipeline_id))
RETURNING id_run_id;

-- name: live_segments
SELECT segment_id FROM semel.segment
WHERE pipeline_id = :pipeline_id AND dropped_at IS NULL
ORDER BY segment_id;

-- name: deletable_runs
-- Keeps G4.
-- Runs whose payload nobody can ask for any more: merges retired them before any open attempt
-- began, or their attempt is lost for ever. What its age retired goes with its whole table.
SELECT r.id_run_id
FROM semel.id_run AS r
WHERE r.segment_id = {segment_id}
  -- By the whole key of a run's first piece, and of its attempt: a join might read a whole table.
  AND (SELECT true FROM semel.ids_{segment_id} AS i
       WHERE i.id_run_id = r.id_run_id AND i.kind = 0 AND i.piece = 0)
  AND ((r.retired_by IS NOT NULL
        AND NOT EXISTS (SELECT FROM semel.attempt AS a
                        JOIN semel.batch AS b USING (batch_id)
                        WHERE b.pipeline_id = r.pipeline_id
                          AND a.status IN ('running', 'staged')
                          AND a.started_at <= r.retired_at))
       OR (SELECT a.status FROM semel.attempt AS a WHERE a.attempt_id = r.attempt_id) = 'lost');

-- name: delete_payload
DELETE FROM semel.ids_{segment_id} WHERE id_run_id = ANY(CAST(:runs AS bigint[]));

-- name: droppable_segments
-- Keeps G5.
-- Its span is over, each of its runs is retired or of a lost attempt, and no attempt is open that
-- began early enough to hold one of them in its pinned list or to store a run here still.
SELECT s.segment_id
FROM semel.segment AS s
WHERE s.pipeline_id = :pipeline_id
  AND s.dropped_at IS NULL
  AND s.span_end <= statement_timestamp()
  AND NOT EXISTS (SELECT FROM semel.id_run AS r
                  LEFT JOIN semel.attempt AS a USING (attempt_id)
                  WHERE r.segment_id = s.segment_id AND r.retired_at IS NULL
                    AND a.status IS DISTINCT FROM 'lost')
  AND NOT EXISTS (SELECT FROM semel.attempt AS a
                  JOIN semel.batch AS b USING (batch_id)
                  WHERE b.pipeline_id = s.pipeline_id
                    AND a.status IN ('running', 'staged')
                    AND a.started_at <= GREATEST(s.span_end, (
                        SELECT max(r.retired_at) FROM semel.id_run AS r
                        WHERE r.segment_id = s.segment_id)))
ORDER BY s.segment_id;

-- name: lock_segment
SELECT segment_id FROM semel.segment WHERE segment_id = :segment_id FOR NO KEY UPDATE;

-- name: mark_dropped
UPDATE semel.segment SET dropped_at = clock_timestamp()
WHERE segment_id = :segment_id AND dropped_at IS NULL
RETURNING segment_id;

-- name: lock_timeout
SELECT set_config('lock_timeout', :lock_timeout, true);

-- name: drop_payload
DROP TABLE semel.ids_{segment_id};
