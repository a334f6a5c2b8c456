"""Read and write objects of S3, Google Cloud Storage and Azure with obstore; translate its errors.

Each read names the etag of the listed version, so it never returns bytes of another version. Each
put creates an object or names the etag that it replaces, so it never overwrites unseen bytes.
"""

import errno
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from semel import settings
from semel.clients.objects.access import UPLOAD_SECONDS, StoreLocation, open_store
from semel.errors import SemelError, TerminalError, UnavailableError

KEYS_AT_ONCE = 1_000
"""Objects on each page of a listing: as many as S3 returns in one answer."""

SMALL_BYTES = 256 << 10
"""The client sends this much within IDLE_SECONDS. A larger put waits up to UPLOAD_SECONDS."""

COLLISIONS_MAX, COLLISION_SECONDS = 10, 0.2
"""How often a put that collides with another request for its key is tried, and how far apart."""

CHANGED = "it was replaced by another version"
"""The reason if an object has another etag than the one that a request names."""

_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")
_BAD_CREDENTIALS = (
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "XAdminUserNotFound",
    "AuthenticationFailed", "InvalidClientTokenId", "UnrecognizedClientException",
)  # fmt: skip
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_WRONG_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint")
_ARCHIVED = ("InvalidObjectState", "BlobArchived", "ArchivedBlob")
_DENIED, _NOT_FOUND, _UNAUTHORIZED = 403, 404, 401
_TOO_MANY, _SERVER_ERROR, _NOT_IMPLEMENTED = 429, 500, 501


@dataclass(frozen=True, kw_only=True)
class Object:
    """An object of a listing. `key`: relative to the store's prefix. `size`: in bytes.

    `etag`: without quotes. It changes with the content, but semel cannot compute it from the bytes.
    """

    key: str
    size: int
    etag: str
    modified: datetime
    version: str | None = None


class Store:
    """The objects below a prefix of a bucket. Several threads may use it.

    All methods raise
    - UnavailableError if the service does not answer or is too busy;
    - TerminalError if the bucket does not exist, or refuses the credentials;
    - PermissionError if the credentials do not suffice for an object, or the object is archived.
    """

    def __init__(
        self,
        url: str,
        connection: str | None,
        find: Callable[[str], str | None] = settings.connection,
    ) -> None:
        """`url`: s3://bucket/prefix, gs:// or az://. `connection`: an Airflow connection, or None
        for the machine's own credentials.

        Raises TerminalError if obstore is not installed, or if the URL or connection is unusable.
        """
        self.place = StoreLocation.of(url)
        self._store, self._identity = open_store(self.place, connection, find)
        self._upload_store, _ = open_store(self.place, connection, find, UPLOAD_SECONDS)

    def list(self, folder: str = "", after: str | None = None) -> Iterator[list[Object]]:
        """Yield the objects below a folder in ascending order of keys, in pages of KEYS_AT_ONCE.

        `folder`: a prefix, without the slash that follows it. `after`: yield only greater keys.

        Also raises TerminalError if a key cannot be a path, for example because of a line break.
        """
        import obstore
        from obstore.exceptions import InvalidPathError

        try:
            with self._translate_errors(folder or str(self.place), "ListBucket"):
                pages = obstore.list(
                    self._store, folder or None, offset=after, chunk_size=KEYS_AT_ONCE
                )
            while True:
                with self._translate_errors(folder or str(self.place), "ListBucket"):
                    page = next(iter(pages), None)
                if page is None:
                    return
                yield [_listed_object(found) for found in page]
        except InvalidPathError as error:
            key = re.search(r'path: ("(?:[^"\\]|\\.)*")', str(error))
            raise TerminalError(
                f"{self.place} has an object that semel cannot list, because its key has //, /./, "
                f"/../ or a control character{f': {key[1]}' if key else ''}. Rename it, or choose "
                "a URL below this one"
            ) from None

    def head(self, key: str) -> tuple[Object, dict[str, str]]:
        """The object of a key, and its metadata. Raises FileNotFoundError if it does not exist."""
        import obstore

        with self._translate_errors(key, "GetObject"):
            return _described(obstore.get(self._store, key, options={"head": True}))

    def ends_in_slash(self, key: str) -> bool:
        """True if an object's real key is `key` and a slash, which obstore drops from listings.

        obstore cannot read such an object. In the folder `key` it lists the object as `key` itself.
        """
        page = next(self.list(key), [])
        return any(found.key == key for found in page[:1])

    def read(self, key: str, etag: str, start: int, end: int) -> bytes:
        """The bytes [start, end) of an object, which MUST have at least `end` bytes.

        Raises FileNotFoundError if the object was deleted or has another etag.
        """
        import obstore

        if start >= end:
            return b""
        with self._translate_errors(key, "GetObject"):
            options = {"if_match": f'"{etag}"', "range": (start, end)}
            answer = obstore.get(self._store, key, options=options)
            self._check_etag(key, etag, answer)
            return bytes(answer.bytes())

    def read_constant(self, key: str, start: int, end: int) -> bytes:
        """Like `read`, of an object that nobody replaces."""
        import obstore

        if start >= end:
            return b""
        with self._translate_errors(key, "GetObject"):
            return bytes(obstore.get_range(self._store, key, start=start, end=end))

    def get(self, key: str) -> tuple[bytes, Object, dict[str, str]]:
        """All bytes of an object, and what `head` returns of this version.

        Raises FileNotFoundError if it does not exist.
        """
        import obstore

        with self._translate_errors(key, "GetObject"):
            answer = obstore.get(self._store, key)
            return bytes(answer.bytes()), *_described(answer)

    def chunks(self, key: str, etag: str, start: int, end: int, size: int) -> Iterator[memoryview]:
        """Like `read`, but yields the bytes in chunks of at least `size`, except the last chunk."""
        import obstore

        with self._translate_errors(key, "GetObject"):
            options = {"if_match": f'"{etag}"', "range": (start, end)}
            answer = obstore.get(self._store, key, options=options)
            self._check_etag(key, etag, answer)
            pieces = iter(answer.stream(size))
        while True:
            with self._translate_errors(key, "GetObject"):
                piece = next(pieces, None)
            if piece is None:
                return
            yield memoryview(piece)

    def _check_etag(self, key: str, etag: str, answer: Any) -> None:
        """Raises FileNotFoundError for another etag, because some services ignore If-Match."""
        if _unquote(answer.meta["e_tag"]) != etag:
            raise FileNotFoundError(errno.ESTALE, CHANGED, key)

    # One request: an upload in parts would overwrite an existing object.
    def create(self, key: str, data: bytes, metadata: Mapping[str, str]) -> bool:
        """Put a new object. Returns False if the key exists already.

        The existing object may be from this very call, if the answer to its first try was lost:
        compare it by `head`. After UnavailableError the key may or may not exist: call this again.
        """
        return self._put_unless(self.exists, key, data, metadata, "create")

    def _put_unless(
        self, is_taken: Callable[[str], bool], key: str, data: bytes,
        metadata: Mapping[str, str], mode: str,
    ) -> bool:  # fmt: skip
        """Put an object, and again after a collision. Returns False once its key is taken."""
        from obstore.exceptions import AlreadyExistsError

        for _ in range(COLLISIONS_MAX):
            try:
                self._put(key, data, metadata, mode)
            except AlreadyExistsError:
                if is_taken(key):
                    return False
                time.sleep(COLLISION_SECONDS)  # S3 answers the same if two requests collide (409).
            except UnavailableError:
                # Servers close the connection of a large put that they refuse.
                if is_taken(key):
                    return False
                raise
            else:
                return True
        raise UnavailableError(
            f"{self.place}: other requests collided with each put of {key}. Run this again"
        )

    def exists(self, key: str) -> bool:
        """Whether there is an object with a key."""
        try:
            self.head(key)
        except FileNotFoundError:
            return False
        return True

    def replace(
        self, key: str, data: bytes, metadata: Mapping[str, str], etag: str,
        version: str | None = None,
    ) -> None:  # fmt: skip
        """Replace the object that has this etag, and this version if `head` returned one.

        Raises FileNotFoundError if the key has another object now. After UnavailableError, `head`
        shows whether the put succeeded.
        """
        from obstore.exceptions import AlreadyExistsError

        mode = {"e_tag": f'"{etag}"'} | ({"version": version} if version else {})
        try:
            self._put(key, data, metadata, mode)
        except AlreadyExistsError:  # S3 answers 409 while another request replaces the object.
            raise FileNotFoundError(errno.ESTALE, CHANGED, key) from None

    def overwrite(self, key: str, data: bytes) -> None:
        """Put an object, whether the key exists or not: for a key that only this process puts."""
        self._put_unless(lambda _: False, key, data, {}, "overwrite")

    def _put(self, key: str, data: bytes, metadata: Mapping[str, str], mode: Any) -> None:
        import obstore

        store = self._store if len(data) <= SMALL_BYTES else self._upload_store
        with self._translate_errors(key, "PutObject"):
            obstore.put(
                store, key, data, attributes=dict(metadata), mode=mode, use_multipart=False
            )

    def remove(self, key: str) -> None:
        """Delete an object if it exists."""
        import obstore

        # S3 answers the same if the object does not exist, Google Cloud and Azure report it.
        with suppress(FileNotFoundError), self._translate_errors(key, "DeleteObject"):
            obstore.delete(self._store, key)

    def remove_all(self, keys: Sequence[str]) -> None:
        """Delete objects, in as few requests as the service allows. Some may not exist."""
        import obstore

        try:
            with self._translate_errors(keys[0], "DeleteObject"):
                obstore.delete(self._store, keys)
        except FileNotFoundError:
            for key in keys:
                self.remove(key)

    @contextmanager
    def _translate_errors(self, key: str, permission: str) -> Iterator[None]:
        """Replace obstore's errors, whose texts quote signed requests. Does not replace
        AlreadyExistsError and InvalidPathError.

        `permission`: the one that the requests in the block need.
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
            if permission == "GetObject":
                self.head(key)  # Azure reports this also if the object does not exist.
            raise FileNotFoundError(errno.ESTALE, CHANGED, key) from None
        except FileNotFoundError as error:
            if error.errno == errno.ESTALE:
                raise
            if _error_code(error) in (*_NO_BUCKET, *_BAD_CREDENTIALS):
                code = _error_code(error)
                raise self._service_error(error, code, _NOT_FOUND, permission) from None
            raise FileNotFoundError(errno.ENOENT, "it does not exist", key) from None
        except (BaseError, OSError) as error:
            code, status = _error_code(error), _error_status(error)
            is_denied = isinstance(error, PermissionDeniedError)
            if is_denied and code not in (*_EXPIRED, *_BAD_CREDENTIALS):
                reason = f"{self._identity} needs the permission {permission} ({code or status})"
                if code in _ARCHIVED:
                    remedy = "restore it, or copy it to another storage class"
                    reason = f"it is archived ({code}); {remedy}"
                raise PermissionError(errno.EACCES, reason, key) from None
            if isinstance(error, UnauthenticatedError):
                status = _UNAUTHORIZED
            raise self._service_error(error, code, status, permission) from None

    def translate_error(self, error: Exception) -> SemelError | None:
        """Translate an error of another client, such as delta-rs, that uses obstore's library.

        Returns None for an error without an HTTP status, or if only an object does not exist.
        """
        code, status = _error_code(error), _error_status(error)
        if not status or (status == _NOT_FOUND and code not in _NO_BUCKET):
            return None
        return self._service_error(error, code, status, "GetObject and PutObject")

    def _service_error(
        self, error: Exception, code: str, status: int, permission: str
    ) -> SemelError:
        reason = code or (f"status {status}" if status else type(error).__name__)
        if "169.254.169.254" in str(error) or "metadata.google.internal" in str(error):
            return TerminalError(
                f"there are no credentials for {self.place} here. Name a connection, or give the "
                "machine a role or credentials in its environment"
            )
        if code in _NO_BUCKET:
            return TerminalError(
                f"{self.place}: its bucket or container does not exist ({code}). Create it, or "
                "correct the URL"
            )
        if code in _EXPIRED:
            return TerminalError(
                f"the session of {self._identity} has expired ({code}). Replace its token, or give "
                "the machine a role, which renews itself"
            )
        if code in _BAD_CREDENTIALS or status == _UNAUTHORIZED:
            return TerminalError(
                f"{self.place} refuses {self._identity} ({reason}). Correct the key and secret"
            )
        if code in _WRONG_REGION or "incorrectly configured region" in str(error):
            return TerminalError(
                f"{self.place} is in another region ({reason}). Correct region_name of "
                f"{self._identity}"
            )
        if status == _DENIED:
            return TerminalError(
                f"{self._identity} may not use {self.place} ({reason}). Allow {permission} on it"
            )
        is_failing = status >= _SERVER_ERROR and status != _NOT_IMPLEMENTED
        if is_failing or status == _TOO_MANY or not status:
            return UnavailableError(
                f"{self.place} does not answer, or fails ({reason}). The request used "
                f"{self._identity}. Check that the service runs and that this machine can connect "
                "to it"
            )
        return TerminalError(
            f"{self.place} refuses a request ({reason}). Check the URL, and that {self._identity} "
            f"may use {permission}"
        )


def _described(answer: Any) -> tuple[Object, dict[str, str]]:
    """The object of an answer, and its metadata."""
    return _listed_object(answer.meta), {k: str(v) for k, v in answer.attributes.items()}


def _listed_object(meta: Mapping[str, Any]) -> Object:
    return Object(
        key=meta["path"],
        size=meta["size"],
        etag=_unquote(meta["e_tag"]),
        modified=meta["last_modified"],
        version=meta["version"],
    )


def _unquote(etag: str | None) -> str:
    """An etag without quotes. Azure quotes it in the answer to a head, but not in a listing."""
    return (etag or "").strip('"')


def _error_code(error: Exception) -> str:
    """The service's own code of an error. Returns "" if the error does not have one."""
    match = re.search(r"<Code>(\w+)</Code>", str(error))
    return match[1] if match else ""


def _error_status(error: Exception) -> int:
    """The HTTP status of the answer. Returns 0 if there was no answer."""
    match = re.search(r"non-2xx status code: (\d{3})", str(error))
    return int(match[1]) if match else 0
