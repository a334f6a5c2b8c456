-- Which days of a pipeline are complete is asked by interval, also when it has thousands of batches.
CREATE INDEX batch_interval ON semel.batch (pipeline_id, interval_end, interval_start)
    WHERE interval_start IS NOT NULL;

-- How well the filters tell new ids apart, as measured when a run's ids were looked up.
ALTER TABLE semel.id_run
    ADD COLUMN asked      bigint,
    ADD COLUMN false_hits bigint,
    ADD CONSTRAINT id_run_asked CHECK (
        (asked IS NULL) = (false_hits IS NULL) AND false_hits BETWEEN 0 AND asked);
