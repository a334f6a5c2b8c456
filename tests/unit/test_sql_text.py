"""SQL transforms as `validate` sees them: one query over `records`, told with line and column."""

from pathlib import Path

import pytest

from fixtures.batches.workbench import Workbench
from semel.errors import SpecError
from semel.pipeline.transforms import SQL_BYTES_MAX, flaws

RIGHT = [
    "SELECT day, count(*) AS n FROM records GROUP BY day",
    "FROM records SELECT id",
    "FROM records |> WHERE n > 1 |> AGGREGATE count(*) AS c GROUP BY id",
    "WITH a AS (SELECT * FROM records), b AS (SELECT * FROM a) SELECT * FROM b JOIN a USING (id)",
    "WITH records AS (SELECT * FROM records WHERE n > 1) SELECT * FROM RECORDS",
    "(SELECT id FROM records) UNION ALL SELECT id FROM `records` AS r",
    "SELECT /*+ BROADCAST(r) */ * FROM records r LEFT SEMI JOIN records s USING (id)",
    "SELECT id, t.x FROM records LATERAL VIEW explode(xs) t AS x",
    "SELECT * FROM records, LATERAL explode(xs) AS t(x)",
    "SELECT r.id FROM records r, range(3)",
    "SELECT * EXCEPT (n) FROM records PIVOT (sum(n) FOR id IN ('a', 'b'))",
    "SELECT transform(xs, x -> x + 1), n DIV 2, n::int, r'\\d', m['k'], INTERVAL '1' DAY\n"
    "FROM records TABLESAMPLE (10 PERCENT)",
    "SELECT date_trunc('hour', at), count(*) FILTER (WHERE n > 1) FROM records GROUP BY ALL",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5)\n"
    "SELECT * FROM t JOIN records USING (n)",
    "-- The semicolon; of a comment\nSELECT ';' AS s, rand() AS r FROM records; -- and the end",
    "\ufeffSELECT id FROM records;;\r\n",
]

WRONG = [
    ("", "1:1: is empty"),
    (" ;", "1:1: is empty"),
    ("/* only\n a note */", "1:1: is empty"),
    ("SELECT id\nFORM records r x", "2:6: cannot be read at records"),
    ("SELECT id,\r\n 'a\u2028\x0b b' AS x\r\nFORM records r", "3:1: cannot be read at FORM"),
    ("SELECT id\n  FROM\n", "2:3: cannot be read at FROM: Expected table name"),
    ("SELECT id,\n  'open FROM records -- so", "2:3: a text, a quoted name or a comment begins"),
    ("SELECT `id\nFROM records", "1:8: a text, a quoted name or a comment begins"),
    ("SELECT id FROM records /* so\n", "1:24: a text, a quoted name or a comment begins"),
    ("SELECT id FROM records;\n\nSELECT 1", "3:1: a second statement begins here"),
    ("SELECT id FROM records; DROP TABLE x", "1:25: a second statement begins here"),
    ("DROP TABLE records", "1:1: DROP does not begin a query"),
    ("  insert INTO x SELECT * FROM records", "1:3: insert does not begin a query"),
    ("CREATE VIEW x AS SELECT * FROM records", "1:1: CREATE does not begin a query"),
    ("SET spark.sql.ansi.enabled = false", "1:1: SET does not begin a query"),
    ("CACHE TABLE x AS SELECT * FROM records", "1:1: CACHE does not begin a query"),
    ("EXECUTE IMMEDIATE 'DROP TABLE x'", "1:1: EXECUTE does not begin a query"),
    ("BEGIN SELECT * FROM records; END", "1:1: BEGIN does not begin a query"),
    ("TABLE other", "1:1: TABLE does not begin a query"),
    ("WITH a AS (SELECT 1) INSERT INTO x SELECT * FROM records", "1:1: is INSERT, not a query"),
    ("FROM records INSERT INTO x SELECT *", "1:1: is MULTITABLEINSERTS, not a query"),
    ("SELECT *\nFROM records JOIN other USING (id)", "2:19: reads the table other; a transform"),
    ("SELECT id FROM records\nWHERE id IN (SELECT id FROM b)", "2:29: reads the table b;"),
    ("SELECT (SELECT max(n) FROM b) FROM records", "1:28: reads the table b;"),
    ("SELECT * FROM records UNION SELECT * FROM b", "1:43: reads the table b;"),
    ("WITH a AS (SELECT * FROM b), b AS (SELECT * FROM records) SELECT * FROM a, b",
     "1:26: reads the table b;"),
    ("WITH a AS (SELECT * FROM a) SELECT * FROM a, records", "1:26: reads the table a;"),
    ("SELECT (WITH a AS (SELECT 1) SELECT * FROM a) FROM records, a", "1:61: reads the table a;"),
    ("SELECT * FROM records, default.records", "1:24: reads the table default.records;"),
    ("SELECT * FROM records, parquet.`/etc/x`", "1:24: reads the table parquet.`/etc/x`;"),
    ("SELECT * FROM records, IDENTIFIER('b')", "1:24: reads the table IDENTIFIER('b')"),
    ("SELECT * FROM records, STREAM(b)", "1:24: reads the table STREAM(b)"),
    ("SELECT * FROM records, ${x}", "1:1: reads the table ${x};"),
    ("SELECT * FROM records, f(TABLE(b))", "1:26: TABLE(...) is not allowed"),
    ("SELECT * FROM records, `b\nc`", "1:24: reads the table `b\\nc`;"),
    ("SELECT 1 AS id", "1:1: does not read records"),
    ("WITH records AS (SELECT 1 AS id) SELECT * FROM records", "1:1: does not read records"),
    ("SELECT " + "(" * 200 + "1" + ")" * 200 + " FROM records", "1:1: is nested too deeply"),
    ("SELECT " + "NOT " * 15_000 + "x FROM records", "1:1: is nested too deeply"),
]  # fmt: skip


@pytest.mark.parametrize("text", RIGHT)
def test_one_query_over_records_is_right(text: str) -> None:
    """What Spark's dialect offers a query is taken: pipes, CTEs, windows, lambdas, hints."""
    assert flaws(text.encode()) == []


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_what_else_is_refused_with_its_place(text: str, said: str) -> None:
    """S25: no second statement, nothing but a query, no table but `records` and its own WITHs.

    Each answer is one line, with line and column from 1.
    """
    found = flaws(text.encode())
    assert len(found) == 1
    assert found[0].startswith(said)
    assert found[0].isprintable()


def test_each_foreign_table_is_told() -> None:
    """Whoever mends a query sees all that it must not read."""
    found = flaws(b"SELECT *\nFROM a\nJOIN records USING (id)\nJOIN b.c USING (id)")
    assert [flaw.split(";")[0] for flaw in found] == [
        "2:6: reads the table a", "4:6: reads the table b.c"
    ]  # fmt: skip


def test_bytes_that_are_no_text() -> None:
    """Neither text of another encoding nor a file that is no query's size is parsed."""
    assert flaws("SELECT 1\nAS ä".encode("latin-1")) == ["2:1: is not valid UTF-8"]
    many = b"SELECT id FROM records -- " + b"x" * SQL_BYTES_MAX
    assert flaws(many) == ["1:1: is larger than 64 KiB"]


# fmt: off
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("daily.sql", "{folder}/daily.sql:2:6: reads the table other;"),
        ("gone.sql", "'gone.sql': there is no file {folder}/gone.sql"),
        ("folder.sql", "'folder.sql': there is no file {folder}/folder.sql"),
        ("outside.sql", "'outside.sql': {folder}/outside.sql is a link to another folder"),
        ("../out.sql", "'../out.sql' does not match the pattern"),
        ("/etc/out.sql", "'/etc/out.sql' does not match the pattern"),
        ("a/b.sql", "'a/b.sql' does not match the pattern"),
        ("a.b.sql", "'a.b.sql' does not match the pattern"),
        (".sql", "'.sql' does not match the pattern"),
        ("A.sql", "'A.sql' does not match the pattern"),
        ("a.sql\n", "'a.sql\\n' does not match the pattern"),
        ("a.SQL", "'a.SQL' does not match the pattern"),
        ("a.sql:f", "'a.sql:f' does not match the pattern"),
        ("x" * 300 + ".sql", "'xx"),
    ],
)
# fmt: on
def test_a_sql_file_is_one_of_the_folder(
    bench: Workbench, tmp_path: Path, name: str, said: str
) -> None:
    """A name has no path in it, and the file lies in the folder itself; YAML's line is told too."""
    (bench.transforms / "daily.sql").write_text("SELECT *\nFROM other JOIN records USING (id)\n")
    (bench.transforms / "folder.sql").mkdir()
    (tmp_path / "out.sql").write_text("SELECT * FROM records")
    (bench.transforms / "outside.sql").symlink_to(tmp_path / "out.sql")
    with pytest.raises(SpecError) as raised:
        bench.spec(transforms=["daily:f", name], name="clicks")
    _, line, _, why = str(raised.value).splitlines()[-1].split(":", 3)
    assert line.isdigit()
    assert why.strip().startswith(said.format(folder=bench.transforms))


def test_sql_beside_python(bench: Workbench) -> None:
    """A SQL file and a module of one name are two transforms; the digest holds their names."""
    (bench.transforms / "daily.sql").write_text("SELECT * FROM records")
    (bench.transforms / "daily.py").write_text("def daily(frame):\n    return frame\n")
    one = bench.spec(transforms=["daily:daily", "daily.sql"])
    other = bench.spec(transforms=["daily.sql", "daily:daily"])
    assert one.digest() != other.digest()
