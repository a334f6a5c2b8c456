"""The frame of the command line: exit codes, --json, and a start that imports nothing heavy."""

import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import types
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import pytest
import typer

from semel import cli, console
from semel.cli.options import resumes
from semel.errors import RetryableError, SpecError
from semel.pipeline import UnknownPipelineError

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = str(ROOT / "dags" / "pipelines" / "flights.yaml")


@pytest.fixture
def command(monkeypatch):
    """Registers a command `probe` whose body is the given function."""

    def register(body):
        def probe(as_json: console.AsJson = False) -> None:
            """Probe."""
            body(as_json)

        monkeypatch.setitem(sys.modules, "probe_module", types.ModuleType("probe_module"))
        sys.modules["probe_module"].__spec__ = types.SimpleNamespace()
        sys.modules["probe_module"].probe = probe
        monkeypatch.setitem(cli.COMMANDS, "probe", "probe_module:probe")

    return register


def raising(error):
    def body(as_json):
        raise error

    return body


def raising_any(error):
    def body(
        pipeline: Annotated[str, typer.Argument()], as_json: console.AsJson = False
    ) -> None:
        """Fail."""
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (SpecError("f:1: a: [b]"), 1, "SpecError"),
        (RetryableError("later"), 1, "RetryableError"),
        (UnknownPipelineError("no pipeline"), 2, "UnknownPipelineError"),
        (ZeroDivisionError("zero"), 1, "ZeroDivisionError"),
        (OSError(28, "No space left"), 1, "OSError"),
        (typer.BadParameter("bad value"), 2, "BadParameter"),
    ],
)
def test_a_failure_has_its_code_and_its_message(command, capsys, error, code, kind):
    """A failure gives its exit code; its message is on stderr, or alone in one JSON object."""
    command(raising(error))
    assert cli.main(["probe"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert str(error).split("] ")[-1] in err
    unexpected = kind in ("ZeroDivisionError", "OSError")
    assert ("Traceback" in err) == unexpected

    assert cli.main(["probe", "--json"]) == code
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["command"] == "probe" and [*told] == ["command", "error"]
    answer = told["error"]
    assert answer["kind"] == kind
    assert str(error).split("] ")[-1] in answer["message"]
    assert err == ""


@pytest.mark.parametrize("words", [["probe"], ["probe", "--json"]])
def test_an_interrupt_is_130(command, words):
    """Ctrl-C ends with the shell's code for it, with and without --json."""
    command(raising(KeyboardInterrupt()))
    assert cli.main(words) == 130


def test_an_interrupted_command_that_goes_on_is_named(command, monkeypatch, capsys):
    """After Ctrl-C in a batch the last line is the command that goes on with it; else none is."""
    monkeypatch.setattr("semel.cli.run.run", resumes(raising_any(KeyboardInterrupt())))
    monkeypatch.setattr("semel.cli.reports.batches", raising_any(KeyboardInterrupt()))
    assert cli.main(["run", "flights"]) == cli.main(["batches", "flights"]) == 130
    run, step, batches = capsys.readouterr().err.splitlines()
    assert (run, step) == (
        "semel: interrupted. Finished work stays, and the same command resumes there",
        "next: semel run flights",
    )
    assert batches == "semel: interrupted"
    assert cli.main(["run", "flights", "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["error"]["next"] == "semel run flights --json"


def test_the_commands_that_go_on_say_so():
    """Each command that goes on where it stopped is marked, also one of another package."""
    marked = {name for name in cli.commands() if getattr(cli._function(name), "resumes", False)}
    assert marked == {"run", "replay", "adopt", "exact", "collect", "demo", "up"}


def test_a_command_of_a_similar_name(capsys):
    """A misspelled command names the one that was meant, and the whole line with it."""
    assert cli.main(["btaches", "it's"]) == 2
    shown = capsys.readouterr().err
    assert "Did you mean 'batches'?" in shown
    assert shown.splitlines()[-1] == """next: semel batches 'it'"'"'s'"""


@pytest.mark.parametrize("name", cli._LOCAL_COMMANDS)
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_command_of_the_local_stack_without_it(name, more, monkeypatch, capsys):
    """Each message that says `semel up` leads to its package, and not to "No such command"."""
    assert name in cli._package_commands()
    monkeypatch.setattr(cli, "_package_commands", dict)
    assert cli.main([name, *more]) == 2
    said = capsys.readouterr()
    text = " ".join((said.out + said.err).replace("│", " ").split())
    assert f"`semel {name}` is a command of the local stack" in text and "semel-local" in text


@pytest.mark.parametrize(
    ("typed", "offered"), [("semel ba", "batches"), ("semel run --req", "--request")]
)
def test_a_shell_completes_commands_and_options(typed, offered):
    """Typer's own completion knows the commands, which are imported only when they are called."""
    given = {"_SEMEL_COMPLETE": "complete_bash", "COMP_WORDS": typed}
    given["COMP_CWORD"] = str(typed.count(" "))
    semel = [sys.executable, "-c", "from semel.cli import main; main([])"]
    done = subprocess.run(semel, env=os.environ | given, capture_output=True, text=True)
    assert done.stdout.split() == [offered], done.stderr


@pytest.mark.parametrize("words", [["probe"], ["probe", "--json"]])
def test_a_bad_verdict_is_1(command, words, capsys):
    """A command that reports and then exits 1 gives its own payload, not an error object."""

    def body(as_json):
        console.emit({"ok": False}, as_json=as_json, render=lambda: print("broken"))
        raise typer.Exit(1)

    command(body)
    assert cli.main(words) == 1
    assert capsys.readouterr().out in (
        "broken\n",
        '{"command": "probe", "answer": {"ok": false}}\n',
    )


@pytest.mark.parametrize(
    "words", [["nonsense"], ["validate", "--nonsense"], ["validate", "--print-schema=3"], []]
)
def test_a_wrong_command_line_is_2(words, capsys):
    """Usage errors exit 2 and never touch anything; with --json they are one object too."""
    assert cli.main(words) == 2
    assert cli.main([*words, "--json"]) == 2
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [*answer] == ["command", "error"]
    assert answer["command"] == ("validate" if "validate" in words else None)
    assert set(answer["error"]) == {"kind", "message", "next"}


BACKWARDS = ["--interval", "2026-01-02", "2026-01-01"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["run", "flights", *BACKWARDS], "END must be after START"),
        *(
            ([command, "flights", *words], why)
            for command in ("replay", "compare")
            for words, why in (
                (BACKWARDS, "END must be after START"),
                ([], "give either --interval START END or --batches A..B"),
                ([*BACKWARDS, "--batches", "1"], "give either"),
                (["--batches", "3..2"], "the first number is larger than the last one"),
                (["--batches", "x"], "is not a number of a batch"),
            )
        ),
    ],
)
def test_a_range_that_is_none_is_2(words, why, capsys):
    """A range that names nothing is a usage error, and says what is wrong with it."""
    assert cli.main([*words, "--json"]) == 2
    assert why in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize("words", [["collect", "flights"], ["adopt", "flights"]])
def test_what_a_verb_tells_is_printed_as_it_is(words, monkeypatch, capsys):
    """A path in what a verb tells meanwhile may hold what looks like markup: none of it is lost."""
    line = "left for the next time: /data/[red]/[/x]"

    def tell(*_, log, **__):
        log(line)
        raise RetryableError("later")

    monkeypatch.setattr("semel.collect.collect", lambda ledger, spec, log: tell(log=log))
    monkeypatch.setattr("semel.repair.adopt.adopt", tell)
    monkeypatch.setattr("semel.ledger.Ledger", contextlib.nullcontext)
    assert cli.main(words) == 1
    assert capsys.readouterr().err.startswith(f"{line}\nsemel: later\n")


def test_validate_tells_right_from_wrong(tmp_path, capsys):
    """validate exits 0 with the digest of right files and 1 with every error of the others."""
    wrong = tmp_path / "wrong [x].yaml"
    wrong.write_text("name: A\nfoo: 1\n")
    assert cli.main(["validate", FLIGHTS]) == 0
    assert capsys.readouterr().out.startswith(f"OK {FLIGHTS}: flights, digest ")
    assert cli.main(["validate", FLIGHTS, str(wrong)]) == 1
    out = capsys.readouterr().out
    assert f"{wrong}:1: name: 'A' must begin with" in out
    assert f"{wrong}:2: foo: is an unknown key" in out
    assert cli.main(["validate", FLIGHTS, str(wrong), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)["answer"]
    assert answer["ok"] is False
    assert [bool(one["errors"]) for one in answer["files"]] == [False, True]


def test_validate_takes_names(tmp_path, capsys, monkeypatch):
    """A pipeline's name is its file, also of one that is broken; an unknown one is told as usual."""
    (tmp_path / "other.yaml").write_text(Path(FLIGHTS).read_text().replace("flights", "trips"))
    (tmp_path / "broken.yaml").write_text("name: broken\nfoo: 1\n")
    monkeypatch.setenv("SEMEL_PIPELINES_DIR", str(tmp_path))
    assert cli.main(["validate", "trips"]) == 0
    assert capsys.readouterr().out.startswith(f"OK {tmp_path}/other.yaml: trips, ")
    assert cli.main(["validate", "broken"]) == 1
    assert f"{tmp_path}/broken.yaml:2: foo: is an unknown key" in capsys.readouterr().out
    assert cli.main(["validate", "trip"]) == 2
    assert "next: semel validate trips" in capsys.readouterr().err


def test_validate_says_what_arrives_paused(tmp_path, capsys):
    """A schedule alone runs nothing: the DAG waits until somebody unpauses it."""
    text = Path(FLIGHTS).read_text(encoding="utf-8")
    timed = tmp_path / "timed.yaml"
    timed.write_text(text.replace("schedule: null", 'schedule: "0 5 * * *"'))
    assert cli.main(["validate", FLIGHTS]) == 0
    assert "paused" not in capsys.readouterr().out
    assert cli.main(["validate", str(timed)]) == 0
    said = capsys.readouterr().out
    assert "runs at '0 5 * * *' (UTC) and arrives paused" in said
    assert said.rstrip().endswith("airflow dags unpause flights")


def test_validate_sees_two_files_of_one_name(tmp_path, capsys):
    """Two right files that share name and sink are an error."""
    copy = tmp_path / "copy.yaml"
    copy.write_text(Path(FLIGHTS).read_text())
    assert cli.main(["validate", FLIGHTS, str(copy)]) == 1
    assert f"{copy}: name: {FLIGHTS} declares 'flights' too" in capsys.readouterr().out


def test_every_command_has_an_example(capsys, monkeypatch):
    """Each command that there is shows help with an example and has --json; its text flows."""
    monkeypatch.setenv("COLUMNS", "80")
    assert {"up", "down", "status", "demo"} <= cli.commands().keys() - cli.COMMANDS.keys()
    for name in cli.commands():
        assert cli.main([name, "--help"]) == 0
        shown = capsys.readouterr().out
        assert f"semel {name}" in shown.split("Example")[1]
        assert "--json" in shown
        told = shown.partition("╭")[0].splitlines()
        for line, later in itertools.pairwise(one.strip() for one in told):
            assert not later or not line or len(f"{line} {later.split()[0]}") > 78, line


def imported_by(code: str) -> set[str]:
    """The heavy packages that a process has imported once it has run `code`."""
    heavy = (
        "{'pyspark', 'airflow', 'pyarrow', 'sqlalchemy', 'pandas', 'duckdb', 'numpy', 'polars',"
        " 'psycopg', 'pydantic'}"
    )
    code = f"import sys; {code}; print('heavy:', *({heavy} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    return set(ended.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["--help"], set()),
        (["new", "--help"], {"pydantic"}),
        (["validate", FLIGHTS], {"pydantic"}),
    ],
)
def test_who_needs_nothing_heavy_imports_nothing_heavy(words, allowed, tmp_path):
    """Help and validate start fast: no Arrow, SQLAlchemy, pandas, polars, Spark or Airflow. A
    pipeline that counts needs Arrow, also where it lies beside the file.
    """
    alone = tmp_path / "flights.yaml"
    alone.write_bytes(Path(FLIGHTS).read_bytes())
    words = [str(alone) if word == FLIGHTS else word for word in words]
    code = f"from semel import cli; code = cli.main({words!r}); assert code == 0"
    assert imported_by(code) <= allowed


def test_a_start_parses_no_source_code():
    """A model's docstrings are read for the JSON Schema alone: inspect would fail here."""
    code = "import inspect; inspect.findsource = None; import semel.cli, semel.pipeline"
    assert imported_by(code) == {"pydantic"}


def test_a_command_of_semel_reads_no_package(monkeypatch):
    """Entry points, a file of each package, are for commands that semel lacks."""
    asked = []
    monkeypatch.setattr(cli, "_package_commands", lambda: asked.append(1) or {})
    assert cli.main(["validate", FLIGHTS]) == 0 and not asked
    assert cli.main(["nonsense"]) == 2 and asked


def test_reports_start_without_arrow():
    """What lists windows, intervals, batches and gaps handles no column of records."""
    listed = "import semel.reports.gaps, semel.reports.days, semel.repair.accept, semel.cli.reports"
    assert imported_by(listed) == {"numpy", "pydantic", "psycopg", "sqlalchemy"}
    windows = "import semel.reports.completeness, semel.reports.summary, semel.cli.windows"
    assert imported_by(windows) == {"pydantic", "psycopg", "sqlalchemy"}


def test_verbs_import_no_pandas():
    """The verbs start without pandas, and those that parse no record without polars too."""
    assert not imported_by("import semel.runs.run, semel.reader") & {"pandas", "pyspark", "duckdb"}
    others = "import semel.plan, semel.commit, semel.finalize, semel.collect, semel.reports.gaps"
    assert not imported_by(others) & {"pandas", "polars", "pyspark", "duckdb"}


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["run"], 2)])
def test_python_m_semel_is_the_command_line(words, code):
    """Where no script is on the path, the module does the same, with the same exit codes."""
    outcomes = [
        subprocess.run([*call, *words], capture_output=True, text=True, timeout=60)
        for call in ([sys.executable, "-m", "semel"], [Path(sys.executable).with_name("semel")])
    ]
    module, script = [(end.returncode, end.stdout, end.stderr) for end in outcomes]
    assert module == script and module[0] == code and module[1] + module[2]


def test_every_value_has_its_form_in_json():
    """Times, durations, paths, bytes and dataclasses have one form; what has none is an error."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Value:
        at: datetime
        inner: tuple

    value = Value(at=datetime(2013, 1, 2, tzinfo=UTC), inner=(Path("/é"), b"\x01", {2, 1}))
    payload = {"v": value, "d": date(2013, 1, 2), "t": timedelta(seconds=90), "n": Decimal("1.5")}
    text = console.to_json(payload)
    assert text.isascii()
    assert json.loads(text) == {
        "v": {"at": "2013-01-02T00:00:00+00:00", "inner": ["/é", "01", [1, 2]]},
        "d": "2013-01-02",
        "t": 90.0,
        "n": "1.5",
    }
    with pytest.raises(TypeError, match="object has no form in JSON"):
        console.to_json({"x": object()})
    with pytest.raises(ValueError, match="JSON"):
        console.to_json({"x": float("nan")})
