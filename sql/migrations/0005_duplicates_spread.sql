-- The share of an attempt's tasks that dropped duplicates. By it the next batch decides whether its tasks
-- write the output before their records are classified.
ALTER TABLE semel.attempt ADD COLUMN duplicates_spread real CHECK (duplicates_spread BETWEEN 0 AND 1);
