"""Objects of a store as a source: S3, Google Cloud Storage, Azure."""
