"""`semel new` as a command: where it writes, what it refuses, what it asks, and its advice."""

import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import steps
from fixtures.batches.workbench import Workbench
from fixtures.commands.shell import answer_in
from semel import cli
from semel.errors import TerminalError
from semel.infer import sample
from semel.infer.draft import draft, widen_to_fit
from semel.infer.sample import NEW_FILES_READ_MAX
from semel.infer.text import example, scalar, yaml_of
from semel.infer.write import target_of, write

CSV = b"id,n\n" + b"".join(b"x%d,%d\n" % (i, i) for i in range(50))


@pytest.fixture
def orders(bench: Workbench) -> Path:
    """A sample in a source folder of its own."""
    path = bench.data / "in" / "orders-2024-01-05.csv"
    path.write_bytes(CSV)
    return path


def semel(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A shell's command, in which `semel` is this one."""
    command = f'semel() {{ {shlex.quote(sys.executable)} -m semel "$@"; }}; {" ".join(words)}'
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True)


def test_what_is_there_is_never_replaced(bench: Workbench, orders: Path, capsys) -> None:
    """A file of the name, even a broken one, and a name that another file declares, are left."""
    there = bench.pipelines / "taken.yaml"
    there.write_text("[")
    (bench.pipelines / "dangling.yaml").symlink_to("nowhere")
    bench.spec("events").model_dump()
    (bench.pipelines / "events.yaml").rename(bench.pipelines / "other.yml")
    for name in ("taken", "dangling", "events"):
        assert cli.main(["new", name, str(orders), "--yes"]) == 1
        assert f"has the name {name!r} already" in capsys.readouterr().err
    assert there.read_text() == "["
    assert not (bench.pipelines / "nowhere").exists()


def test_samples_with_two_headers(bench: Workbench, orders: Path, capsys) -> None:
    """The next step names those that are like the first one, and works."""
    other, like = orders.with_name("orders-2024-01-06.csv"), orders.with_name("orders-it's.csv")
    other.write_bytes(CSV.replace(b"id,n", b"id,m"))
    like.write_bytes(CSV)
    assert cli.main(["new", "orders", *map(str, (orders, other, like)), "--yes"]) == 1
    why, step = capsys.readouterr().err.splitlines()
    assert "Draft a pipeline for each kind" in why
    words = shlex.split(step.removeprefix("next: semel "))
    assert words == ["new", "orders", str(orders), str(like), "--yes"]
    other.unlink()  # The pattern of its names finds it, too.
    assert cli.main(words) == 0


BAD = {
    "gone": None,
    "folder": ...,
    "empty": b"",
    "text": b"Dear reader,\nhow do you do?\nYours\n",
    "bytes": bytes(range(256)) * 9,
    "gzip": b"\x1f\x8b\x08\x00" + bytes(40),
    "fields": b"id,n\n" + b"a\n" * 50,
    "array": b'[{"id": 1}]',
}


@pytest.mark.parametrize("name", BAD)
def test_samples_that_cannot_be_read(bench: Workbench, name: str, capsys) -> None:
    """The message says why; no command is named, for each would fail as this one did."""
    path = bench.data / "in" / "sample.csv"
    if (found := BAD[name]) is ...:
        path.mkdir()
    elif found is not None:
        path.write_bytes(found)
    assert cli.main(["new", "some", str(path), "--yes"]) == 1
    told = capsys.readouterr().err
    assert "sample.csv" in told and "next:" not in told
    assert cli.main(["new", "some", str(path), "--yes", "--json"]) == 1
    assert answer_in(capsys.readouterr().out)["next"] == ""


def test_a_file_that_appears_meanwhile(bench: Workbench, orders: Path) -> None:
    """A file of the name that was made since the name was looked up is left as it is."""
    target = target_of("orders")
    found = sample.read_samples([orders])
    made, tried = widen_to_fit(draft("orders", found), found)
    target.write_text("mine")
    with pytest.raises(TerminalError, match="has the name 'orders' already"):
        write(target, yaml_of(made, tried, found))
    assert target.read_text() == "mine"
    assert [path.name for path in bench.pipelines.iterdir()] == ["orders.yaml"]


@pytest.mark.parametrize("name", ["Orders", "1a", "a-b", "../a", "a/b", "", "semel_collect", "a\n"])
def test_a_name_that_no_pipeline_can_have(bench: Workbench, orders: Path, capsys, name) -> None:
    """A wrong name is refused before anything is read or written."""
    assert cli.main(["new", "--yes", "--", name, str(orders)]) == 1
    assert "is not a valid name for a pipeline" in capsys.readouterr().err
    assert not list(bench.pipelines.iterdir())


def test_nobody_to_ask(bench: Workbench, orders: Path, capsys) -> None:
    """Without a terminal the next command is the same with --yes, also with --json; it works."""
    line = f"semel new orders {orders} --yes"
    assert cli.main(["new", "orders", str(orders)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"next: {line}"
    assert cli.main(["new", "orders", str(orders), "--json"]) == 1
    assert answer_in(capsys.readouterr().out)["next"] == line
    assert not list(bench.pipelines.iterdir())
    assert cli.main(line.split()[1:]) == 0


@pytest.mark.rest
def test_advice_for_samples_elsewhere(bench: Workbench, tmp_path: Path, capsys) -> None:
    """Samples outside of the data folders, or right in one, are refused with a command that does
    what is needed, as it stands."""
    outside = tmp_path / "my files" / "a b.csv"
    outside.parent.mkdir()
    outside.write_bytes(CSV)
    inside = bench.data / "c.csv"
    inside.write_bytes(CSV)
    for name, path in (("first", outside), ("second", inside)):
        assert cli.main(["new", name, str(path), "--yes"]) == 1
        step = capsys.readouterr().err.splitlines()[-1].removeprefix("next: ")
        done = semel([step], tmp_path)
        assert done.returncode == 0, done.stderr
        steps.typed_in_a_shell(step)
        assert (bench.pipelines / f"{name}.yaml").exists()
    assert outside.exists() and not inside.exists()


@pytest.mark.parametrize(
    "names", [["1/a.csv", "2/a.csv"], [f"{n}.csv" for n in range(11)]], ids=["one name", "many"]
)
def test_many_samples_elsewhere(bench: Workbench, tmp_path: Path, capsys, names: list) -> None:
    """No command is named that leaves some of them out, or lets one replace the other."""
    paths = [tmp_path / name for name in names]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(CSV)
    assert cli.main(["new", "orders", *map(str, paths), "--yes"]) == 1
    shown = capsys.readouterr().err
    assert "Copy them into one of these" in shown and "next: " not in shown


def test_a_folder_of_pipelines_that_is_not_there(bench: Workbench, orders, tmp_path, capsys):
    """The folder is not made unasked; the message has the command that makes it."""
    bench.pipelines.rmdir()
    assert cli.main(["new", "orders", str(orders), "--yes"]) == 1
    step = capsys.readouterr().err.splitlines()[-1].removeprefix("next: ")
    assert semel([step], tmp_path).returncode == 0
    steps.typed_in_a_shell(step)
    assert cli.main(["new", "orders", str(orders), "--yes"]) == 0


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "unreadable"])
def test_samples_that_are_no_files(bench: Workbench, capsys, kind: str) -> None:
    """What is no file is refused by its name; nothing is waited for."""
    path = bench.data / "in" / "x.csv"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "unreadable":
        path.symlink_to("/proc/self/mem")
    assert cli.main(["new", "orders", str(path), "--yes"]) == 1
    assert capsys.readouterr().err.startswith("semel: ")


def test_commands_that_come_next(bench: Workbench, orders: Path, tmp_path: Path) -> None:
    """What is printed says what was read, what to look at, and a `semel validate` that is right."""
    done = semel(["semel", "new", "orders", str(orders), "--yes"], bench.folder)
    assert done.returncode == 0 and not done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[0] == "read all of 1 file, 335 bytes"
    assert lines[1] == "50 records, 0 quarantined"
    assert "csv, 2 columns; in/orders-*.csv finds 1 file" in lines
    validate, run = lines[lines.index("next:") + 1 : lines.index("next:") + 3]
    assert validate == "semel validate pipelines/orders.yaml"
    assert run == "semel run orders --interval 2024-01-05 2024-01-06"
    assert lines[-1] == "unpause it, and backfill 2024-01-05 to 2024-01-05"
    checked = semel([validate], bench.folder)
    assert checked.returncode == 0 and checked.stdout.startswith("OK pipelines/orders.yaml: orders")


def test_files_that_the_pattern_finds_and_refuses(bench: Workbench, orders: Path, capsys) -> None:
    """A file that the pattern finds and the pipeline will refuse is told before the first run."""
    (bench.data / "in" / "orders-old.csv").write_bytes(CSV)
    assert cli.main(["new", "orders", str(orders), "--yes"]) == 0
    out = capsys.readouterr().out
    assert "it refuses 1 file: " in out and "orders-old.csv': interval: " in out


def test_samples_of_two_kinds(bench: Workbench, orders: Path, capsys) -> None:
    """Files that no one declaration reads are refused, with what tells them apart."""
    for content in (b"id,m\n1,2\n", b'{"id": 1}\n', b"id;n\n1;2\n"):
        other = bench.data / "in" / "other.csv"
        other.write_bytes(content)
        assert cli.main(["new", "orders", str(orders), str(other), "--yes"]) == 1
        assert "Draft a pipeline for each" in capsys.readouterr().err


def test_another_order_of_columns(bench: Workbench, orders: Path) -> None:
    """Files whose headers name the same columns in another order are of one kind."""
    (bench.data / "in" / "orders-2024-01-06.csv").write_bytes(b"n,id\n7,y1\n")
    assert cli.main(["new", "orders", *map(str, orders.parent.iterdir()), "--yes"]) == 0
    schema = yaml.safe_load((bench.pipelines / "orders.yaml").read_text())["source"]["schema"]
    assert schema == {"id": "string", "n": "bigint"}


def test_a_sink_that_another_pipeline_has(bench: Workbench, orders: Path, capsys) -> None:
    """A draft that meets another pipeline's output is refused, and no file is left."""
    bench.spec("events", sink={"path": "out"})
    assert cli.main(["new", "orders", str(orders), "--yes"]) == 1
    assert "overlaps with" in capsys.readouterr().err
    assert [path.name for path in bench.pipelines.iterdir()] == ["events.yaml"]


@pytest.mark.rest
def test_very_many_columns(bench: Workbench, capsys) -> None:
    """A thousand columns are declared without comments; more than a file may hold is refused."""
    path = bench.data / "in" / "a.csv"
    for count, code in ((1_500, 0), (4_000, 1)):
        path.write_text(
            ",".join(f"column_{i}" for i in range(count)) + "\n" + "1," * (count - 1) + "1\n"
        )
        assert cli.main(["new", f"wide{count}", str(path), "--yes"]) == code
    assert "4,000 columns" in capsys.readouterr().err
    assert cli.main(["validate", str(bench.pipelines / "wide1500.yaml")]) == 0


def test_hostile_names_and_values(bench: Workbench, capsys) -> None:
    """Names that YAML takes for something else are quoted; values in comments are escaped."""
    names = ["yes", "null", "1.5e", "- a", "a: b", "# c", "&x", "*y", "{z}", "\u00fc\U0001f600"]
    rows = [",".join([f"x{i}"] + ["v"] * 10) for i in range(100)]
    header = ",".join(["id"] + names)
    n = [str(i) for i in range(100)]
    n[3] = '"1\x1b[2J # x\u202e"'
    text = "\n".join([f"{header},n", *(f"{r},{v}" for r, v in zip(rows, n, strict=True)), ""])
    (bench.data / "in" / "a.csv").write_text(text)
    assert cli.main(["new", "odd", str(bench.data / "in" / "a.csv"), "--yes"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\u202e" not in out
    written = (bench.pipelines / "odd.yaml").read_text()
    assert list(yaml.safe_load(written)["source"]["schema"]) == ["id", *names, "n"]
    [line] = [line for line in written.splitlines() if line.startswith("    n: ")]
    assert line == '    n: bigint  # 1 of 100 do not fit: "1\\u001b[2J # x\\u202e"'


@pytest.mark.parametrize("value", ["a", "a b", "on", "No", "1", "", "a\n", "'", '"', "\\", "\t"])
def test_scalar_is_read_back(value: str) -> None:
    """A text in the file is the same text for who reads it."""
    assert yaml.safe_load(f"k: {scalar(value)}") == {"k": value}
    assert example(value).isascii() and "\n" not in example(value)


def test_large_files_are_sampled(tmp_path: Path) -> None:
    """Of a large file the beginning and parts behind are read, whole records, within the bound."""
    path = tmp_path / "a.csv"
    rows = [f"x{i:07d},{i}" for i in range(50_000)]
    path.write_text("\n".join(["id,n", *rows, ""]))
    found = sample.read_samples([path], bytes_max=1 << 17)
    [one] = found.files
    assert len(one.parts) == 4 and one.bytes_read <= 1 << 17 and not one.complete
    lines = [line for part in one.parts for line in part.decode().splitlines()]
    assert set(lines) <= {"id,n", *rows} and lines[-1] == rows[-1] and len(lines) == len({*lines})
    assert str(found).startswith(f"{one.bytes_read:,} bytes of 1 file")


def test_many_samples(bench: Workbench) -> None:
    """Of very many files all names count, and the contents of some."""
    paths = [bench.data / "in" / f"a-{i}.csv" for i in range(200)]
    for path in paths:
        path.write_bytes(CSV)
    found = sample.read_samples(paths)
    assert len(found.files) == NEW_FILES_READ_MAX and len(found.paths) == 200
    made, tried = widen_to_fit(draft("many", found), found)
    assert made.path == "in/a-*.csv" and tried.records == 50 * NEW_FILES_READ_MAX
    assert f"{NEW_FILES_READ_MAX} of 200 files" in yaml_of(made, tried, found)


def terminal(
    bench: Workbench, words: list[str], answers: list[str], *, stop_at: bytes | None = None
) -> tuple[int, str]:
    """The exit code and the screen of a command on a terminal, where these answers are typed.
    `stop_at`: Ctrl-C is typed when that is on the screen, and a person has read it.
    """
    child, screen = pty.fork()
    if not child:
        os.environ["TERM"] = "dumb"
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Who runs the tests may ignore it.
        os.execv(sys.executable, [sys.executable, "-m", "semel", *words])
    os.write(screen, "".join(f"{answer}\n" for answer in answers).encode())
    shown = b""
    while True:
        try:
            piece = os.read(screen, 4096)
        except OSError:  # Linux says so when the other end is closed.
            break
        if not piece:
            break
        shown += piece
        if stop_at is not None and stop_at in shown:
            time.sleep(0.5)
            os.write(screen, b"\x03")
            stop_at = None
    _, status = os.waitpid(child, 0)
    os.close(screen)
    return os.waitstatus_to_exitcode(status), shown.decode()


def test_guesses_are_the_answers_on_a_terminal(bench: Workbench, orders: Path) -> None:
    """On a terminal, Enter takes each guess: the file is that of --yes."""
    assert cli.main(["new", "orders", str(orders), "--yes"]) == 0
    silent = (bench.pipelines / "orders.yaml").read_text()
    (bench.pipelines / "orders.yaml").unlink()
    code, screen = terminal(bench, ["new", "orders", str(orders)], [""] * 6)
    assert code == 0, screen
    assert (bench.pipelines / "orders.yaml").read_text() == silent
    assert "[in/orders-*.csv]" in screen and "[orders-%Y-%m-%d.csv]" in screen


def test_ctrl_c_at_a_question(bench: Workbench, orders: Path) -> None:
    """It stops the command with the shell's code for it, and nothing is written."""
    code, screen = terminal(bench, ["new", "orders", str(orders)], [], stop_at=b"[in/")
    assert code == 130, screen
    assert "A question was open, so nothing was done." in screen
    assert not list(bench.pipelines.iterdir())


@pytest.mark.rest
def test_other_answers_on_a_terminal(bench: Workbench) -> None:
    """Answers take the guesses' place; a wrong one is told and asked again; a no writes nothing."""
    path = bench.data / "in" / "orders-2024-01-05.csv"
    path.write_bytes(CSV.replace(b"x3,3", b"x3,N/A"))
    answers = [
        "in/*.jsonl", "in/*.csv",  # finds no sample, then does
        "date", "string",  # the type of n
        "nonsense", "n",
        "none",
        "none",
        "out/elsewhere",
        "y",
    ]  # fmt: skip
    code, screen = terminal(bench, ["new", "orders", str(path)], answers)
    assert code == 0, screen
    made = yaml.safe_load((bench.pipelines / "orders.yaml").read_text())
    assert made["source"]["path"] == "in/*.csv" and made["source"]["schema"]["n"] == "string"
    assert made["record_id"] == ["n"] and made["sink"]["path"] == "out/elsewhere"
    assert "select" not in made["source"] and "schedule" not in made
    assert "'in/*.jsonl' does not find it" in screen and "'nonsense' is not a column" in screen
    assert "50 of 50 records would be quarantined (type_mismatch 50)" in screen
    code, screen = terminal(bench, ["new", "second", str(path)], [*[""] * 6, "n"])
    assert code == 1 and not (bench.pipelines / "second.yaml").exists()


NAMES = [b"a b.csv", b"-x.csv", b"a\nb.csv", b"\xff.csv", b"'\".csv", b"\xc3\xbc.csv", b".h.csv",
         b"%Y.csv", b"a\\.csv", b"[.csv", b"{a}*?.csv", b"1%2024-01-05.csv", b"2024-01-05\n"]
         # fmt: skip


@pytest.mark.parametrize(
    ("folder", "name"),
    [(b"in", name) for name in NAMES]
    + [(folder, b"a\n b.csv") for folder in (b"s [1]*", b"\xff", b"a\tb", b"..a")],
)
def test_names_of_files(bench: Workbench, capsys, folder: bytes, name: bytes) -> None:
    """A file of any name is found again by the pattern, or refused in words of one line."""
    path = os.path.join(os.fsencode(bench.data), folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(CSV)
    code = cli.main(["new", "--yes", "odd", "--", os.fsdecode(path)])
    out, err = capsys.readouterr()
    if code:
        assert err.startswith("semel: ") and err.count("\n") in (1, 2) and not list(
            bench.pipelines.iterdir()
        )
    else:
        assert "finds 1 file" in out and out.replace("\n", "").isprintable()
    odd = folder in (b"s [1]*", b"a\tb")
    assert code == (odd or b"\xff" in folder + name)
    if odd and b"\xff" not in name:
        advice = err[err.index("mkdir -p") :].strip()
        assert semel([advice, "--yes"], bench.folder).returncode == 0, advice


def test_multiline_in_one_of_several_large_files(tmp_path: Path, bench: Workbench) -> None:
    """Of a file whose fields hold line ends the beginning alone is read, whole records; one such
    file makes the pipeline read all of them so."""
    plain, other = bench.data / "in" / "a-1.csv", bench.data / "in" / "a-2.csv"
    plain.write_bytes(CSV)
    other.write_text("id,n\n" + "".join(f'"y{i}\nz",{i}\n' for i in range(20_000)))
    found = sample.read_samples([plain, other], bytes_max=1 << 18)
    made, tried = widen_to_fit(draft("many", found), found)
    assert made.dialect.csv.multiline and not tried.quarantined
    assert 50 < tried.records < 20_000


def test_json_answer(bench: Workbench, orders: Path, capsys) -> None:
    """With --json one object says what was written, read and inferred."""
    assert cli.main(["new", "orders", str(orders), "--yes", "--json"]) == 0
    out, err = capsys.readouterr()
    answer = answer_in(out)
    assert err == "" and answer["file"] == str(bench.pipelines / "orders.yaml")
    assert (answer["records"], answer["quarantined"], answer["files_found"]) == (50, 0, 1)
    assert answer["declared"]["record_id"] == ["id"]
    assert answer["next"][1] == "semel run orders --interval 2024-01-05 2024-01-06"
