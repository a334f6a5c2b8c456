-- A manifest may list files of ids.
ALTER TABLE semel.manifest_file DROP CONSTRAINT manifest_file_kind_check;
ALTER TABLE semel.manifest_file ADD CONSTRAINT manifest_file_kind_check
    CHECK (kind IN ('data', 'decisions', 'dead_letters', 'ids'));
