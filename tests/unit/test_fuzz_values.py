"""Random texts of each type, read as JSON Lines and as CSV, beside Python's own reading."""

import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.batches.workbench import Workbench
from fuzz_values import KINDS
from semel.errors import TerminalError
from semel.reports.find import find
from tiers import SEED, examples

TEXTS = 7_000
"""Of each type. `python tests/unit/fuzz_values.py --texts 1000000` reads more."""


@pytest.mark.draws
def test_no_text_ends_the_process_or_becomes_another_value() -> None:
    """Whatever text stands in a column: its record is read as Python reads it, or rejected where
    Python finds no such value; within a second for 1 kB, and the process lives on.

    It takes some 5 s: nobody knows in advance which texts a native parser reads wrongly. A process
    of its own, as some of them end it.
    """
    fuzz = Path(__file__).with_name("fuzz_values.py")
    many = str(examples(5 * TEXTS))
    done = subprocess.run(
        [sys.executable, fuzz, "--texts", many, "--seed", str(SEED)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-600:]}"
    assert len(done.stdout.splitlines()) == len(KINDS), done.stdout


@pytest.mark.parametrize("text", ["1e-999999999", "0e-999999999", "1e-41", "7e36", "NaN", "x", ""])
def test_an_id_that_is_no_decimal_is_refused(bench: Workbench, text: str) -> None:
    """Somebody who looks for an id gets an answer, also where pyarrow would end the process: on a
    page that is Airflow's server."""
    source = {"schema": {"price": "decimal(38,2)"}}
    spec = bench.spec("prices", source=source, record_id=["price"])
    with pytest.raises(TerminalError, match=r"is not a valid value of the id column price"):
        find(spec, [text])


def test_an_id_that_is_no_text_is_refused(bench: Workbench) -> None:
    """Half a surrogate pair, which JSON can write, is in no record."""
    spec = bench.spec("texts", source={"schema": {"id": "string"}}, record_id=["id"])
    with pytest.raises(TerminalError, match=r"is not a valid value of the id column id"):
        find(spec, ['["\\ud800"]'])
