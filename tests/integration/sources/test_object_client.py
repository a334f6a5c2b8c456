"""What `Store` promises of objects, against a real server of S3's protocol."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fixtures.kafka.registry import answering
from fixtures.objects.azure import Azure
from fixtures.objects.s3 import CONNECTION, PASSWORD, S3
from fixtures.postgres.server import free_port
from semel.clients.objects import Store
from semel.clients.objects.file import ObjectFile
from semel.errors import TerminalError, UnavailableError

TOLD_SECONDS = 10
"""Within this a store that is away, or refuses, is told of."""


def keys(store: Store, folder: str = "", after: str | None = None) -> list[str]:
    return [found.key for page in store.list(folder, after) for found in page]


def test_objects_are_listed_below_a_prefix(s3: S3) -> None:
    """Only what lies below the prefix as a folder is listed, by ascending keys below it, in pages;
    of a folder or behind a key, only that. Sizes and etags are those of the server."""
    bucket = s3.bucket()
    etag = s3.put(bucket, "in/dt=1/b.txt", b"12345")
    for key in ("in/a b+c&%41ü#?.txt", "in/dt=10/a", "in/dt=2/a", "inside", "out/x"):
        s3.put(bucket, key, b"1")
    store = s3.store(bucket, "in/")
    assert keys(store) == ["a b+c&%41ü#?.txt", "dt=1/b.txt", "dt=10/a", "dt=2/a"]
    assert keys(store, "dt=1") == ["dt=1/b.txt"]
    assert keys(store, after="dt=1/b.txt") == ["dt=10/a", "dt=2/a"]
    assert keys(store, "dt=2", after="dt=1/b.txt") == ["dt=2/a"]
    found = next(store.list("dt=1"))[0]
    assert (found.size, found.etag) == (5, etag)
    assert abs(found.modified.timestamp() - time.time()) < 60
    assert store.read("a b+c&%41ü#?.txt", store.head("a b+c&%41ü#?.txt")[0].etag, 0, 1) == b"1"


def test_a_long_listing_is_whole(s3: S3) -> None:
    """More keys than one answer holds come each once, in order, behind a key too. It takes 4 s to
    put them."""
    bucket = s3.bucket()
    wanted = [f"{n:05d}" for n in range(2_345)]
    client = s3.client
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda k: client.put_object(Bucket=bucket, Key=k, Body=b""), wanted))
    pages = [len(page) for page in s3.store(bucket).list()]
    assert sum(pages) == 2_345 and max(pages) <= 1_000
    assert keys(s3.store(bucket)) == wanted
    assert keys(s3.store(bucket), after="01200") == wanted[1_201:]


def test_what_is_read_is_what_was_listed(s3: S3) -> None:
    """Ranges are read of the version whose etag is named. Once another one is there, or none, a
    read fails, and never gives bytes of the other."""
    bucket = s3.bucket()
    etag = s3.put(bucket, "a", b"0123456789")
    store = s3.store(bucket)
    assert store.read("a", etag, 2, 5) == b"234"
    assert store.read("a", etag, 5, 5) == b""
    assert b"".join(store.chunks("a", etag, 1, 10, 2)) == b"123456789"
    s3.put(bucket, "a", b"abcdefghij")
    with pytest.raises(FileNotFoundError, match="another version"):
        store.read("a", etag, 2, 5)
    with pytest.raises(FileNotFoundError, match="another version"):
        list(store.chunks("a", etag, 0, 10, 2))
    s3.delete(bucket, "a")
    with pytest.raises(FileNotFoundError, match="it does not exist"):
        store.read("a", etag, 2, 5)
    with pytest.raises(FileNotFoundError):
        store.head("a")


def test_a_stream_that_lapses_is_asked_for_anew(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nobody reads, a service may end it: what is read on is the rest, of the same version;
    a second failure at one place is told. A seek begins anew."""
    bucket, data = s3.bucket(), random.Random(1).randbytes(5 << 20)
    etag = s3.put(bucket, "a", data)
    stream, asked, fail = Store.chunks, [], 1

    def lapsing(self: Store, key: str, etag: str, start: int, *more: int) -> Iterator[memoryview]:
        asked.append(start)
        for number, piece in enumerate(stream(self, key, etag, start, *more)):
            if number == fail:
                raise UnavailableError("it has ended")
            yield piece

    monkeypatch.setattr(Store, "chunks", lapsing)
    file = ObjectFile(s3.store(bucket), "a", etag, len(data))
    file.prefetch_end = len(data)
    read = bytearray(len(data))
    assert file.readinto(memoryview(read)) == len(data) == file.tell() and read == data
    assert len(asked) > 2 and asked == sorted({*asked})
    file.seek(7)
    assert file.readinto(memoryview(read)[:3]) == 3 and read[:3] == data[7:10]
    fail = 0
    file.seek(11)
    with pytest.raises(UnavailableError):
        file.readinto(memoryview(read)[:3])
    s3.put(bucket, "a", b"other")
    fail = -1
    with pytest.raises(FileNotFoundError, match="another version"):
        file.readinto(memoryview(read)[:3])


def test_an_object_is_put_where_none_is(s3: S3) -> None:
    """Of sixteen puts of one key one succeeds, and what is there is its object, with its metadata;
    of 6 MB too, which other ways of the client would send in parts."""
    bucket = s3.bucket()
    store = s3.store(bucket, "p")
    for size in (10, 6 << 20):
        name = f"k/{size}"

        def put(n: int, name: str = name, size: int = size) -> bool:
            return store.create(name, bytes([n]) * size, {"semel-xxh3": f"{n}"})

        with ThreadPoolExecutor(16) as threads:
            made = list(threads.map(put, range(16)))
        assert made.count(True) == 1
        found, metadata = store.head(name)
        assert found.size == size
        assert metadata["semel-xxh3"] == str(made.index(True))
        assert store.read(name, found.etag, 0, size) == bytes([made.index(True)]) * size


def test_an_object_is_replaced_by_its_etag(s3: S3) -> None:
    """A replacement names the etag of what it replaces: of another one it is refused, and nothing
    is changed. What is removed is gone, and removing it again is no error."""
    bucket = s3.bucket()
    store = s3.store(bucket)
    etag = s3.put(bucket, "m", b"one")
    store.replace("m", b"two", {}, etag)
    with pytest.raises(FileNotFoundError, match="another version"):
        store.replace("m", b"three", {}, etag)
    assert s3.client.get_object(Bucket=bucket, Key="m")["Body"].read() == b"two"
    store.remove("m")
    store.remove("m")
    assert keys(store) == []


def refused(store: Store, error: type[Exception], match: str) -> None:
    """All calls fail with this error within the time, and tell no secret."""
    calls: list[Callable[[], object]] = [
        lambda: list(store.list()),
        lambda: store.read("a", "x", 0, 1),
        lambda: store.create("a", b"x", {}),
    ]
    for call in calls:
        begun = time.monotonic()
        with pytest.raises((error, PermissionError), match=match) as told:
            call()
        assert time.monotonic() - begun < TOLD_SECONDS
        for secret in (PASSWORD, "other-secret", "Signature=", "AWS4"):
            assert secret not in f"{told.value}"
            assert told.value.__suppress_context__


@pytest.mark.proof
def test_credentials_that_are_not_taken_are_told(s3: S3) -> None:
    """A wrong secret, an unknown key: the error names whose credentials they are, and no secret."""
    bucket = s3.bucket()
    s3.put(bucket, "a", b"x")
    refused(s3.store(bucket, password="other-secret"), TerminalError, CONNECTION)
    refused(s3.store(bucket, login="nobody"), TerminalError, CONNECTION)


def test_a_session_token_of_the_environment_is_not_taken(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection's keys go alone: a token of the environment is of other keys."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of somebody else")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of somebody else")
    bucket = s3.bucket()
    s3.put(bucket, "a", b"x")
    assert keys(s3.store(bucket)) == ["a"]


def test_the_machines_own_credentials(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a connection those of the environment are taken."""
    bucket = s3.bucket()
    s3.put(bucket, "a", b"x")
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIATESTS", "AWS_SECRET_ACCESS_KEY": PASSWORD,
        "AWS_ENDPOINT_URL": s3.endpoint, "AWS_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert keys(Store(f"s3://{bucket}/", None)) == ["a"]


def test_a_bucket_that_is_not_there_is_told(s3: S3) -> None:
    """Its name is in the error, and that it is to be made."""
    why = "s3://no-such-bucket.*: its bucket .* does not exist"
    refused(s3.store("no-such-bucket"), TerminalError, why)


def test_a_store_that_is_away_is_told_in_ten_seconds(s3: S3) -> None:
    """Not there, or answering nobody: an error that says it may be tried again, within ten seconds
    a call, and the calls go on once it is back. It takes 20 s: a paused server is waited for."""
    bucket = s3.bucket()
    etag = s3.put(bucket, "a", b"x")
    store = s3.store(bucket)
    s3.pause()
    try:
        for call in (lambda: list(store.list()), lambda: store.read("a", etag, 0, 1)):
            begun = time.monotonic()
            with pytest.raises(UnavailableError, match="does not answer"):
                call()
            assert time.monotonic() - begun < TOLD_SECONDS
    finally:
        s3.start()
    assert store.read("a", etag, 0, 1) == b"x"
    nobody = f"http://127.0.0.1:{free_port()}"
    refused(s3.store(bucket, endpoint=nobody), UnavailableError, "does not answer")


def test_a_key_that_no_path_can_have_is_told(s3: S3) -> None:
    """A line break in a key: the listing fails and names the key, as it never ends silently."""
    bucket = s3.bucket()
    s3.put(bucket, "a", b"x")
    s3.put(bucket, "new\nline", b"x")
    with pytest.raises(TerminalError, match=r'"new\\nline".*Rename it'):
        keys(s3.store(bucket))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"conn_type": "http"}, "its type is http, not aws"),
        ({"password": ""}, "one of access key id"),
        ({"extra": {"role_arn": "arn:x"}}, "role_arn"),
        ({"extra": "{no json"}, "not JSON"),
        ({"extra": {"region_name": 7}}, "region is not text"),
    ],
)
def test_a_connection_that_cannot_be_used_is_told(
    changes: dict[str, object], why: str
) -> None:
    """What is wrong with it is said, and its secrets are not."""
    text = json.dumps({"conn_type": "aws", "login": "a", "password": "geheim"} | changes)
    with pytest.raises(TerminalError, match=why) as told:
        Store("s3://bucket/x", "c", find=lambda _: text)
    assert "geheim" not in str(told.value)


def test_a_connection_that_is_not_there_is_told() -> None:
    """With what one is like, for each service."""
    for url in ("s3://bucket/x", "gs://bucket/x", "az://container/x"):
        with pytest.raises(TerminalError, match="conn_type"):
            Store(url, "none_such", find=lambda _: None)


@pytest.mark.proof
def test_objects_of_azure(azure: Azure) -> None:
    """As of S3: listed and read by etag, which a listing and a head write differently; put where
    none is, replaced by its etag, told when it is gone; a wrong key is told without it. npm fetches
    365 MB for the server."""
    bucket = azure.bucket()
    store = Store(f"{azure.url(bucket)}/in", CONNECTION)
    azure.put(bucket, "in/a b/1.txt", b"0123")
    azure.put(bucket, "inside", b"")
    assert keys(store) == ["a b/1.txt"] and keys(store, after="a b/1.txt") == []
    found = next(store.list())[0]
    assert store.head("a b/1.txt")[0] == found
    assert store.read(found.key, found.etag, 1, 3) == b"12"
    assert not store.create(found.key, b"other", {})
    assert store.create("new", b"x", {"semel_xxh3": "ff"})
    assert store.head("new")[1]["semel_xxh3"] == "ff"
    store.replace(found.key, b"4567", {}, found.etag)
    for call in (
        lambda: store.replace(found.key, b"89", {}, found.etag),
        lambda: store.read(found.key, found.etag, 1, 3),
    ):
        with pytest.raises(FileNotFoundError, match="another version"):
            call()
    azure.delete(bucket, "in/a b/1.txt")
    with pytest.raises(FileNotFoundError, match="it does not exist"):
        store.read(found.key, found.etag, 1, 3)
    other = azure.connection(password="b3RoZXItc2VjcmV0")
    with pytest.raises(TerminalError, match=CONNECTION) as told:
        list(Store(azure.url(bucket), CONNECTION, find=lambda _: other).list())
    assert "b3RoZXItc2VjcmV0" not in str(told.value)
    with pytest.raises(TerminalError, match="az://no-such.*: its .* container does not exist"):
        list(Store("az://no-such", CONNECTION).list())


# Attacks OB2.
def test_a_service_that_passes_over_if_match() -> None:
    """A server that answers with another version than was asked for, as fake-gcs-server does, and
    some that speak S3's protocol: no byte of it is given to who reads."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(206)
            for name, value in {
                "ETag": '"second"', "Content-Range": "bytes 0-3/4", "Content-Length": "4",
                "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            }.items():  # fmt: skip
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"abcd")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        text = {"conn_type": "aws", "login": "a", "password": "b",
                "extra": {"endpoint_url": f"http://127.0.0.1:{server.server_port}"}}  # fmt: skip
        store = Store("s3://bucket", CONNECTION, find=lambda _: json.dumps(text))
        try:
            assert store.read("a", "second", 0, 4) == b"abcd"
            with pytest.raises(FileNotFoundError, match="another version"):
                store.read("a", "first", 0, 4)
            with pytest.raises(FileNotFoundError, match="another version"):
                list(store.chunks("a", "first", 0, 4, 4))
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "code", "error", "why"),
    [
        (400, "ExpiredToken", TerminalError, "session of .*store_tests.* has expired"),
        (403, "ExpiredToken", TerminalError, "session of .*store_tests.* has expired"),
        (403, "InvalidAccessKeyId", TerminalError, "refuses .*store_tests"),
        (301, "PermanentRedirect", TerminalError, "another region .*region_name"),
        (503, "SlowDown", UnavailableError, "does not answer, or fails .SlowDown"),
        (500, "InternalError", UnavailableError, "InternalError"),
        (404, "NoSuchBucket", TerminalError, "s3://bucket/x: its bucket .* does not exist"),
        (403, "AccessDenied", None, "permission GetObject .*AccessDenied|Allow ListBucket on"),
        (403, "InvalidObjectState", None, "it is archived .*restore it|Allow ListBucket on"),
    ],
)
def test_what_services_answer_is_told(
    status: int, code: str, error: type[Exception] | None, why: str
) -> None:
    """The words of AWS for what is wrong, by a server that only says them: each call ends within
    ten seconds with what to do. An object that this user may not read, or that is archived, is
    that object's own trouble; a bucket that may not be listed ends the plan."""
    with answering() as answers:
        answers.status = status
        answers.body = f"<Error><Code>{code}</Code><Message>geheim</Message></Error>".encode()
        text = {"conn_type": "aws", "login": "a", "password": "b",
                "extra": {"endpoint_url": answers.url}}  # fmt: skip
        store = Store("s3://bucket/x", CONNECTION, find=lambda _: json.dumps(text))
        for call, own in (
            (lambda: list(store.list()), TerminalError),
            (lambda: store.read("a", "e", 0, 1), PermissionError),
        ):
            begun = time.monotonic()
            with pytest.raises(error or own, match=why) as told:
                call()
            assert time.monotonic() - begun < TOLD_SECONDS
            assert "geheim" not in str(told.value)
