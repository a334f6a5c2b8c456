-- What a broker had deleted before a plan first saw its partition is not read, and nobody lost it.
ALTER TABLE semel.loss
    DROP CONSTRAINT loss_reason_check,
    ADD CONSTRAINT loss_reason_check
        CHECK (reason IN ('gone', 'replaced', 'repeated', 'hole', 'before'));

-- Nothing before it is free, nor can become so: what a plan looks at does not grow with the claims
-- that a partition ever had.
ALTER TABLE semel.source_partition ADD COLUMN floor bigint NOT NULL DEFAULT 0 CHECK (floor >= 0);
