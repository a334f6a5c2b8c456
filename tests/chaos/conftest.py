"""Fixtures of the chaos tests."""

from fix_faults import children, forks  # noqa: F401
from fix_proxy import ledger_behind, proxy  # noqa: F401
from fix_scene import scene  # noqa: F401
