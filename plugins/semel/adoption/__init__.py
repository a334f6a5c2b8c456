"""What adopt does with the batches of a lost ledger: their source files, ids, runs and rows."""
