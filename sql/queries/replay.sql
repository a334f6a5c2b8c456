-- replay: compute the output of a batch again.

-- name: roots
-- The batches to replay in a range of numbers or in an interval, each with its newest output.
-- `judged_by`: the batch that judged the records of that. `made_by` made the newest output that is
-- finalized, of which the counts are: a replay that is open has made none yet.
SELECT b.batch_id, b.request_key, COALESCE(b.interval_start, o.interval_start) AS interval_start,
       COALESCE(b.interval_end, o.interval_end) AS interval_end, b.admits, b.admission,
       n.batch_id AS newest, n.generation, n.status AS newest_status, n.request_key AS newest_key,
       COALESCE(f.batch_id, n.batch_id) AS made_by, COALESCE(f.generation, 0) AS made,
       COALESCE(n.judged_by, n.batch_id) AS judged_by, {a.<count>},
       EXISTS (SELECT FROM semel.erasure AS e WHERE e.batch_id = b.batch_id) AS erased,
       b.packed_in IS NOT NULL AS packed
FROM semel.batch AS b
CROSS JOIN LATERAL (SELECT * FROM semel.batch AS n
                    WHERE COALESCE(n.replays, n.batch_id) = b.batch_id AND n.status <> 'abandoned'
                    ORDER BY n.generation DESC LIMIT 1) AS n
LEFT JOIN LATERAL (SELECT * FROM semel.batch AS f
                   WHERE COALESCE(f.replays, f.batch_id) = b.batch_id AND f.status = 'finalized'
                   ORDER BY f.generation DESC LIMIT 1) AS f ON true
LEFT JOIN semel.attempt AS a
    ON a.batch_id = COALESCE(f.judged_by, f.batch_id, n.judged_by, n.batch_id) AND a.status = 'won'
LEFT JOIN semel.batch AS o ON o.batch_id = b.admits
WHERE b.pipeline_id = :pipeline_id AND b.replays IS NULL AND b.status <> 'abandoned'
  AND b.batch_id BETWEEN COALESCE(:first, b.batch_id) AND COALESCE(:last, b.batch_id)
  AND (CAST(:since AS timestamptz) IS NULL
       OR COALESCE(b.interval_start, o.interval_start, b.batch_time)
              >= CAST(:since AS timestamptz)
          AND COALESCE(b.interval_end, o.interval_end, b.batch_time + interval '1 microsecond')
              <= CAST(:until AS timestamptz))
ORDER BY b.commit_seq NULLS LAST, b.batch_id;

-- name: beyond
-- The first batch that has some of an interval, and some of another time.
SELECT b.batch_id, b.interval_start, b.interval_end
FROM semel.batch AS b
WHERE b.pipeline_id = :pipeline_id AND b.replays IS NULL AND b.admits IS NULL AND b.status <> 'abandoned'
  AND b.interval_end > :since AND b.interval_start < :until
  AND (b.interval_start < :since OR b.interval_end > :until)
ORDER BY b.batch_id LIMIT 1;

-- name: at_work
-- The replay of a batch that is planned or committed, whether it shows life, and whether it has failed:
-- its run may try again.
SELECT b.batch_id, b.request_key, b.status,
       {failed b} AS failed,
       b.seen_at > clock_timestamp() - make_interval(secs => :silent_seconds) AS alive
FROM semel.batch AS b
WHERE COALESCE(b.replays, b.batch_id) = :root AND b.replays IS NOT NULL
  AND b.status <> 'abandoned' AND b.status IN ('planned', 'committed');

-- name: insert
-- A request's replays of a batch are numbered from 1, and so are its admissions of it.
-- Keeps RP2, RP9, HI2.
INSERT INTO semel.batch (pipeline_id, request_key, ordinal, spec, spec_digest, split_bytes,
                         replays, generation, judged_by, admits, admission)
SELECT r.pipeline_id, :request_key,
       1 + COALESCE((SELECT max(b.ordinal) FROM semel.batch AS b
                     WHERE b.pipeline_id = r.pipeline_id AND b.request_key = :request_key
                       AND COALESCE(b.replays, 0) = COALESCE(CAST(:replays AS bigint), 0)
                       AND COALESCE(b.admits, 0) = COALESCE(CAST(:admits AS bigint), 0)), 0),
       CAST(:spec AS jsonb), :spec_digest, r.split_bytes,
       CAST(:replays AS bigint), :generation, CAST(:judged_by AS bigint), CAST(:admits AS bigint), CAST(:admission AS int)
FROM semel.batch AS r
WHERE r.batch_id = COALESCE(CAST(:replays AS bigint), CAST(:admits AS bigint))
  AND r.packed_in IS NULL
RETURNING batch_id;

-- name: of_request
-- The newest replay of each batch that a request has replayed, or is replaying.
SELECT DISTINCT ON (replays) batch_id, replays, status
FROM semel.batch
WHERE pipeline_id = :pipeline_id AND request_key = :request_key AND replays IS NOT NULL
  AND (CAST(:root AS bigint) IS NULL OR replays = :root)
ORDER BY replays, ordinal DESC;

-- name: won
-- The newest output of a batch that is finalized: its generation, what was read for it, and what
-- became of that.
SELECT n.generation, n.packed_in, a.input_digest, {a.<count>}
FROM (SELECT * FROM semel.batch AS n
      WHERE COALESCE(n.replays, n.batch_id) = :root AND n.status = 'finalized'
      ORDER BY n.generation DESC LIMIT 1) AS n
JOIN semel.attempt AS a ON a.batch_id = COALESCE(n.judged_by, n.batch_id) AND a.status = 'won';

-- name: claim
-- Each part that is another one now gets a partition, from which no plan takes anything: it is closed.
WITH f AS (
    SELECT * FROM jsonb_to_recordset(CAST(:parts AS jsonb))
        AS f (ordinal int, name text, identity text, fingerprint text, "end" bigint, evidence jsonb)
), made AS (
    INSERT INTO semel.source_partition (pipeline_id, name, generation, identity, fingerprint, settled,
                                        reached, evidence, closed_at, accounted)
    SELECT :pipeline_id, f.name,
           1 + COALESCE((SELECT max(p.generation) FROM semel.source_partition AS p
                         WHERE p.pipeline_id = :pipeline_id AND p.name = f.name), 0),
           f.identity, f.fingerprint, true, f."end", f.evidence, clock_timestamp(), true
    FROM f
    RETURNING source_partition_id, name
)
INSERT INTO semel.claim (batch_id, ordinal, source_partition_id, span, evidence)
SELECT :batch_id, f.ordinal, made.source_partition_id, int8range(0, f."end"), f.evidence
FROM f
JOIN made USING (name);

-- name: readers
-- Batches that are no replays and that read some parts, or whose replays do; last those that have not
-- committed, which will have read what was there before.
SELECT DISTINCT r.commit_seq, r.batch_id AS root
FROM semel.source_partition AS p
JOIN semel.claim AS c USING (source_partition_id)
JOIN semel.batch AS b USING (batch_id)
JOIN semel.batch AS r ON r.batch_id = COALESCE(b.replays, b.batch_id)
WHERE p.pipeline_id = :pipeline_id AND p.name = ANY(CAST(:names AS text[]))
  AND r.status <> 'abandoned'
ORDER BY r.commit_seq, root;

-- name: apart
-- Of some batches, each with names of parts that have other output now, those whose records cannot be
-- judged as a whole again, and why: it is an `admission`, or one has judged some of them; an `other`
-- batch, except `orphans`, reads a part of such a name; or one was accepted as new rows, which no
-- batch has taken yet.
SELECT * FROM (
    SELECT s.root,
           (SELECT min(b.batch_id) FROM semel.batch AS b
            WHERE b.status <> 'abandoned'
              AND (b.admits = s.root OR b.batch_id = s.root AND b.admits IS NOT NULL)) AS admission,
           min(COALESCE(b.replays, b.batch_id))
               FILTER (WHERE COALESCE(b.replays, b.batch_id) <> s.root) AS other,
           bool_or(p.closed_at IS NULL AND p.retired_at IS NULL
                   AND COALESCE(b.replays, b.batch_id, 0) <> s.root) AS offered
    FROM unnest(CAST(:roots AS bigint[]), CAST(:names AS text[])) AS s (root, name)
    JOIN semel.source_partition AS p ON p.pipeline_id = :pipeline_id AND p.name = s.name
    LEFT JOIN semel.claim AS c ON c.source_partition_id = p.source_partition_id
                              AND NOT c.batch_id = ANY(CAST(:orphans AS bigint[]))
    LEFT JOIN semel.batch AS b USING (batch_id)
    GROUP BY s.root) AS why
WHERE admission IS NOT NULL OR other IS NOT NULL OR offered;

-- name: admission
SELECT batch_id FROM semel.batch
WHERE admits = :root AND admission = :admission AND status = 'finalized';

-- name: last_admission
-- The newest admission of a batch, at work or not.
SELECT b.batch_id, b.admission, b.status, b.request_key,
       {failed b} AS failed,
       b.seen_at > clock_timestamp() - make_interval(secs => :silent_seconds) AS alive,
       a.quarantined + a.late AS letters
FROM semel.batch AS b
LEFT JOIN semel.attempt AS a ON a.batch_id = b.batch_id AND a.status = 'won'
WHERE b.admits = :root AND b.status <> 'abandoned'
ORDER BY b.admission DESC
LIMIT 1;

-- name: generations
-- The outputs of a batch before one, with the attempt that won each, and what sink took them how:
-- where a later batch was put in in mode upsert, so were they, for it may have replaced their rows.
SELECT b.batch_id, b.generation, b.commit_seq, a.fence, b.spec -> 'sink' ->> 'type' AS type,
       CASE WHEN EXISTS (SELECT FROM semel.batch AS r
                         JOIN semel.batch AS l USING (pipeline_id)
                         WHERE r.batch_id = :root AND l.commit_seq > r.commit_seq
                           AND l.spec -> 'sink' ->> 'mode' = 'upsert')
            THEN 'upsert' ELSE b.spec -> 'sink' ->> 'mode' END AS mode
FROM semel.batch AS b
JOIN semel.attempt AS a ON a.batch_id = b.batch_id AND a.status = 'won'
WHERE COALESCE(b.replays, b.batch_id) = :root AND b.generation < :generation
  AND b.status = 'finalized'
ORDER BY b.generation;
