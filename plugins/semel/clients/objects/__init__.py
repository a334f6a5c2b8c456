"""Objects of S3, Google Cloud Storage and Azure, by obstore: what is asked, and what errors mean.

No object is ever read as another one than it was listed as: each read names the etag it means.
None is written over: a put is refused where an object is.
"""

import errno
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from semel import settings
from semel.clients.objects.access import UPLOAD_SECONDS, StoreLocation, opened
from semel.errors import SemelError, TerminalError, UnavailableError

KEYS_AT_ONCE = 1_000
"""Keys of one answer to a listing, the services' own limit."""

SMALL_BYTES = 256 << 10
"""What is sent within IDLE_SECONDS. A larger put has more time, as its answer comes last."""

ANOTHER = "another version is there now"
"""Why an object that is there is not the one that was listed."""

_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")
_NO_KEYS = (
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "XAdminUserNotFound",
    "AuthenticationFailed", "InvalidClientTokenId", "UnrecognizedClientException",
)  # fmt: skip
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_ELSEWHERE = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint")
_ARCHIVED = ("InvalidObjectState", "BlobArchived", "ArchivedBlob")
_DENIED, _GONE, _UNAUTHORIZED, _TOO_MANY, _FAILS, _LACKS = 403, 404, 401, 429, 500, 501


@dataclass(frozen=True, kw_only=True)
class Object:
    """An object as it is listed. `key`: below the store's prefix. `size`: its bytes. `etag`: what
    changes with its content, without quotes; it is no digest that one could compute.
    """

    key: str
    size: int
    etag: str
    modified: datetime
    version: str | None = None


class Store:
    """The objects below a prefix of a bucket. It may be used by several threads.

    Errors of all methods: UnavailableError: the service is away, or too busy. TerminalError: there
    is no such bucket, or it does not take these credentials. PermissionError: not for this object;
    or it is archived, and must be restored before anybody reads it.
    """

    def __init__(
        self,
        url: str,
        connection: str | None,
        find: Callable[[str], str | None] = settings.connection,
    ) -> None:
        """`url`: s3://bucket/prefix, gs:// or az://. `connection`: an Airflow connection; None: the
        machine's own credentials. TerminalError: obstore is not installed, or has no use for it.
        """
        self.place = StoreLocation.of(url)
        self._store, self._who = opened(self.place, connection, find)
        self._patient, _ = opened(self.place, connection, find, UPLOAD_SECONDS)

    def list(self, folder: str = "", after: str | None = None) -> Iterator[list[Object]]:
        """The objects below a folder (a prefix that ends before a slash), by ascending keys, some
        KEYS_AT_ONCE at a time. `after`: only those whose keys are greater.

        TerminalError also where a key is one that no path can have, such as one with a line break.
        """
        import obstore
        from obstore.exceptions import InvalidPathError

        try:
            with self._asked(folder or str(self.place), "ListBucket"):
                pages = obstore.list(
                    self._store, folder or None, offset=after, chunk_size=KEYS_AT_ONCE
                )
            while True:
                with self._asked(folder or str(self.place), "ListBucket"):
                    page = next(iter(pages), None)
                if page is None:
                    return
                yield [_object(found) for found in page]
        except InvalidPathError as error:
            key = re.search(r'path: ("(?:[^"\\]|\\.)*")', str(error))
            raise TerminalError(
                f"below {self.place} is an object whose key no path can have"
                f"{f', {key[1]}' if key else ''}: it has an empty part, one of dots or a control "
                "character; rename it, or narrow the URL"
            ) from None

    def head(self, key: str) -> tuple[Object, dict[str, str]]:
        """What there is under a key, and its metadata. FileNotFoundError: nothing."""
        import obstore

        with self._asked(key, "GetObject"):
            found = obstore.get(self._store, key, options={"head": True})
            return _object(found.meta), {k: str(v) for k, v in found.attributes.items()}

    def ends_in_slash(self, key: str) -> bool:
        """Whether the object that is listed as `key` has a slash at its key's end. The client
        leaves that out, so it lists the object below itself, and reads nothing by the key.
        """
        page = next(self.list(key), [])
        return any(found.key == key for found in page[:1])

    def read(self, key: str, etag: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of an object, which are there. FileNotFoundError: it is gone, or
        its etag is another one by now.
        """
        import obstore

        if start >= end:
            return b""
        with self._asked(key, "GetObject"):
            options = {"if_match": f'"{etag}"', "range": (start, end)}
            found = obstore.get(self._store, key, options=options)
            self._check(key, etag, found)
            return bytes(found.bytes())

    def chunks(self, key: str, etag: str, start: int, end: int, size: int) -> Iterator[memoryview]:
        """The same, in chunks of at least `size` bytes but for the last: one answer's."""
        import obstore

        with self._asked(key, "GetObject"):
            options = {"if_match": f'"{etag}"', "range": (start, end)}
            found = obstore.get(self._store, key, options=options)
            self._check(key, etag, found)
            pieces = iter(found.stream(size))
        while True:
            with self._asked(key, "GetObject"):
                piece = next(pieces, None)
            if piece is None:
                return
            yield memoryview(piece)

    def _check(self, key: str, etag: str, found: Any) -> None:
        """Some services pass over If-Match: the answer says what it is of."""
        if _bare(found.meta["e_tag"]) != etag:
            raise FileNotFoundError(errno.ESTALE, ANOTHER, key)

    # One request: an upload in parts would write over what is there.
    def create(self, key: str, data: bytes, metadata: Mapping[str, str]) -> bool:
        """Put an object where none is. Returns False where one is: perhaps one's own, of a try
        whose answer was lost; what `head` says of it tells. UnavailableError: none is there yet.
        """
        from obstore.exceptions import AlreadyExistsError

        try:
            self._put(key, data, metadata, "create")
        except AlreadyExistsError:
            return False
        except UnavailableError:  # Servers end the connection of a large put that they refuse.
            try:
                self.head(key)
            except FileNotFoundError:
                pass
            else:
                return False
            raise
        return True

    def replace(
        self, key: str, data: bytes, metadata: Mapping[str, str], etag: str,
        version: str | None = None,
    ) -> None:  # fmt: skip
        """Put an object in the place of the one with this etag, and version where `head` tells one.
        FileNotFoundError: another one is there. After UnavailableError `head` tells.
        """
        mode = {"e_tag": f'"{etag}"'} | ({"version": version} if version else {})
        self._put(key, data, metadata, mode)

    def _put(self, key: str, data: bytes, metadata: Mapping[str, str], mode: Any) -> None:
        import obstore

        store = self._store if len(data) <= SMALL_BYTES else self._patient
        with self._asked(key, "PutObject"):
            obstore.put(
                store, key, data, attributes=dict(metadata), mode=mode, use_multipart=False
            )

    def remove(self, key: str) -> None:
        """Delete an object, if it is there."""
        import obstore

        with self._asked(key, "DeleteObject"):
            obstore.delete(self._store, key)

    @contextmanager
    def _asked(self, what: str, right: str) -> Iterator[None]:
        """What obstore raises within the block, in semel's words; its own quote what was signed.

        AlreadyExistsError and InvalidPathError pass.
        """
        from obstore.exceptions import (
            AlreadyExistsError,
            BaseError,
            InvalidPathError,
            PermissionDeniedError,
            PreconditionError,
            UnauthenticatedError,
        )

        try:
            yield
        except (AlreadyExistsError, InvalidPathError):
            raise
        except PreconditionError:
            if right == "GetObject":
                self.head(what)  # Azure says the same of one that is not there.
            raise FileNotFoundError(errno.ESTALE, ANOTHER, what) from None
        except FileNotFoundError as error:
            if error.errno == errno.ESTALE:
                raise
            if _code(error) in (*_NO_BUCKET, *_NO_KEYS):
                raise self._told(error, _code(error), _GONE, right) from None
            raise FileNotFoundError(errno.ENOENT, "it is not there", what) from None
        except (BaseError, OSError) as error:
            code, status = _code(error), _status(error)
            if isinstance(error, PermissionDeniedError) and code not in (*_EXPIRED, *_NO_KEYS):
                said = f"{self._who} may not use it ({code or status}), which needs {right}"
                if code in _ARCHIVED:
                    said = f"it is archived ({code}): restore it, or copy it to another class"
                raise PermissionError(errno.EACCES, said, what) from None
            if isinstance(error, UnauthenticatedError):
                status = _UNAUTHORIZED
            raise self._told(error, code, status, right) from None

    def told(self, error: Exception) -> SemelError | None:
        """What the service answered to another client of obstore's library; None: nothing of that
        is wrong.
        """
        code, status = _code(error), _status(error)
        if not status or (status == _GONE and code not in _NO_BUCKET):
            return None
        return self._told(error, code, status, "GetObject and PutObject")

    def _told(self, error: Exception, code: str, status: int, right: str) -> SemelError:
        named = code or (f"status {status}" if status else type(error).__name__)
        if "169.254.169.254" in str(error) or "metadata.google.internal" in str(error):
            return TerminalError(
                f"there are no credentials for {self.place} here: name a connection, or give the "
                "machine a role or credentials in its environment"
            )
        if code in _NO_BUCKET:
            return TerminalError(f"there is no {self.place} ({code}); make it, or correct the URL")
        if code in _EXPIRED:
            return TerminalError(
                f"the session of {self._who} has expired ({code}); put a new one there, or let the "
                "machine have a role, which renews itself"
            )
        if code in _NO_KEYS or status == _UNAUTHORIZED:
            return TerminalError(
                f"{self.place} does not take {self._who} ({named}); correct its key and secret"
            )
        if code in _ELSEWHERE or "incorrectly configured region" in str(error):
            return TerminalError(
                f"{self.place} is in another region ({named}); correct region_name of {self._who}"
            )
        if status == _DENIED:
            return TerminalError(
                f"{self._who} may not use {self.place} ({named}); allow {right} on it"
            )
        if (status >= _FAILS and status != _LACKS) or status == _TOO_MANY or not status:
            return UnavailableError(
                f"{self.place} does not answer, or fails ({named}), by {self._who}; see that the "
                "service runs and is reached from here"
            )
        return TerminalError(f"{self.place} refuses a call ({named}), which needs {right}")


def _object(found: Mapping[str, Any]) -> Object:
    return Object(
        key=found["path"],
        size=found["size"],
        etag=_bare(found["e_tag"]),
        modified=found["last_modified"],
        version=found["version"],
    )


def _bare(etag: str | None) -> str:
    """Without quotes: Azure has them in a head, and not in a listing."""
    return (etag or "").strip('"')


def _code(error: Exception) -> str:
    """The service's own word for what is wrong."""
    found = re.search(r"<Code>(\w+)</Code>", str(error))
    return found[1] if found else ""


def _status(error: Exception) -> int:
    """The status of the answer; 0: there was none."""
    found = re.search(r"non-2xx status code: (\d{3})", str(error))
    return int(found[1]) if found else 0
