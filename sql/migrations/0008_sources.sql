-- A source is not always a folder of files. A source partition has a name, an identity that stays under
-- another name, a fingerprint that differs when there may be something to read, and evidence.
ALTER TABLE semel.source_partition RENAME COLUMN path TO name;
ALTER TABLE semel.source_partition RENAME COLUMN content TO seen;
ALTER TABLE semel.source_partition
    RENAME CONSTRAINT source_partition_content_check TO source_partition_seen_check;
ALTER TABLE semel.source_partition
    RENAME CONSTRAINT source_partition_path_open TO source_partition_name_open;
ALTER TABLE semel.source_partition
    ADD COLUMN identity text,
    ADD COLUMN fingerprint text NOT NULL DEFAULT '',
    ADD COLUMN settled boolean NOT NULL DEFAULT false,
    ADD COLUMN evidence jsonb NOT NULL DEFAULT '{}';
UPDATE semel.source_partition
SET identity = device || ':' || inode,
    fingerprint = size || ':' || mtime_ns || ':' || ctime_ns,
    settled = size >= 0,
    evidence = jsonb_build_object(
        'head_length', head_length, 'head_hash', head_hash, 'first_hash', first_hash,
        'last_length', last_length, 'last_hash', last_hash, 'tail_hash', tail_hash,
        'birth_ns', birth_ns)
        || CASE WHEN packed THEN '{"packed": true}'::jsonb ELSE '{}' END;

ALTER TABLE semel.claim ADD COLUMN evidence jsonb NOT NULL DEFAULT '{}';
UPDATE semel.claim AS c
SET evidence = jsonb_build_object(
        'head_length', c.head_length, 'head_hash', c.head_hash, 'first_hash', c.first_hash,
        'last_length', c.last_length, 'last_hash', c.last_hash, 'tail_hash', c.tail_hash)
        || CASE WHEN p.packed THEN '{"packed": true}'::jsonb ELSE '{}' END
FROM semel.source_partition AS p
WHERE p.source_partition_id = c.source_partition_id;
ALTER TABLE semel.claim
    DROP COLUMN tail_hash, DROP COLUMN head_length, DROP COLUMN head_hash, DROP COLUMN first_hash,
    DROP COLUMN last_length, DROP COLUMN last_hash;

DROP INDEX semel.source_partition_head;
DROP INDEX semel.source_partition_first;
DROP INDEX semel.source_partition_inode;
ALTER TABLE semel.source_partition
    DROP CONSTRAINT source_partition_inode_open,
    DROP COLUMN device, DROP COLUMN inode, DROP COLUMN head_length, DROP COLUMN head_hash,
    DROP COLUMN tail_hash, DROP COLUMN first_hash, DROP COLUMN last_length, DROP COLUMN last_hash,
    DROP COLUMN size, DROP COLUMN mtime_ns, DROP COLUMN ctime_ns, DROP COLUMN birth_ns,
    DROP COLUMN packed;
ALTER TABLE semel.source_partition
    ALTER COLUMN identity SET NOT NULL,
    ADD CONSTRAINT source_partition_identity_open EXCLUDE USING btree
        (pipeline_id WITH =, identity WITH =) WHERE (retired_at IS NULL AND closed_at IS NULL)
        DEFERRABLE INITIALLY DEFERRED;
CREATE INDEX source_partition_inode ON semel.source_partition
    (pipeline_id, split_part(identity, ':', 2), source_partition_id)
    WHERE retired_at IS NULL AND closed_at IS NOT NULL AND reached > 0;
CREATE INDEX source_partition_head ON semel.source_partition
    (pipeline_id, (evidence ->> 'head_hash'), (closed_at IS NULL), source_partition_id DESC)
    WHERE retired_at IS NULL AND reached > 0;
CREATE INDEX source_partition_first ON semel.source_partition
    (pipeline_id, (evidence ->> 'first_hash'), (CAST(evidence ->> 'head_length' AS int)))
    WHERE retired_at IS NULL AND reached > 0;

ALTER TABLE semel.refusal RENAME COLUMN path TO name;
-- From PostgreSQL 18 on, NOT NULL is a constraint with a name, in which the column's old one stays.
DO $$
DECLARE old record;
BEGIN
    FOR old IN
        SELECT r.relname, c.conname,
               replace(replace(c.conname, '_path_', '_name_'), '_content_', '_seen_') AS wanted
        FROM pg_constraint AS c JOIN pg_class AS r ON r.oid = c.conrelid
        WHERE c.conname IN ('source_partition_path_not_null', 'source_partition_content_not_null',
                            'refusal_path_not_null')
    LOOP
        EXECUTE 'ALTER TABLE semel.' || old.relname || ' RENAME CONSTRAINT ' || old.conname
                || ' TO ' || old.wanted;
    END LOOP;
END $$;
