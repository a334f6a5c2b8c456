"""`semel new` on files of a test's own: formats, types, ids, times, and which files are read."""

import gzip
import json
from pathlib import Path

import pytest
import yaml

from fixtures.batches.workbench import Workbench
from fixtures.commands.shell import answer_in
from semel import cli, pipeline

ROWS = 200


def table(header: str, row: str, count: int = ROWS, sep: str = "\n") -> bytes:
    """A CSV of so many rows; `{i}` is a row's number."""
    return sep.join([header, *(row.format(i=i) for i in range(count)), ""]).encode()


class Drafted:
    """What `semel new NAME --yes --json` answered, and the file that it wrote."""

    def __init__(self, answer: dict) -> None:
        self.answer = answer
        self.text = Path(answer["file"]).read_text(encoding="utf-8")
        self.data = yaml.safe_load(self.text)
        self.schema = self.data["source"]["schema"]
        self.spec = pipeline.load(Path(answer["file"]))

    def line(self, key: str) -> str:
        """The file's line of a column."""
        return next(line for line in self.text.splitlines() if line.strip().startswith(f"{key}:"))


@pytest.fixture
def new(bench: Workbench, capsys: pytest.CaptureFixture):
    """Runs `semel new` on files with these contents, by their names below in/."""

    def run(files: dict[str, bytes] | bytes, name: str = "events") -> Drafted:
        if isinstance(files, bytes):
            files = {"events.csv": files}
        paths = []
        for file, content in files.items():
            path = bench.data / "in" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            paths.append(str(path))
        assert cli.main(["new", name, *paths, "--yes", "--json"]) == 0, capsys.readouterr()
        return Drafted(answer_in(capsys.readouterr().out))

    return run


@pytest.fixture
def refused(bench: Workbench, capsys: pytest.CaptureFixture):
    """The message with which `semel new` refuses a file of this content."""

    def run(content: bytes, file: str = "events.csv") -> str:
        path = bench.data / "in" / file
        path.write_bytes(content)
        assert cli.main(["new", "events", str(path), "--yes"]) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("semel: ") and "Traceback" not in err
        assert err.isascii() and not list(bench.pipelines.iterdir())
        return err

    return run


# (values of a column, in turn; its type)
TYPES = [
    (["1", "-2", "0"], "bigint"),
    (["9223372036854775807", "-9223372036854775808"], "bigint"),
    (["9223372036854775808", "1"], "string"),
    (["12345678901234567890"], "string"),
    (["1", "2.5", ".5", "1e5"], "double"),
    (["0.1234567890123456", "5"], "double"),
    (["0.12345678901234567890", "5"], "string"),
    (["1234567890123456.0", "5"], "double"),
    (["007", "8"], "string"),
    (["00.5", "8"], "string"),
    (["+49301234", "49301235"], "string"),
    (["0x10", "11"], "string"),
    (["1,5", "2,5"], "string"),
    (["true", "FALSE"], "boolean"),
    (["0", "1"], "bigint"),
    (["true", "1"], "string"),
    (["yes", "no"], "string"),
    (["2024-02-29", "0001-01-01"], "date"),
    (["2024-02-29", "2024-02-29 10:00"], "timestamp"),
    (["2024-02-29T10:00:00Z", "2024-02-29T10:00:00.123+02:00"], "timestamp"),
    (["01/02/2024", "02/02/2024"], "string"),
    (["2024-02-30", "2024-02-31"], "string"),
    (["1704103200"], "bigint"),
    (["NaN", "1.5"], "string"),
    (["", ""], "string"),
    (["a", ""], "string"),
    (["1", ""], "bigint"),
    (['""', "1"], "string"),
    ([" 1", "2 "], "bigint"),
]


def test_types_of_csv_columns(new) -> None:
    """A type is taken that keeps each value as it is meant; else the text."""
    quoted = [[f'"{v}"' if "," in v else v for v in values] for values, _ in TYPES]
    header = ["n", *(f"c{at}" for at in range(len(TYPES)))]
    rows = [[str(i), *(values[i % len(values)] for values in quoted)] for i in range(24)]
    made = new("\n".join(map(",".join, [header, *rows, []])).encode())
    found = [(values, made.schema[f"c{at}"]) for at, (values, _) in enumerate(TYPES)]
    assert found == TYPES
    assert made.answer["quarantined"] == 0


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("amount", ["12.50", "3.00", "4"], "decimal(18,2)"),
        ("unitPrice", ["12.5", "3"], "decimal(18,2)"),
        ("price", ["12.505", "3.00"], "double"),
        ("price", ["12", "3"], "bigint"),
        ("latitude", ["52.52", "13.40"], "double"),
    ],
)
def test_money_is_decimal(new, name: str, values: list[str], kind: str) -> None:
    """What is called money and has two digits behind the point is exact; other numbers are not."""
    rows = [f"{i},{v}" for i, v in enumerate(values * 5)]
    made = new("\n".join([f"n,{name}", *rows, ""]).encode())
    assert made.schema[name] == kind
    assert made.answer["quarantined"] == 0


def test_exceptions_are_commented(new) -> None:
    """Less than the allowed share does not fit: the type stands, its exceptions are in a comment,
    and the trial read counts them. At the allowed share the column is text."""
    body = table("id,few,many", "x{i},{i},{i}").replace(b"x7,7,", b"x7,N/A,")
    for number in range(100, 110):
        row = f"x{number},{number},"
        body = body.replace(f"{row}{number}".encode(), f"{row}-".encode())
    made = new(body)
    assert (made.schema["few"], made.schema["many"]) == ("bigint", "string")
    assert made.line("few") == '    few: bigint  # 1 of 200 do not fit: "N/A"'
    assert made.line("many").endswith("# 190 of 200 are bigint, others are like '-'")
    assert made.answer["reasons"] == {"type_mismatch": 1}
    assert made.answer["columns"][1]["exceptions"] == 1


def test_texts_for_nothing_are_told(new) -> None:
    """A column of numbers and `NA` is text, as NA is none, and its comment says so."""
    body = table("id,n", "x{i},{i}").replace(b",1", b",NA\ny,1")
    made = new(body)
    assert made.schema["n"] == "string" and made.line("n").endswith("others are like 'NA'")


def test_exceptions_of_all_columns_count_together(new) -> None:
    """Columns whose exceptions would stop a batch together are made text, the worst one first."""
    rows = []
    for i in range(ROWS):
        a = "N/A" if i % 25 == 0 else str(i)
        b = "N/A" if i % 25 == 1 else str(i)
        c = "N/A" if i % 200 == 2 else str(i)
        rows.append(f"x{i},{a},{b},{c}")
    made = new("\n".join(["id,a,b,c", *rows, ""]).encode())
    assert sorted(made.schema[name] for name in "abc") == ["bigint", "bigint", "string"]
    assert made.schema["c"] == "bigint"
    assert made.answer["quarantined"] == 9 <= 0.05 * ROWS


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_delimiter(new, delimiter: str, end: str, bom: bytes) -> None:
    """The delimiter is the one that gives records; a comma in a number is none."""
    header, row = delimiter.join(["id", "text", "n"]), delimiter.join(["x{i}", "{text}", "{i}"])
    made = new(bom + table(header, row.replace("{text}", '"a, b; c| d{i}"'), sep=end))
    assert list(made.schema) == ["id", "text", "n"]
    assert made.spec.source.csv.delimiter == delimiter
    assert (made.answer["records"], made.answer["quarantined"]) == (ROWS, 0)


def test_decimal_comma_is_no_delimiter(new) -> None:
    """Of two delimiters that make equally good records, the one with more columns is taken."""
    made = new(table("id;price;name", "x{i};1,5;n{i}"))
    assert list(made.schema) == ["id", "price", "name"]


def test_single_quotes(new) -> None:
    """Fields in single quotes are read so where that makes good records."""
    made = new(table("id,text", "x{i},'a, {i}'"))
    assert made.spec.source.csv.quote == "'"
    assert made.answer["quarantined"] == 0


def test_names_in_single_quotes(new) -> None:
    """A file whose fields are all in single quotes has none of them in its names and values."""
    made = new(table("'id','n'", "'x{i}','{i}'"))
    assert list(made.schema) == ["id", "n"] and made.spec.source.csv.quote == "'"


@pytest.mark.parametrize("bad", ["garbage", "x;1;2;3", '"x;1', "a,b,c"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_bad_record_is_no_other_dialect(new, bad: str, end: str) -> None:
    """One record that no delimiter makes good leaves those of the others what they are."""
    body = table("id;text;n", "x{i};a, b{i};{i}", 60, end)
    made = new(body + f"{bad}\n".encode())
    assert list(made.schema) == ["id", "text", "n"]
    assert made.spec.source.csv.delimiter == ";" and made.answer["quarantined"] == 1


def test_multiline(new) -> None:
    """Fields with line ends are seen, and the file is read when nobody writes it any more."""
    made = new(table("id,text", 'x{i},"a\nb {i}"'))
    assert made.spec.source.csv.multiline
    assert made.spec.source.closed_after.total_seconds() == 60
    assert (made.answer["records"], made.answer["quarantined"]) == (ROWS, 0)


def test_escapes(new) -> None:
    """Files as Spark writes them by default: one with line ends in fields, one with escapes."""
    files = {
        "a1.csv": table("id,v", 'x{i},"a 5\\" pipe, C:\\\\dir"'),
        "a2.csv": table("id,v", 'y{i},"a\nb"'),
        "a3.csv": table("id,v", "z{i},C:\\dir"),
    }
    made = new(files)
    assert made.data["source"]["csv"] == {"escape": "\\", "multiline": True}
    assert made.answer["quarantined"] == 0


def test_multiline_that_is_rare(new) -> None:
    """A field with a line end is seen wherever it is in the sample."""
    body = table("id,text", "x{i},a{i}", 40_000)
    made = new(body.replace(b"x39999,a39999", b'x39999,"a\n39999"'))
    assert made.spec.source.csv.multiline
    assert (made.answer["records"], made.answer["quarantined"]) == (40_000, 0)


@pytest.mark.parametrize("rows", [[9], [9, 100]])
def test_a_lost_quote_is_not_multiline(new, rows: list[int]) -> None:
    """A quote that never ends is a bad record, and no reason to read the lines up to the next one
    as its text."""
    body = table("id,text", "x{i},a{i}")
    for row in rows:
        body = body.replace(f"x{row},".encode(), f'x{row},"'.encode())
    made = new(body)
    assert not made.spec.source.csv.multiline
    assert made.answer["reasons"] == {"malformed": len(rows)}


def test_last_record_without_line_end(new) -> None:
    """A file that ends in the middle of a line is read to its end, some time later."""
    made = new(table("id,n", "x{i},{i}").rstrip(b"\n"))
    assert made.spec.source.closed_after is not None
    assert made.answer["records"] == ROWS


def test_gzip(new) -> None:
    """A .gz file is read by what it unpacks to."""
    made = new({"a.csv.gz": gzip.compress(table("id,n", "x{i},{i}"))})
    assert made.schema == {"id": "string", "n": "bigint"}
    assert made.data["source"]["path"] == "in/a.csv.gz"


REFUSED = [
    (b"", "empty"),
    (b"id,n\n", "do not contain records"),
    (b"1,2.5,x\n2,3.5,y\n", "looks like a record"),
    (b"2024-01-01,a\n2024-01-02,b\n", "looks like a record"),
    (b"id,,n\n1,2,3\n", "column 2 of the header, '', has no name"),
    (b"id,ID\n1,2\n", "column 2 of the header, 'ID', is there twice"),
    (b"id,_semel_x\n1,2\n", "reserved for semel"),
    (b"id,a`b\n1,2\n", "not allowed in a column's name"),
    (b"id,a\x1bb\n1,2\n", "'a\\x1bb'"),
    (b"id,caf\xe9\n1,2\n", "is not UTF-8, but probably WINDOWS-1252"),
    ("id,n\nä,1\n".encode("utf-16"), "UTF-16"),
    (b"id,n\r1,2\r3,4\r", "CR alone"),
    (b"id\x00,n\n1,2\n", "NUL"),
    (b"PAR1\x15...", "Parquet"),
    (b"PK\x03\x04....", "Excel"),
    (gzip.compress(b"id,n\n1,2\n", mtime=0), "rename"),
    (b'[\n{"a": 1}\n]\n', "JSON array"),
    (b'{\n  "a": 1\n}\n', "not one object a line"),
    (b"id,n\n" + b"1,2,3\n" * 20, "field_count"),
    (b"id,n\n" + b"\xe9,2\n" * 20, "encoding"),
]


@pytest.mark.parametrize(("content", "why"), REFUSED)
def test_broken_samples_are_refused_in_words(refused, content: bytes, why: str) -> None:
    """What semel does not read is refused with the reason, and nothing is written."""
    assert why in refused(content)


@pytest.mark.parametrize("cut", [5, 30])
def test_damaged_gzip(refused, cut: int) -> None:
    """A gzip file that is cut off or is none is refused."""
    message = refused(gzip.compress(table("id,n", "x{i},{i}"))[:cut], "a.csv.gz")
    assert "gzip stream is damaged" in message
    assert "gzip stream is damaged" in refused(b"id,n\n1,2\n", "b.csv.gz")


def test_years_and_numbers_as_columns(new) -> None:
    """Columns may be called by years, or numbered from 0."""
    assert list(new(table("land,2019,2020", "x{i},1,2")).schema) == ["land", "2019", "2020"]
    assert list(new(table("0,1", "x{i},{i}"), "other").schema) == ["0", "1"]


def lines(*records: object) -> bytes:
    """A JSON Lines file."""
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


JSON_TYPES = [
    ([1, -2], "bigint"),
    ([1, 2.5], "double"),
    ([1, "1"], "json"),
    ([2**63], "json"),
    ([True, False], "boolean"),
    ([True, 1], "json"),
    (["a", "\u00e4\n"], "string"),
    (["1", "2"], "string"),
    (["2024-01-01"], "date"),
    (["2024-01-01T10:00:00Z", "2024-01-01"], "timestamp"),
    ([[1, 2], []], "array<bigint>"),
    ([[]], "json"),
    ([{"a": 1, "b": "x"}, {"b": "y"}], "struct<a: bigint, b: string>"),
    ([{"a": 1}, {"a": "x"}], "json"),
    ([{"a b": 1}], "json"),
    ([{"a": 1, "A": 2}], "json"),
    ([[{"a": {"b": [1.5]}}]], "array<struct<a: struct<b: array<double>>>>"),
    ([{f"k{i}": i for i in range(100)}], "json"),
    ([{}], "json"),
    ([None], "json"),
]


def test_types_of_json_keys(new) -> None:
    """A type is taken that holds all values; json where they differ, or nobody knows."""
    rows = [
        {"n": i} | {f"c{at}": vs[i % len(vs)] for at, (vs, _) in enumerate(JSON_TYPES)}
        for i in range(24)
    ]
    made = new({"a.jsonl": lines(*rows)})
    found = [(values, made.schema[f"c{at}"]) for at, (values, _) in enumerate(JSON_TYPES)]
    assert found == JSON_TYPES
    assert made.answer["quarantined"] == 0


def test_json_keys(new) -> None:
    """Rare keys are columns; names that no column may have are kept in _semel_rest."""
    rows = [{"id": f"x{i}", "n": i} for i in range(100)]
    rows[7] |= {"rare": 1.5, "_semel_x": 1, "ID": 2, "a`b": 3}
    made = new({"a.jsonl": lines(*rows)})
    assert made.schema == {"id": "string", "n": "bigint", "rare": "double"}
    assert made.data["source"]["unknown"] == "keep"
    assert '"_semel_x" in 1' in made.text
    assert made.answer["quarantined"] == 0


def test_json_keys_that_are_data(new) -> None:
    """Of thousands of keys the most frequent ones are columns, the others are kept as one."""
    rows = [{"id": f"x{i}", f"k{i}": i} for i in range(3000)]
    made = new({"a.jsonl": lines(*rows)})
    assert len(made.schema) == 200 and "id" in made.schema
    assert made.data["source"]["unknown"] == "keep"


def test_json_with_bad_lines(new) -> None:
    """Lines that are no JSON are counted, and do not hide the keys of the others."""
    rows = lines(*({"id": f"x{i}", "n": i} for i in range(100)))
    made = new({"a.jsonl": b"{not json}\n" + rows + b'{"id":"x","id":"y"}\n{"id":"z","n":NaN}\n'})
    assert made.schema == {"id": "string", "n": "bigint"}
    assert made.answer["reasons"] == {"malformed": 1, "duplicate_key": 1, "type_mismatch": 1}


IDENTITIES = [
    ("id,n", "x{i},{i}", ["id"]),
    ("n,order_id", "1,{i}", ["order_id"]),
    ("n,orderId", "1,x{i}", ["orderId"]),
    ("order_id,uuid", "x{i},y{i}", ["uuid"]),
    ("paid,n", "x{i},{i}", None),
    ("score_id,n", "{i}.5,1", None),
    ("name,n", "x{i},{i}", None),
]


@pytest.mark.parametrize(("header", "row", "record_id"), IDENTITIES)
def test_record_id(new, header: str, row: str, record_id: list[str] | None) -> None:
    """The id is a column that is named so, unique and never null; others are named in a comment."""
    made = new(table(header, row))
    assert made.data.get("record_id") == record_id
    if header == "name,n":
        assert "# record_id: [name]" in made.text


def test_record_id_of_two_columns(new) -> None:
    """Two columns that are named so are the id where none is alone."""
    rows = "".join(f"o{i // 4},{i % 4},x\n" for i in range(ROWS))
    made = new(("order_id,line_no,n\n" + rows).encode())
    assert made.data["record_id"] == ["order_id", "line_no"]


def test_repeats_do_not_hide_an_id(new) -> None:
    """Records that come twice are what an id is for; a null, or another record, rules one out."""
    body = table("id,n", "x{i},{i}")
    made = new(body + body.splitlines(keepends=True)[5] * 3)
    assert made.data["record_id"] == ["id"]
    assert made.answer["repeats"] == 3
    assert "record_id" not in new(body + b"x5,6\n", "second").data
    assert "record_id" not in new(body + b",6\n", "third").data


def test_numbers_that_may_be_rows(new) -> None:
    """An id that counts from 1 is taken, and the file says when that is wrong."""
    assert "counts by itself" in new(table("id,n", "{i},x")).text
    assert "counts by itself" not in new(table("id,n", "7{i},x"), "other").text


@pytest.mark.parametrize("more", [b"", b"y1,2024-01-01,2\n"])
def test_a_column_that_some_samples_lack(new, more: bytes) -> None:
    """It is optional, with a comment, and is proposed neither as an id nor as the time; where it
    stands in the samples does not matter. A rename is another header: that is refused elsewhere.
    """
    files = {
        "a.csv": table("id,created_at,n", "x{i},2024-01-01,{i}", 3)[:-1] + b"\n",
        "b.csv": table("event_id,id,n,created_at,seen_at", "{i},z{i},1,2024-01-02,2024-01-03"),
        "c.csv": b"id,created_at,n\n" + more,
    }
    made = new(files)
    optional = {name: {"optional": True} for name in ("event_id", "seen_at")}
    assert made.data["source"]["columns"] == optional
    assert list(made.schema) == ["event_id", "id", "n", "created_at", "seen_at"]
    assert made.data["record_id"] == ["id"] and made.data["record_time"] == "created_at"
    assert "# Some samples lack these columns" in made.text
    assert made.answer["quarantined"] == 0 and made.answer["files_refused"] == 0


def test_record_time(new) -> None:
    """The time is a column of that name that is never null and does not change on delivery."""
    made = new(table("id,updated_at,day,created_at", "x{i},2024-01-01T00:00,2024-01-01,2024-01-01"))
    assert made.data["record_time"] == "created_at"
    assert "record_time" not in new(table("id,updated_at", "x{i},2024-01-01T00:00"), "other").data


BODY = table("id,n", "x{i},{i}", 3)
PATHS = [
    (["a.csv"], "in/a.csv", None),
    (["a-1.csv", "a-2.csv"], "in/a-*.csv", None),
    (["x/a.csv", "y/a.csv"], "in/*/a.csv", None),
    (["a.csv", "x/a.csv"], "in/**/a.csv", None),
    (["part-0001.csv"], "in/part-*.csv", None),
    (["a[1]*.csv"], "in/a[[]*][*].csv", None),
    (["north.csv", "south.csv"], "in/*.csv", None),
    (["a-2024-01-05.csv"], "in/a-*.csv", "a-%Y-%m-%d.csv"),
    (["a-2024-01-05.csv", "a-2024-01-06.csv"], "in/a-*.csv", "a-%Y-%m-%d.csv"),
    (["20240105.csv"], "in/*.csv", "%Y%m%d.csv"),
    (["a_20240105T13.csv"], "in/a_*.csv", "a_%Y%m%dT%H.csv"),
    (["a_2024-01.csv", "a_2024-02.csv"], "in/a_*.csv", "a_%Y-%m.csv"),
    (["a-2024-01-05-1.csv", "a-2024-01-05-2.csv"], "in/a-2024-01-05-*.csv", None),
    (["100%-2024-01-05.csv"], "in/100%-*.csv", "100%%-%Y-%m-%d.csv"),
    (["v2/s3.csv"], "in/v2/s3.csv", None),
]


@pytest.mark.parametrize(("names", "path", "interval_from"), PATHS)
def test_paths_and_dates(new, names: list[str], path: str, interval_from: str | None) -> None:
    """The pattern goes over what differs, or a single name's numbers; dates bind intervals."""
    made = new({name: BODY for name in names})
    assert made.data["source"]["path"] == path
    assert made.data["source"].get("interval_from") == interval_from
    assert made.answer["files_found"] == len(names)
