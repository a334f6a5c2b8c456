-- Complete means complete: which plans left nothing, and how far these make a pipeline complete.

ALTER TABLE semel.pipeline ADD COLUMN arrived_to timestamptz;
ALTER TABLE semel.pipeline ADD COLUMN frontier bigint NOT NULL DEFAULT 0 CHECK (frontier >= 0);
ALTER TABLE semel.pipeline ADD COLUMN late_by text;
ALTER TABLE semel.pipeline ADD COLUMN late_at timestamptz;
ALTER TABLE semel.batch ADD COLUMN is_full boolean NOT NULL DEFAULT false;
ALTER TABLE semel.attempt ADD COLUMN times tstzmultirange;
CREATE INDEX batch_full ON semel.batch (pipeline_id, batch_id) WHERE is_full;

-- What was complete stays so; nobody knows which of the plans so far left nothing.
UPDATE semel.pipeline SET arrived_to = event_time;
