"""`semel new`: what identifies a record, when it was, and which files a pipeline reads."""

import pytest

from fix_new import ROWS, table

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
