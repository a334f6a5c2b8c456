"""Clients of other systems, shared by sources, sinks, the audit and `semel check`."""
