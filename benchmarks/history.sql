-- A ledger with a history: copies of the rows that one real batch left, with other ids. So columns
-- may come and go; only keys and what is unique are named here. {batches}, {files}, {claims} and
-- {segments} are numbers; {first} is above every id in use; {batch} is the real batch, {pipeline} its
-- pipeline.

-- What the files that are gone from the folder have left: a file system gives their inodes again,
-- and those of every other one were as short as they liked, or began as many others did.
INSERT INTO semel.source_partition OVERRIDING SYSTEM VALUE
SELECT made.*
FROM (SELECT to_jsonb(p) AS row FROM semel.source_partition AS p
      WHERE pipeline_id = {pipeline} AND closed_at IS NOT NULL LIMIT 1) AS one,
     generate_series(0, {files} - 1) AS n,
     jsonb_populate_record(NULL::semel.source_partition, row || jsonb_build_object(
         'source_partition_id', {first} + n, 'name', '/gone/' || n || '.jsonl',
         'identity', CASE n % 2 WHEN 0 THEN row ->> 'identity' ELSE '1:' || 8000000000 + n END,
         'evidence', (row -> 'evidence') || jsonb_build_object(
             'head_length',
             CASE n % 2 WHEN 0 THEN (row -> 'evidence' ->> 'head_length')::int ELSE 1 + n % 4096 END,
             'head_hash',
             CASE n % 4 WHEN 0 THEN row -> 'evidence' ->> 'head_hash' ELSE md5(n::text) END,
             'tail_hash', md5(n::text)),
         'closed_at', now(), 'accounted', true)) AS made;

INSERT INTO semel.batch OVERRIDING SYSTEM VALUE
SELECT made.*
FROM (SELECT to_jsonb(b) AS row FROM semel.batch AS b WHERE batch_id = {batch}) AS one,
     generate_series(0, {batches} - 1) AS n,
     jsonb_populate_record(NULL::semel.batch, row || jsonb_build_object(
         'batch_id', {first} + n, 'request_key', 'old-' || n, 'commit_seq', {first} + n)) AS made;

INSERT INTO semel.attempt OVERRIDING SYSTEM VALUE
SELECT made.*
FROM (SELECT to_jsonb(a) AS row FROM semel.attempt AS a WHERE batch_id = {batch}) AS one,
     generate_series(0, {batches} - 1) AS n,
     jsonb_populate_record(NULL::semel.attempt, row || jsonb_build_object(
         'attempt_id', {first} + n, 'batch_id', {first} + n)) AS made;

INSERT INTO semel.claim
SELECT made.*
FROM (SELECT to_jsonb(c) AS row FROM semel.claim AS c WHERE batch_id = {batch}) AS one,
     generate_series(0, {claims} - 1) AS n,
     jsonb_populate_record(NULL::semel.claim, row || jsonb_build_object(
         'batch_id', {first} + n % {batches}, 'ordinal', n / {batches},
         'source_partition_id', {first} + n % {files},
         'span', int8range(100 * (n / {files}), 100 * (n / {files}) + 100))) AS made;

INSERT INTO semel.manifest_file
SELECT made.*
FROM (SELECT to_jsonb(f) AS row FROM semel.manifest_file AS f
      WHERE batch_id = {batch} LIMIT 1) AS one,
     generate_series(0, {batches} - 1) AS n,
     jsonb_populate_record(NULL::semel.manifest_file, row || jsonb_build_object(
         'attempt_id', {first} + n, 'batch_id', {first} + n,
         'staged_path', '/gone/s' || n, 'final_path', '/gone/f' || n)) AS made;

-- Spans that are over. Of each, its table was dropped. Their numbers are below those in use.
INSERT INTO semel.segment OVERRIDING SYSTEM VALUE
SELECT n - {segments}, s.pipeline_id, s.span_start - (n + 1) * (s.span_end - s.span_start),
       s.span_start - n * (s.span_end - s.span_start), s.span_start
FROM (SELECT * FROM semel.segment WHERE pipeline_id = {pipeline} ORDER BY span_start DESC LIMIT 1) AS s,
     generate_series(0, {segments} - 1) AS n;

-- Four id runs a batch, all retired.
INSERT INTO semel.id_run OVERRIDING SYSTEM VALUE
SELECT made.*
FROM (SELECT to_jsonb(r) AS row FROM semel.id_run AS r
      WHERE pipeline_id = {pipeline} LIMIT 1) AS one,
     generate_series(0, 4 * {batches} - 1) AS n,
     jsonb_populate_record(NULL::semel.id_run, row || jsonb_build_object(
         'id_run_id', {first} + n, 'attempt_id', {first} + n / 4, 'shard', n % 4,
         'seq_min', {first} + n / 4, 'seq_max', {first} + n / 4,
         'segment_id', (n / 4) * {segments} / {batches} - {segments},
         'retired_at', '2020-01-01T00:00:00Z')) AS made;

UPDATE semel.pipeline SET commit_seq = {first} + {batches} WHERE pipeline_id = {pipeline};
SELECT setval(pg_get_serial_sequence(t, c), {first} + 4 * {claims})
FROM (VALUES ('semel.source_partition', 'source_partition_id'), ('semel.batch', 'batch_id'),
             ('semel.attempt', 'attempt_id'), ('semel.segment', 'segment_id'),
             ('semel.id_run', 'id_run_id')) AS s (t, c);
