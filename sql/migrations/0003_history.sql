-- What a long history made linear: the runs of a segment, and the segments that are still there.
CREATE INDEX id_run_segment ON semel.id_run (segment_id);
CREATE INDEX segment_there ON semel.segment (pipeline_id) WHERE dropped_at IS NULL;
