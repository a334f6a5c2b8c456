-- The ledger of semel, whole: this file is the sum of sql/migrations/ (a test compares the two).
-- PostgreSQL 14 and newer. No triggers; each rule of docs/protocol.md that the database can hold is
-- a constraint here, with the damage that it prevents.

CREATE SCHEMA semel;
CREATE EXTENSION IF NOT EXISTS btree_gist WITH SCHEMA public;

-- A pipeline: the row whose lock orders its planners and committers.
CREATE TABLE semel.pipeline (
    pipeline_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name              text NOT NULL,
    -- Where its rows go, without secrets.
    sink_address      text NOT NULL,
    identity          text NOT NULL,
    shards            int NOT NULL CHECK (shards BETWEEN 1 AND 256),
    bucket_seconds    int NOT NULL CHECK (bucket_seconds > 0),
    commit_seq        bigint NOT NULL DEFAULT 0 CHECK (commit_seq >= 0),
    batch_time_last   timestamptz NOT NULL DEFAULT '1970-01-01 00:00:00+00',
    sink_schema       text,
    lease_batch_id    bigint,
    lease_until       timestamptz,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Grows with each change of the pipeline's partitions, claims and losses.
    source_version    bigint NOT NULL DEFAULT 0 CHECK (source_version >= 0),
    -- The folder of markers and what else is kept of its batches.
    archive_path      text NOT NULL,
    -- Buckets of record time whose ids were forgotten: what comes of them again is late.
    forgotten         int8multirange NOT NULL DEFAULT '{}',
    -- The first commit that is exactly once: repeats may be there before. Null: it is at least once.
    exact_from        bigint DEFAULT 1 CHECK (exact_from BETWEEN 1 AND commit_seq + 1),
    -- With select: interval: the time that plans have looked at, all of which is finalized.
    covered           tstzmultirange NOT NULL DEFAULT '{}',
    -- With select: arrival: windows are complete up to here. Null: not known.
    event_time        timestamptz,
    CONSTRAINT pipeline_name_unique UNIQUE (name),
    -- This prevents a renamed pipeline from writing all of its records a second time beside the first.
    -- Keeps P12.
    CONSTRAINT pipeline_sink_unique UNIQUE (sink_address),
    -- This prevents two pipelines from writing markers of one name.
    CONSTRAINT pipeline_archive_unique UNIQUE (archive_path),
    CONSTRAINT pipeline_lease_whole CHECK ((lease_batch_id IS NULL) = (lease_until IS NULL)),
    -- The greatest record time that is finalized, whatever is unread or open beside it.
    arrived_to        timestamptz,
    -- The newest batch up to which all is finalized that one look at the source saw. Its times, and
    -- those of batches before it, are in event_time.
    frontier          bigint NOT NULL DEFAULT 0 CHECK (frontier >= 0),
    -- The person, and the time, by whose word held windows counted as complete last.
    late_by           text,
    late_at           timestamptz
);

-- A source partition: the unit in which a source orders its records, such as one generation of a
-- file. Open; or closed, because it is gone, until it comes back; or retired by a person's word, for
-- ever.
CREATE TABLE semel.source_partition (
    source_partition_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline_id       bigint NOT NULL REFERENCES semel.pipeline,
    name              text NOT NULL,
    generation        int NOT NULL CHECK (generation >= 1),
    -- The end of what was claimed.
    reached           bigint NOT NULL DEFAULT 0 CHECK (reached >= 0),
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    retired_at        timestamptz,
    -- The end of what a plan saw.
    seen              bigint NOT NULL DEFAULT 0 CHECK (seen >= 0),
    closed_at         timestamptz,
    -- Closed, and all that was seen of it is claimed or a recorded loss.
    accounted         boolean NOT NULL DEFAULT false,
    -- Stays under another name: a file's device and inode.
    identity          text NOT NULL,
    -- How it looked when a plan last saw it: a file's size and times of change.
    fingerprint       text NOT NULL DEFAULT '',
    -- While it looks so, and is read to its end, no plan need look at it.
    settled           boolean NOT NULL DEFAULT false,
    -- What recognises it, by its source: hashes of what was read of a file, its time of birth.
    evidence          jsonb NOT NULL DEFAULT '{}',
    -- Nothing before it is free, nor can become so: what a plan looks at does not grow with the
    -- claims that a partition ever had.
    floor             bigint NOT NULL DEFAULT 0 CHECK (floor >= 0),
    -- Of a stream: all before it is finalized or lost, the greatest record time in there, and when
    -- it moved last.
    finalized_to      bigint NOT NULL DEFAULT 0 CHECK (finalized_to >= 0),
    event_time        timestamptz,
    moved_at          timestamptz,
    -- This prevents two open generations of one name: the same records would be read under both.
    -- Deferred, because a log rotation moves several files in one transaction.
    -- Keeps P9.
    CONSTRAINT source_partition_name_open EXCLUDE USING btree
        (pipeline_id WITH =, name WITH =) WHERE (retired_at IS NULL AND closed_at IS NULL)
        DEFERRABLE INITIALLY DEFERRED,
    -- This prevents one file from being read under two paths (hard links).
    -- Keeps P9.
    CONSTRAINT source_partition_identity_open EXCLUDE USING btree
        (pipeline_id WITH =, identity WITH =) WHERE (retired_at IS NULL AND closed_at IS NULL)
        DEFERRABLE INITIALLY DEFERRED
);
CREATE INDEX source_partition_generation
    ON semel.source_partition (pipeline_id, name, generation);
CREATE INDEX source_partition_gone ON semel.source_partition (pipeline_id)
    WHERE retired_at IS NULL AND closed_at IS NOT NULL AND NOT accounted;
-- The next three are for files, which are recognised by what is in them.
CREATE INDEX source_partition_inode ON semel.source_partition
    (pipeline_id, split_part(identity, ':', 2), source_partition_id)
    WHERE retired_at IS NULL AND closed_at IS NOT NULL AND reached > 0;
CREATE INDEX source_partition_head ON semel.source_partition
    (pipeline_id, (evidence ->> 'head_hash'), (closed_at IS NULL), source_partition_id DESC)
    WHERE reached > 0;
CREATE INDEX source_partition_first ON semel.source_partition
    (pipeline_id, (evidence ->> 'first_hash'), (CAST(evidence ->> 'head_length' AS int)))
    WHERE retired_at IS NULL AND reached > 0;

-- A batch: a fixed set of offset ranges, written down before any work.
CREATE TABLE semel.batch (
    batch_id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline_id       bigint NOT NULL REFERENCES semel.pipeline,
    request_key       text NOT NULL CHECK (request_key <> ''),
    ordinal           int NOT NULL CHECK (ordinal >= 1),
    status            text NOT NULL DEFAULT 'planned'
                      CHECK (status IN ('planned', 'committed', 'finalized', 'abandoned')),
    spec              jsonb NOT NULL,
    spec_digest       text NOT NULL,
    split_bytes       bigint NOT NULL CHECK (split_bytes > 0),
    interval_start    timestamptz,
    interval_end      timestamptz,
    commit_seq        bigint,
    batch_time        timestamptz,
    reason            text,
    planned_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    committed_at      timestamptz,
    finalized_at      timestamptz,
    -- A replay computes the output of another batch again, its root's. It reads the root's ranges by
    -- the root's verdicts, so it adds no ids, and takes no place in the order of commits: it stands at
    -- its root's. It has claims only where another pipeline has replaced what the root has read.
    replays           bigint REFERENCES semel.batch,
    generation        int NOT NULL DEFAULT 1 CHECK (generation >= 1),
    -- The batch whose verdicts it takes: its root, or the newest replay that has claims. Null: it
    -- judges its records itself.
    judged_by         bigint REFERENCES semel.batch,
    -- The replay whose commit retired this output, and when its files were removed.
    replaced_by       bigint REFERENCES semel.batch,
    files_removed_at  timestamptz,
    -- An admission judges dead letters of another batch again: those that its last admission left.
    admits            bigint REFERENCES semel.batch,
    admission         int CHECK (admission >= 1),
    -- With select: interval: the time of which all is finalized with it. Null: of none.
    covers            tstzmultirange,
    -- With select: arrival: from where to where it moved the event time, if it did.
    passed_from       timestamptz,
    passed_to         timestamptz,
    -- A plan of select: arrival looked at the source, and saw nothing but what this batch or earlier
    -- ones have claimed.
    is_full           boolean NOT NULL DEFAULT false,
    -- The pack that has the marker of the batch, by name, and when the ledger's own rows about its
    -- claims, files and lost attempts went. Between the two, collect is at work on it.
    packed_in         text,
    packed_at         timestamptz,
    -- This prevents a batch from losing its rows before its marker is in a pack, and a batch whose output
    -- or verdicts another one needs from losing them at all.
    -- Keeps HI1.
    CONSTRAINT batch_packed_whole CHECK (
        (packed_in IS NULL OR (status = 'finalized' AND replays IS NULL AND admits IS NULL
                               AND replaced_by IS NULL))
        AND (packed_at IS NULL OR packed_in IS NOT NULL)),
    -- This prevents two batches from taking the same place in the order of commits.
    CONSTRAINT batch_commit_seq_unique UNIQUE (pipeline_id, commit_seq),
    CONSTRAINT batch_committed_whole CHECK (
        (status IN ('committed', 'finalized')) = (committed_at IS NOT NULL)
        AND (commit_seq IS NOT NULL) = (committed_at IS NOT NULL AND replays IS NULL)
        AND (commit_seq IS NULL) = (batch_time IS NULL)),
    CONSTRAINT batch_replay_whole CHECK ((replays IS NULL) = (generation = 1)),
    CONSTRAINT batch_judged CHECK (judged_by IS NULL OR replays IS NOT NULL),
    CONSTRAINT batch_replaced_finalized CHECK (
        (replaced_by IS NULL OR status = 'finalized')
        AND (files_removed_at IS NULL OR replaced_by IS NOT NULL)),
    CONSTRAINT batch_admission_whole CHECK (
        (admits IS NULL) = (admission IS NULL) AND (admits IS NULL OR replays IS NULL)),
    -- This prevents a replay or an admission, which look at no source, from covering time.
    -- Keeps W1.
    CONSTRAINT batch_covers_planned CHECK (
        covers IS NULL OR (interval_start IS NOT NULL AND replays IS NULL AND admits IS NULL)),
    CONSTRAINT batch_passed_whole CHECK (
        (passed_from IS NULL) = (passed_to IS NULL) AND passed_from <= passed_to),
    CONSTRAINT batch_finalized_whole CHECK ((status = 'finalized') = (finalized_at IS NOT NULL)),
    CONSTRAINT batch_interval_whole CHECK (
        (interval_start IS NULL) = (interval_end IS NULL) AND interval_start < interval_end)
);
-- This prevents a retried plan from cutting a second batch for the same request. Of replays and
-- admissions a request has one for each batch, and each of these is counted apart.
-- Keeps P5.
CREATE UNIQUE INDEX batch_request_unique ON semel.batch
    (pipeline_id, request_key, COALESCE(replays, 0), COALESCE(admits, 0), ordinal);
CREATE INDEX batch_open ON semel.batch (pipeline_id) WHERE status IN ('planned', 'committed');
CREATE INDEX batch_full ON semel.batch (pipeline_id, batch_id) WHERE is_full;
CREATE INDEX batch_newest ON semel.batch (pipeline_id, batch_id);
CREATE INDEX batch_interval ON semel.batch (pipeline_id, interval_end, interval_start)
    WHERE interval_start IS NOT NULL;
-- This prevents a batch from having two outputs that both count.
-- Keeps RP2.
CREATE UNIQUE INDEX batch_generation ON semel.batch (COALESCE(replays, batch_id), generation)
    WHERE status <> 'abandoned';
CREATE UNIQUE INDEX batch_replaced_once ON semel.batch (replaced_by) WHERE replaced_by IS NOT NULL;
-- The dead letters of a batch are judged again by its first admission, what that one leaves by the
-- second, and so on. This prevents a dead letter from being admitted twice.
-- Keeps RP9.
CREATE UNIQUE INDEX batch_admission ON semel.batch (admits, admission) WHERE status <> 'abandoned';
CREATE INDEX batch_replaced ON semel.batch (pipeline_id)
    WHERE replaced_by IS NOT NULL AND files_removed_at IS NULL;
CREATE INDEX batch_unpacked ON semel.batch (pipeline_id, finalized_at)
    WHERE packed_in IS NULL AND status = 'finalized';
CREATE INDEX batch_packing ON semel.batch (pipeline_id)
    WHERE packed_in IS NOT NULL AND packed_at IS NULL;

-- A claim: one offset range of one source partition, owned by one batch.
CREATE TABLE semel.claim (
    batch_id          bigint NOT NULL REFERENCES semel.batch,
    ordinal           int NOT NULL CHECK (ordinal >= 0),
    source_partition_id bigint NOT NULL REFERENCES semel.source_partition,
    span              int8range NOT NULL,
    -- What recognises what was read up to its end: its partition's own when the claims behind it go.
    evidence          jsonb NOT NULL DEFAULT '{}',
    -- Of the records that were read of it, where windows are declared.
    time_min          timestamptz,
    time_max          timestamptz,
    PRIMARY KEY (batch_id, ordinal),
    CONSTRAINT claim_times_whole CHECK (
        (time_min IS NULL) = (time_max IS NULL) AND time_min <= time_max),
    -- This prevents a position from being claimed twice, whatever our own code does.
    -- Keeps P3.
    CONSTRAINT claim_disjoint EXCLUDE USING gist (source_partition_id WITH =, span WITH &&),
    -- An empty range passes the exclusion, and an unbounded one would swallow all that comes. A replay
    -- has an empty claim of what has no rows now, so that nobody reads what was there.
    -- Keeps P4.
    CONSTRAINT claim_bounded CHECK (
        NOT lower_inf(span) AND NOT upper_inf(span) AND lower(span) >= 0
        AND (NOT isempty(span) OR COALESCE(evidence -> 'rows' = '0', false)))
);

-- What a batch reads: what it has claimed. A replay reads of each ordinal the newest claim of its root
-- and of the replays up to itself, and an admission what the batch reads whose dead letters it judges.
CREATE VIEW semel.reads AS
SELECT b.batch_id, c.ordinal, c.source_partition_id, COALESCE(lower(c.span), 0) AS start,
       COALESCE(upper(c.span), 0) AS "end", c.evidence
FROM semel.batch AS b
LEFT JOIN semel.batch AS r ON r.batch_id = b.replays
CROSS JOIN LATERAL (
    SELECT DISTINCT ON (c.ordinal) c.*
    FROM semel.batch AS g
    JOIN semel.claim AS c USING (batch_id)
    WHERE COALESCE(g.replays, g.batch_id) = COALESCE(b.admits, r.admits, b.replays, b.batch_id)
      AND (g.generation <= b.generation OR COALESCE(b.admits, r.admits) IS NOT NULL)
      AND g.status <> 'abandoned'
    ORDER BY c.ordinal, g.generation DESC) AS c;

-- A loss: positions that are not read, and whose word that is: their file is gone or was replaced,
-- they repeat what was read before, they are a hole, or were gone before a plan first looked. It is
-- subtracted like a claim: what is lost is accounted for, not forgotten.
CREATE TABLE semel.loss (
    source_partition_id bigint NOT NULL REFERENCES semel.source_partition,
    span              int8range NOT NULL,
    reason            text NOT NULL CHECK (reason IN ('gone', 'replaced', 'repeated', 'hole', 'before')),
    accepted_by       text NOT NULL,
    accepted_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- This prevents a loss from being counted twice.
    CONSTRAINT loss_disjoint EXCLUDE USING gist (source_partition_id WITH =, span WITH &&),
    CONSTRAINT loss_bounded CHECK (
        NOT isempty(span) AND NOT lower_inf(span) AND NOT upper_inf(span) AND lower(span) >= 0)
);

-- Of each partition, up to where its positions are all claimed or lost, from its floor on.
CREATE VIEW semel.taken AS
SELECT p.source_partition_id, lower(first.span) AS "end"
FROM semel.source_partition AS p
CROSS JOIN LATERAL (
    SELECT unnest(int8multirange(int8range(p.floor, NULL)) - range_agg(taken.span)) AS span
    FROM (SELECT c.span FROM semel.claim AS c
          WHERE c.source_partition_id = p.source_partition_id
            AND c.span && int8range(p.floor, NULL)
          UNION ALL
          SELECT l.span FROM semel.loss AS l
          WHERE l.source_partition_id = p.source_partition_id
            AND l.span && int8range(p.floor, NULL)) AS taken
    ORDER BY 1 LIMIT 1) AS first;

-- An attempt: one try at staging a batch; its fence is its number within the batch.
CREATE TABLE semel.attempt (
    attempt_id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    batch_id          bigint NOT NULL REFERENCES semel.batch,
    fence             int NOT NULL CHECK (fence >= 1),
    status            text NOT NULL DEFAULT 'running'
                      CHECK (status IN ('running', 'staged', 'won', 'lost')),
    snapshot_seq      bigint NOT NULL CHECK (snapshot_seq >= 0),
    driver            text NOT NULL,
    input_digest      text,
    sink_schema       text,
    records_read      bigint CHECK (records_read >= 0),
    survivors         bigint CHECK (survivors >= 0),
    duplicates_batch  bigint CHECK (duplicates_batch >= 0),
    duplicates_catalog bigint CHECK (duplicates_catalog >= 0),
    quarantined       bigint CHECK (quarantined >= 0),
    late              bigint CHECK (late >= 0),
    rows_written      bigint CHECK (rows_written >= 0),
    bytes_read        bigint CHECK (bytes_read >= 0),
    reason            text,
    started_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    staged_at         timestamptz,
    ended_at          timestamptz,
    -- What was forgotten when it began, and in scope bucket the buckets that its ids are of.
    forgotten         int8multirange NOT NULL,
    buckets           int8multirange,
    -- With windows: the record times of what it read, first to last of each split. Null: not known.
    times             tstzmultirange,
    -- The share of its tasks that dropped duplicates: in a batch after one with few of them, tasks write
    -- the output before their records are classified.
    duplicates_spread real CHECK (duplicates_spread BETWEEN 0 AND 1),
    CONSTRAINT attempt_fence_unique UNIQUE (batch_id, fence),
    -- This prevents a record from vanishing without an account: the sum holds or nothing commits.
    -- Keeps S12.
    CONSTRAINT attempt_accounted CHECK (
        status NOT IN ('staged', 'won') OR COALESCE(
            records_read = survivors + duplicates_batch + duplicates_catalog + quarantined + late
            AND input_digest IS NOT NULL AND sink_schema IS NOT NULL
            AND rows_written IS NOT NULL AND bytes_read IS NOT NULL
            AND staged_at IS NOT NULL, false))
);
-- This prevents two attempts of one batch from both reaching the output.
-- Keeps C7.
CREATE UNIQUE INDEX attempt_won_once ON semel.attempt (batch_id) WHERE status = 'won';
CREATE INDEX attempt_open ON semel.attempt (batch_id) WHERE status IN ('running', 'staged');

-- A task that stores ids locks its attempt with this function, because a plain FOR SHARE needs the right
-- to UPDATE attempts. Executors have no such right (sql/roles.sql).
CREATE FUNCTION semel.share_attempt(bigint) RETURNS TABLE (attempt_id bigint, status text)
    LANGUAGE sql SECURITY DEFINER ROWS 1 SET search_path = pg_catalog, pg_temp
    AS 'SELECT a.attempt_id, a.status FROM semel.attempt AS a WHERE a.attempt_id = $1 FOR SHARE';
REVOKE ALL ON FUNCTION semel.share_attempt(bigint) FROM PUBLIC;

-- A manifest: the files that an attempt wrote and their final names.
CREATE TABLE semel.manifest_file (
    attempt_id        bigint NOT NULL REFERENCES semel.attempt,
    batch_id          bigint NOT NULL REFERENCES semel.batch,
    ordinal           int NOT NULL CHECK (ordinal >= 0),
    kind              text NOT NULL CHECK (kind IN ('data', 'decisions', 'dead_letters', 'ids')),
    staged_path       text NOT NULL,
    final_path        text NOT NULL,
    records           bigint NOT NULL CHECK (records >= 0),
    bytes             bigint NOT NULL CHECK (bytes >= 0),
    checksum          text NOT NULL,
    PRIMARY KEY (attempt_id, ordinal),
    CONSTRAINT manifest_file_final_unique UNIQUE (attempt_id, final_path),
    -- This prevents one batch's file from taking the name of another batch's.
    -- Keeps S18.
    CONSTRAINT manifest_file_final_owned EXCLUDE USING gist
        (final_path WITH =, batch_id WITH <>)
);

-- A segment: the table that holds the payloads of the id runs made in one drop span.
-- Payload tables are named semel.ids_<segment_id>. No foreign key points at them: dropping one must
-- not queue behind readers of the headers.
CREATE TABLE semel.segment (
    segment_id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline_id       bigint NOT NULL REFERENCES semel.pipeline,
    span_start        timestamptz NOT NULL,
    span_end          timestamptz NOT NULL,
    dropped_at        timestamptz,
    CONSTRAINT segment_span_unique UNIQUE (pipeline_id, span_start),
    CONSTRAINT segment_span_whole CHECK (span_start < span_end)
);
CREATE INDEX segment_there ON semel.segment (pipeline_id) WHERE dropped_at IS NULL;
CREATE INDEX segment_dropped ON semel.segment (pipeline_id, dropped_at) WHERE dropped_at IS NOT NULL;

-- An id run: the header of the sorted ids that one attempt (or one merge) added to one shard.
CREATE TABLE semel.id_run (
    id_run_id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline_id       bigint NOT NULL REFERENCES semel.pipeline,
    attempt_id        bigint REFERENCES semel.attempt,
    shard             int NOT NULL CHECK (shard >= 0),
    seq_min           bigint,
    seq_max           bigint,
    expires_at        timestamptz,
    segment_id        bigint NOT NULL REFERENCES semel.segment,
    ids               bigint NOT NULL CHECK (ids > 0),
    filter_bytes      bigint NOT NULL CHECK (filter_bytes > 0),
    checksum          text NOT NULL,
    retired_at        timestamptz,
    retired_by        bigint REFERENCES semel.id_run,
    -- How often earlier runs' filters were asked for ids that their runs do not have, as this run's
    -- ids were looked up, and how often one said yes. Of a merged run: of its parts. Null: not known.
    asked             bigint,
    false_hits        bigint,
    -- In scope bucket: which its ids are of.
    buckets           int8multirange,
    CONSTRAINT id_run_asked CHECK (
        (asked IS NULL) = (false_hits IS NULL) AND false_hits BETWEEN 0 AND asked),
    -- An empty set would be asked by nobody.
    CONSTRAINT id_run_buckets_whole CHECK (NOT isempty(buckets)),
    CONSTRAINT id_run_seq_whole CHECK (
        (seq_min IS NULL) = (seq_max IS NULL) AND seq_min <= seq_max
        AND (seq_min IS NULL) = (expires_at IS NULL)),
    -- A merged run is born visible; an attempt's run becomes visible when the attempt wins.
    CONSTRAINT id_run_merged_visible CHECK (attempt_id IS NOT NULL OR seq_min IS NOT NULL),
    -- This prevents two speculative tasks from adding the same ids twice.
    -- Keeps S9.
    CONSTRAINT id_run_attempt_unique UNIQUE (attempt_id, shard)
);
CREATE INDEX id_run_live ON semel.id_run (pipeline_id, shard)
    WHERE seq_min IS NOT NULL AND retired_at IS NULL;
CREATE INDEX id_run_segment ON semel.id_run (segment_id);
CREATE INDEX id_run_retired_by ON semel.id_run (retired_by) WHERE retired_by IS NOT NULL;

-- What plan refused to read, and why: shown by `semel gaps` until it is gone or accepted.
CREATE TABLE semel.refusal (
    pipeline_id       bigint NOT NULL REFERENCES semel.pipeline,
    name              text NOT NULL,
    reason            text NOT NULL,
    detail            text NOT NULL,
    seen_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Of the copy of a file: while it is as it was, it stays refused, also when the other file went on.
    -- Keeps P17.
    inode             bigint,
    size              bigint,
    copy_of           text,
    behind            bigint,
    CONSTRAINT refusal_of_a_copy CHECK (num_nulls(inode, size, copy_of) IN (0, 3)),
    PRIMARY KEY (pipeline_id, name)
);

-- An erasure: a person's word that rows of a batch's newest output, and records of its files in the
-- archive, are gone on purpose. The batch's marker has it, too. `batch_id` is no replay's.
CREATE TABLE semel.erasure (
    batch_id          bigint NOT NULL REFERENCES semel.batch,
    accepted_at       timestamptz NOT NULL,
    accepted_by       text NOT NULL,
    reason            text NOT NULL CHECK (reason <> ''),
    rows              bigint NOT NULL CHECK (rows >= 0),
    records           bigint NOT NULL CHECK (records >= 0),
    -- This prevents one word from being counted twice.
    -- Keeps ER2.
    CONSTRAINT erasure_once PRIMARY KEY (batch_id, accepted_at)
);
