"""`semel new` on CSV: its format and its columns' types."""

import gzip

import pytest

from fix_new import ROWS, table

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


@pytest.mark.parametrize(("values", "kind"), TYPES)
def test_type_of_a_csv_column(new, values: list[str], kind: str) -> None:
    """A type is taken that keeps each value as it is meant; else the text."""
    lines = [f'{i},"{v}"' if "," in v else f"{i},{v}" for i in range(10) for v in values]
    made = new("\n".join(["n,value", *lines, ""]).encode())
    assert made.schema["value"] == kind
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


def test_multiline(new) -> None:
    """Fields with line ends are seen, and the file is read when nobody writes it any more."""
    made = new(table("id,text", 'x{i},"a\nb {i}"'))
    assert made.spec.source.csv.multiline
    assert made.spec.source.closed_after.total_seconds() == 60
    assert (made.answer["records"], made.answer["quarantined"]) == (ROWS, 0)


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
    (b"id,n\n", "no record"),
    (b"1,2.5,x\n2,3.5,y\n", "looks like a record"),
    (b"2024-01-01,a\n2024-01-02,b\n", "looks like a record"),
    (b"id,,n\n1,2,3\n", "column 2 of the header, '', has no name"),
    (b"id,ID\n1,2\n", "column 2 of the header, 'ID', is there twice"),
    (b"id,_semel_x\n1,2\n", "kept for semel"),
    (b"id,a`b\n1,2\n", "no column's name may hold"),
    (b"id,a\x1bb\n1,2\n", "'a\\x1bb'"),
    (b"id,caf\xe9\n1,2\n", "no CSV header"),
    ("id,n\nä,1\n".encode("utf-16"), "UTF-16"),
    (b"id,n\r1,2\r3,4\r", "CR alone"),
    (b"id\x00,n\n1,2\n", "NUL"),
    (b"PAR1....", "Parquet"),
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
