-- What a broker had deleted before a plan first saw its partition is not read, and nobody lost it.
ALTER TABLE semel.loss
    DROP CONSTRAINT loss_reason_check,
    ADD CONSTRAINT loss_reason_check
        CHECK (reason IN ('gone', 'replaced', 'repeated', 'hole', 'before'));
