-- Old batches whose markers lie in packs: with limits.keep_history the ledger keeps a short row of each.

-- The pack that has the marker of the batch, by name, and when the ledger's own rows about its claims,
-- files and lost attempts went. Between the two, collect is at work on it.
ALTER TABLE semel.batch ADD COLUMN packed_in text, ADD COLUMN packed_at timestamptz;
-- This prevents a batch from losing its rows before its marker is in a pack, and a batch whose output
-- or verdicts another one needs from losing them at all.
-- Keeps HI1.
ALTER TABLE semel.batch ADD CONSTRAINT batch_packed_whole CHECK (
    (packed_in IS NULL OR (status = 'finalized' AND replays IS NULL AND admits IS NULL
                           AND replaced_by IS NULL))
    AND (packed_at IS NULL OR packed_in IS NOT NULL));
CREATE INDEX batch_unpacked ON semel.batch (pipeline_id, finalized_at)
    WHERE packed_in IS NULL AND status = 'finalized';
CREATE INDEX batch_packing ON semel.batch (pipeline_id)
    WHERE packed_in IS NOT NULL AND packed_at IS NULL;
-- The headers of the id runs of a segment that was dropped long ago are removed, too.
CREATE INDEX id_run_retired_by ON semel.id_run (retired_by) WHERE retired_by IS NOT NULL;
CREATE INDEX segment_dropped ON semel.segment (pipeline_id, dropped_at) WHERE dropped_at IS NOT NULL;
