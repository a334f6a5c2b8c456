-- Which days of a pipeline are complete is asked by interval, also when it has thousands of batches.
CREATE INDEX batch_interval ON semel.batch (pipeline_id, interval_end, interval_start)
    WHERE interval_start IS NOT NULL;
