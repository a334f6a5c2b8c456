"""Topics as the audit reads them again: it shares with stage how a cluster is reached, and no reader."""
