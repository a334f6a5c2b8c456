"""A table that does not fit is refused before any work, with what to do about it."""

import pyarrow as pa
import pytest

from fixtures.postgres.warehouse import OWN, UPSERT, Warehouse
from semel.errors import TerminalError, UnavailableError
from semel.sinks.postgres.target import PostgresTarget, dsn_of

SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("n", pa.decimal128(10, 2))])
ROW = pa.Table.from_pylist([{"id": 1, "city": "Oslo", "n": 1}], schema=SCHEMA)


def refusal(warehouse: Warehouse, schema: pa.Schema | None = SCHEMA, **declared: object) -> str:
    """What check says of a table."""
    sink = warehouse.sink(**{"create": False, **declared})
    with pytest.raises(TerminalError) as raised:
        sink.examine(schema)
    assert "postgresql://127.0.0.1:" in str(raised.value) and "public.flights" in str(raised.value)
    return str(raised.value)


# Attacks PG4.
def test_a_table_that_is_not_there(warehouse: Warehouse) -> None:
    """The message holds the CREATE TABLE that fits; run as it stands, the table fits."""
    said = refusal(warehouse, **UPSERT, json_columns=("city",))
    create = said.partition("or CREATE TABLE ")[2]
    assert "sink.create is false" in said and "jsonb" in create
    warehouse.run("CREATE TABLE " + create)
    assert warehouse.sink(**UPSERT, create=False).examine(SCHEMA).notes == ()
    warehouse.sink("other").examine(SCHEMA)
    assert warehouse.run("SELECT to_regclass('other')") == [(None,)]  # check makes nothing.


MISFITS = {
    f"city text, n numeric(10,2), {OWN}": ("lacks the column 'id'", True),
    f"id bigint, city integer, n numeric(10,2), {OWN}": ("'city' is integer, and the", False),
    f"id bigint, city text, n numeric(10,1), {OWN}": (r"'n' is numeric(10,1), and the", True),
    f"id double precision, city text, n numeric, {OWN}": ("'id' is double precision", True),
    f"id bigint, city char(5), n numeric, {OWN}": ("'city' is character, and", True),
    f"id bigint, city text, n numeric, m text NOT NULL, {OWN}": ("'m' is NOT NULL without", True),
    f"id bigint, city text, n numeric GENERATED ALWAYS AS (1) STORED, {OWN}": (
        "'n' is generated", False),
    f"id bigint GENERATED ALWAYS AS IDENTITY, city text, n numeric, {OWN}": (
        "'id' is generated", False),
    "id bigint, city text, n numeric": (
        "lacks _semel_batch and _semel_seq (bigint); ALTER TABLE", True),
    "id bigint, city text, n numeric, _semel_seq integer": (
        "lacks _semel_batch and _semel_seq (bigint); ALTER TABLE", False),
}  # fmt: skip


# Attacks PG4, PG5.
@pytest.mark.parametrize("columns", MISFITS)
def test_columns_that_do_not_fit(warehouse: Warehouse, columns: str) -> None:
    """Each is named, semel's own too; the statement of the message, run as it stands, mends the
    table.
    """
    wanted, mends = MISFITS[columns]
    warehouse.run(f"CREATE TABLE flights ({columns})")
    said = refusal(warehouse)
    assert wanted in said
    if mends:
        warehouse.run("ALTER TABLE " + said.partition("ALTER TABLE ")[2])
        warehouse.sink(create=False).examine(SCHEMA)


def test_what_an_output_may_lack(warehouse: Warehouse) -> None:
    """Columns with a default, an identity, or that may be null, are the table's own business."""
    warehouse.run("CREATE TABLE flights (id integer, city varchar(9), n numeric(20,4), o text, "
                  "d text NOT NULL DEFAULT 'x', i bigint GENERATED ALWAYS AS IDENTITY, "
                  f"g bigint GENERATED ALWAYS AS (id * 2) STORED, {OWN})")  # fmt: skip
    warehouse.sink(create=False).examine(SCHEMA)
    warehouse.finalize(warehouse.won(ROW), warehouse.sink(create=False))
    assert warehouse.run("SELECT id, n::text, d, i, g FROM flights") == [(1, "1.0000", "x", 1, 2)]


# Attacks PG3, PG4.
@pytest.mark.parametrize("rule", ["UNIQUE (city, id)", "CHECK (id > 0)"])
def test_a_key_without_its_index(warehouse: Warehouse, rule: str) -> None:
    """upsert needs a unique index over exactly its key: refused, or made where create is true."""
    warehouse.run(f"CREATE TABLE flights (id bigint, city text, n numeric, {OWN}, {rule})")
    warehouse.run("CREATE UNIQUE INDEX ON flights (id) WHERE city = 'x'")
    said = refusal(warehouse, **UPSERT)
    assert 'lacks a unique index over [\'id\']; CREATE UNIQUE INDEX ON "public"."flights" ("id")' in said
    warehouse.finalize(warehouse.won(ROW), warehouse.sink(**UPSERT))
    warehouse.sink(**UPSERT, create=False).examine(SCHEMA)


def test_a_deferrable_key(warehouse: Warehouse) -> None:
    """PostgreSQL takes none for ON CONFLICT, also where another index would do."""
    columns = f"id bigint UNIQUE DEFERRABLE, city text, n numeric, {OWN}"
    warehouse.run(f"CREATE TABLE flights ({columns})")
    warehouse.run("CREATE UNIQUE INDEX ON flights (id)")
    assert "is deferrable" in refusal(warehouse, **UPSERT, create=True)


FLOAT_AND_TEXT = pa.schema([("f", pa.float64()), ("city", pa.string())])


@pytest.mark.parametrize(("key", "why"), [("f", "'f' is double"), ("x", "sink.key names 'x'")])
def test_keys_of_which_nobody_knows_when_they_are_equal(
    warehouse: Warehouse, key: str, why: str
) -> None:
    """Floats are no keys; nor is what the output does not have."""
    declared = {**UPSERT, "key": (key,), "create": True}
    assert why in refusal(warehouse, FLOAT_AND_TEXT, **declared)


@pytest.mark.icu
def test_a_key_whose_collation_takes_unequal_texts_for_equal(warehouse: Warehouse) -> None:
    """It is refused: two rows of semel's would be one of the table's."""
    warehouse.run("CREATE COLLATION odd (provider = icu, locale = 'und-u-ks-level2', "
                  "deterministic = false)")  # fmt: skip
    warehouse.run(f"CREATE TABLE flights (f float8, city text COLLATE odd UNIQUE, {OWN})")
    said = refusal(warehouse, FLOAT_AND_TEXT, mode="upsert", key=("city",))
    assert "'city' treats different texts as equal" in said


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a", pa.uint64()), ("a", pa.timestamp("ns")), ("a", pa.duration("us")), ("a", pa.null()),
     ("a", pa.map_(pa.int64(), pa.string())), ("a", pa.list_(pa.duration("us"))),
     ("_semel_seq", pa.int64()), ("x" * 64, pa.int64()), ("a\0", pa.int64())],
)  # fmt: skip
def test_an_output_that_no_table_holds(warehouse: Warehouse, name: str, kind: pa.DataType) -> None:
    """Types and names that PostgreSQL does not have are refused, also for a table to be made."""
    said = refusal(warehouse, pa.schema([(name, kind)]), create=True)
    assert repr(name) in said and ("transform" in said or "; rename " in said)


def test_what_is_no_table(warehouse: Warehouse) -> None:
    """A view is no target; nor is a schema that is not there; nor another server's address."""
    warehouse.run("CREATE VIEW flights AS SELECT 1 AS id")
    assert "it is not a plain table" in refusal(warehouse)
    with pytest.raises(TerminalError, match='schema does not exist; CREATE SCHEMA "no"'):
        warehouse.sink("no.flights").examine(SCHEMA)
    with pytest.raises(UnavailableError, match="does not answer.*. Check the connection 'warehouse'"):
        away = "host=127.0.0.1 port=1 dbname=x"
        warehouse.sink(dsn=away, connection="warehouse").examine(SCHEMA)


def test_rights(warehouse: Warehouse) -> None:
    """Each right that is lacking is named with its GRANT, before any work."""
    warehouse.run(f"CREATE TABLE flights (id bigint PRIMARY KEY, city text, n numeric, {OWN})")
    role = warehouse.role()
    append = {"dsn": role.dsn}
    upsert = {**UPSERT, **append}
    for wanted, right, declared in (
        ('CREATE ON SCHEMA "public"', "CREATE ON SCHEMA public", append),
        ('INSERT ON "public"."flights"', "INSERT ON flights", append),
        ("SELECT ON", "SELECT ON flights", upsert),
        ("UPDATE ON", "UPDATE ON flights", upsert),
    ):
        assert f"GRANT {wanted}" in refusal(warehouse, **declared)
        warehouse.run(f"GRANT {right} TO {role.name}")
    warehouse.sink(create=False, **upsert).examine(SCHEMA)
    warehouse.run("ALTER TABLE flights ENABLE ROW LEVEL SECURITY")
    assert "row security" in refusal(warehouse, **upsert)


def test_a_note_names_what_is_not_checked(warehouse: Warehouse) -> None:
    """An operator is told what may refuse rows of a committed batch."""
    warehouse.run("CREATE TABLE cities (city text PRIMARY KEY)")
    warehouse.run("CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql "
                  "AS 'begin return new; end'")  # fmt: skip
    warehouse.run(
        "CREATE TABLE flights (id bigint UNIQUE, city text REFERENCES cities, n numeric, "
        f"{OWN}, CONSTRAINT fine CHECK (id > 0), CONSTRAINT odd CHECK (md5(city) <> ''))"
    )
    warehouse.run("CREATE TRIGGER t BEFORE INSERT ON flights FOR EACH ROW EXECUTE FUNCTION odd()")
    facts = warehouse.sink(create=False).examine(SCHEMA)
    (note,) = facts.notes
    told, _, names = note.partition(": ")
    assert told.startswith('"public"."flights" may still refuse rows after commit')
    assert sorted(names.split(", ")) == [
        "the CHECK 'odd'",
        "the foreign key 'flights_city_fkey'",
        "the trigger 't'",
        "the unique constraint 'flights_id_key'",
    ]
    assert [check.name for check in facts.checks] == ["fine"]


def test_addresses() -> None:
    """An address names the table and holds no secret; names are quoted in it."""
    dsn = "postgresql://me:secret@DB.example:6000/my%20db"
    assert PostgresTarget(dsn=dsn, table='"a.b"."c/d"').address == (
        "postgresql://db.example:6000/my%20db/a.b.c%2Fd"
    )
    assert "secret" not in repr(PostgresTarget(dsn=dsn, table="t"))
    target = PostgresTarget(dsn="host=h user=u", table="t")
    assert target.address == "postgresql://h:5432/u/public.t"


@pytest.mark.parametrize(
    "table", ["", "a.b.c", "a.", ".b", 'a"b', "x" * 64, "a\0b", "semel_batch", 's."semel_batch"']
)
def test_names_that_are_none(table: str) -> None:
    """A name that PostgreSQL would cut, or that is none, is refused."""
    with pytest.raises(TerminalError, match=r"^sink\.table .*\. (Put|Write|Give) "):
        PostgresTarget(dsn="dbname=x", table=table)


CONNECTIONS = [
    ("postgresql://u%40:p%2F@h:6000/d?sslmode=require", "user=u@ password=p/ dbname=d host=h "
     "port=6000 sslmode=require"),
    ("postgres://u@h/d?__extra__=%7B%22connect_timeout%22%3A+3%7D",
     "user=u dbname=d host=h connect_timeout=3"),
    ('{"conn_type": "postgres", "host": "h", "login": "u", "schema": "d", "port": "6000", '
     '"extra": {"sslmode": "require", "cursor": "x"}}',
     "user=u dbname=d host=h port=6000 sslmode=require"),
    ('{"conn_type": "postgresql", "schema": "d", "extra": "{\\"host\\": \\"/Tmp\\"}"}',
     "dbname=d host=/Tmp"),
    ("postgres://u@%2FTmp%2Fx:6000/d", "user=u dbname=d host=/Tmp/x port=6000"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), CONNECTIONS)
def test_connections(monkeypatch: pytest.MonkeyPatch, text: str, wanted: str) -> None:
    """A connection is read as Airflow reads it, and writes it again; on the command line from its
    variable.
    """
    from airflow.sdk.definitions.connection import Connection

    monkeypatch.setenv("AIRFLOW_CONN_MY_DB", text)
    assert sorted(dsn_of("my_db").split()) == sorted(wanted.split())
    made = Connection.from_json if text.startswith("{") else Connection.from_uri
    theirs = made(text, conn_id="my_db").as_json()
    assert sorted(dsn_of("x", lambda _: theirs).split()) == sorted(wanted.split())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "there is no connection 'my_db'. .*export AIRFLOW_CONN_MY_DB="),
        ("mysql://u:secret@h/d", "its type is 'mysql' instead of postgres"),
        ("postgres://u:secret@h/d?iam=true", "its extra has 'iam', which libpq does not know"),
        ('{"secret": ', "it is not JSON"),
        ("postgres://u:secret@h:port/d", "ValueError"),
    ],
)
def test_connections_that_are_none(
    monkeypatch: pytest.MonkeyPatch, text: str | None, why: str
) -> None:
    """The message says why, and quotes nothing that may be a secret."""
    monkeypatch.delenv("AIRFLOW_CONN_MY_DB", raising=False)
    if text:
        monkeypatch.setenv("AIRFLOW_CONN_MY_DB", text)
    with pytest.raises(TerminalError, match=why) as raised:
        dsn_of("my_db")
    assert "secret" not in str(raised.value)
