-- kafka: which source partitions of topics are known.

-- name: closed
-- Those that were not to be seen for a while: they go on where they stood.
SELECT p.source_partition_id, p.name, p.generation, p.identity, p.fingerprint, p.settled, p.reached,
       p.seen, p.evidence, true AS closed
FROM semel.source_partition AS p
WHERE p.pipeline_id = :pipeline_id AND p.retired_at IS NULL AND p.closed_at IS NOT NULL
  AND p.identity = ANY(CAST(:identities AS text[]));

-- name: topics
-- Of some topics, by their ids, those of which a partition is known.
SELECT DISTINCT p.evidence ->> 'topic_id' AS topic
FROM semel.source_partition AS p
WHERE p.pipeline_id = :pipeline_id AND p.evidence ->> 'topic_id' = ANY(CAST(:topics AS text[]));

-- name: reached
-- How far the newest batches of intervals that ended by a time have come: more than one may be of
-- the same interval.
SELECT c.source_partition_id, max(upper(c.span)) AS reached
FROM (SELECT batch_id FROM semel.batch
      WHERE pipeline_id = :pipeline_id AND interval_start IS NOT NULL AND interval_end <= :until
        AND replays IS NULL AND status <> 'abandoned'
      ORDER BY interval_end DESC, batch_id DESC LIMIT 20) AS b
JOIN semel.claim AS c USING (batch_id)
WHERE c.source_partition_id = ANY(CAST(:partitions AS bigint[]))
GROUP BY c.source_partition_id;
