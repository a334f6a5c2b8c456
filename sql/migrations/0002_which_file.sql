-- Which file is this: what recognises a file, partitions whose file is gone, and losses.

ALTER TABLE semel.pipeline
    ADD COLUMN source_version bigint NOT NULL DEFAULT 0 CHECK (source_version >= 0);

ALTER TABLE semel.source_partition RENAME COLUMN tail_end TO reached;
ALTER TABLE semel.source_partition
    RENAME CONSTRAINT source_partition_tail_end_check TO source_partition_reached_check;
-- PostgreSQL 18 gives NOT NULL a name, which these two make anew.
ALTER TABLE semel.source_partition ALTER COLUMN reached DROP NOT NULL;
ALTER TABLE semel.source_partition ALTER COLUMN reached SET NOT NULL;
ALTER TABLE semel.source_partition
    ADD COLUMN first_hash text NOT NULL DEFAULT '',
    ADD COLUMN last_length int NOT NULL DEFAULT 0 CHECK (last_length >= 0),
    ADD COLUMN last_hash text NOT NULL DEFAULT '',
    ADD COLUMN content bigint NOT NULL DEFAULT 0 CHECK (content >= 0),
    ADD COLUMN size bigint NOT NULL DEFAULT -1,
    ADD COLUMN mtime_ns bigint NOT NULL DEFAULT 0,
    ADD COLUMN ctime_ns bigint NOT NULL DEFAULT 0,
    ADD COLUMN birth_ns bigint,
    ADD COLUMN packed boolean NOT NULL DEFAULT false,
    ADD COLUMN closed_at timestamptz,
    ADD COLUMN accounted boolean NOT NULL DEFAULT false;
-- Claims of gzip files were of their bytes on disk until now, and stay so.
UPDATE semel.source_partition SET content = reached, packed = right(path, 3) = '.gz';

ALTER TABLE semel.source_partition DROP CONSTRAINT source_partition_path_open;
ALTER TABLE semel.source_partition DROP CONSTRAINT source_partition_inode_open;
ALTER TABLE semel.source_partition
    ADD CONSTRAINT source_partition_path_open EXCLUDE USING gist
        (pipeline_id WITH =, path WITH =) WHERE (retired_at IS NULL AND closed_at IS NULL)
        DEFERRABLE INITIALLY DEFERRED,
    ADD CONSTRAINT source_partition_inode_open EXCLUDE USING gist
        (pipeline_id WITH =, device WITH =, inode WITH =)
        WHERE (retired_at IS NULL AND closed_at IS NULL) DEFERRABLE INITIALLY DEFERRED;
CREATE INDEX source_partition_open ON semel.source_partition (pipeline_id, path)
    WHERE retired_at IS NULL AND closed_at IS NULL;
CREATE INDEX source_partition_inode ON semel.source_partition (pipeline_id, inode)
    WHERE retired_at IS NULL;
CREATE INDEX source_partition_head ON semel.source_partition (pipeline_id, head_length, head_hash)
    WHERE retired_at IS NULL AND reached > 0;
CREATE INDEX source_partition_generation
    ON semel.source_partition (pipeline_id, path, generation);
CREATE INDEX source_partition_gone ON semel.source_partition (pipeline_id)
    WHERE retired_at IS NULL AND closed_at IS NOT NULL AND NOT accounted;

ALTER TABLE semel.claim
    ADD COLUMN head_length int NOT NULL DEFAULT 0 CHECK (head_length >= 0),
    ADD COLUMN head_hash text NOT NULL DEFAULT '',
    ADD COLUMN first_hash text NOT NULL DEFAULT '',
    ADD COLUMN last_length int NOT NULL DEFAULT 0 CHECK (last_length >= 0),
    ADD COLUMN last_hash text NOT NULL DEFAULT '';
UPDATE semel.claim AS c
SET head_length = p.head_length, head_hash = p.head_hash
FROM semel.source_partition AS p
WHERE p.source_partition_id = c.source_partition_id;

CREATE TABLE semel.loss (
    source_partition_id bigint NOT NULL REFERENCES semel.source_partition,
    span              int8range NOT NULL,
    reason            text NOT NULL CHECK (reason IN ('gone', 'replaced', 'repeated', 'hole')),
    accepted_by       text NOT NULL,
    accepted_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT loss_disjoint EXCLUDE USING gist (source_partition_id WITH =, span WITH &&),
    CONSTRAINT loss_bounded CHECK (
        NOT isempty(span) AND NOT lower_inf(span) AND NOT upper_inf(span) AND lower(span) >= 0)
);
