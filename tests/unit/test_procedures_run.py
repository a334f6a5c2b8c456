"""Each procedure of the pages is run by a test, and each block of several commands is one."""

import re

import pytest

from fixtures.commands.documents import PAGES, ROOT
from fixtures.commands.procedures import BLOCK, blocks

ELSEWHERE = {
    "make demo": "test_c_week.py, test_d_kafka.py, test_d_queue.py, test_d_lake.py",
    "semel days flights": "test_docs_run.py: a list of commands, one at a time",
    "createdb semel": "test_g_wheel.py: an own ledger",
    "export AIRFLOW_CONN": "test_kafka_connection.py",
    "semel new orders": "test_new_command.py: two ways of one command",
    "semel accept PIPELINE --refused": "test_sink_postgres_limits.py, as it stands",
    "kafka-topics.sh": "fixtures/kafka/topics.py: by the client",
}
"""Blocks that are no procedures of their own, by how they begin, and what runs them."""

COMMAND = re.compile(
    r"(semel|make|pip|psql|pg_dump|pg_restore|createdb|mkdir|cp|mv|rm|tar|sed|export|SEMEL_\w+=|"
    r"kafka-topics.sh)\b"
)

RUNS = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("name", blocks())
def test_each_procedure_is_run(name: str) -> None:
    """Some test names it to `Printed.run`, or to the fixture `erase`."""
    runs = re.search(rf'(\.run\(\s*|erase\(spec, )"{name}"', RUNS)
    assert runs, f"no test runs the procedure {name}"


def test_several_commands_are_a_procedure() -> None:
    """A block of a shell with two commands or more has a name. The guide's are all typed by
    test_c_written_guide.py, in their order.
    """
    for page in PAGES:
        if page.parent.name == "guide":
            continue
        for name, language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            lines = re.sub(r"\\\n", "", text).splitlines()
            typed = [line for line in lines if COMMAND.match(line)]
            known = any(text.startswith(start) for start in ELSEWHERE)
            if language in ("", "sh") and len(typed) > 1 and not name and not known:
                raise AssertionError(f"{page.name}: no test runs this as it stands:\n{text}")
