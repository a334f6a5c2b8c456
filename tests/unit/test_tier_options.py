"""The options of a tier, in the process that hands tests out and in those that run them."""

import os
from types import SimpleNamespace

import pytest

import tiers


@pytest.mark.parametrize("process", [{}, {"workerinput": {}}], ids=["controller", "worker"])
@pytest.mark.parametrize(
    ("tier", "arguments", "expression"),
    [
        ("proof", ["tests"], tiers.NEVER),
        ("quick", ["tests"], tiers.NEVER),
        (None, ["tests"], tiers.NOT_LONG),
        (None, ["tests/unit/test_bloom.py::test_x"], ""),
    ],
)
def test_a_worker_runs_what_its_tier_has(
    process: dict[str, object],
    tier: str | None,
    arguments: list[str],
    expression: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`make proof` runs each case: pytest-xdist's workers read addopts again, so they need it too."""
    monkeypatch.setitem(os.environ, tiers.VARIABLE, os.environ.get(tiers.VARIABLE, ""))
    profiles = SimpleNamespace(register_profile=lambda *_, **__: None, load_profile=lambda _: None)
    monkeypatch.setattr(tiers, "settings", profiles)
    option = SimpleNamespace(markexpr=tiers.NOT_LONG, hypothesis_seed=None)
    config = SimpleNamespace(option=option, args=arguments, getoption=lambda _: tier, **process)
    tiers.pytest_configure(config)
    assert option.markexpr == expression
