-- What was refused as a copy stays so while it is as it was.
ALTER TABLE semel.refusal ADD COLUMN inode bigint, ADD COLUMN size bigint, ADD COLUMN copy_of text,
    ADD COLUMN behind bigint;
ALTER TABLE semel.refusal ADD CONSTRAINT refusal_of_a_copy
    CHECK (num_nulls(inode, size, copy_of) IN (0, 3));
