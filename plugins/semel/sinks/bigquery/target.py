"""The address of a BigQuery table, its client, and the translation of the client's errors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import requests
from google.api_core import exceptions as api
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError, TransportError
from google.cloud import bigquery

from semel import settings
from semel.clients import gcp
from semel.errors import RetryableError, SemelError, TerminalError, UnavailableError, first_line

ANSWER_SECONDS = 8
"""How long the client repeats a failing read, so that errors appear within ten seconds."""

REQUEST_SECONDS = 30
"""How long one request may wait for the next byte."""

ERRORS = (api.GoogleAPIError, GoogleAuthError, requests.RequestException)
"""The client's exceptions."""

_SCOPE = "https://www.googleapis.com/auth/bigquery"
_AWAY = (
    api.ServerError, api.TooManyRequests, api.RetryError, requests.RequestException, TransportError
)  # fmt: skip
_BUSY = ("quotaExceeded", "rateLimitExceeded")


class TableMissingError(TerminalError):
    """The table does not exist in this location."""


@dataclass(frozen=True, kw_only=True)
class BigQueryTarget:
    """A table, `dataset.name`. Load jobs and queries run in its project and location.

    `connection`: None for the application default credentials.
    """

    connection: str | None
    project: str
    location: str
    table: str

    @property
    def address(self) -> str:
        """Canonical, without secrets: bigquery://project/dataset.table."""
        return f"bigquery://{self.project}/{self.table}"

    @property
    def name(self) -> str:
        return f"{self.project}.{self.table}"

    @property
    def read_timeouts(self) -> dict[str, Any]:
        """The keywords of a call that only reads: its retries and its timeout."""
        retry = bigquery.DEFAULT_RETRY.with_timeout(ANSWER_SECONDS)
        return {"retry": retry, "timeout": REQUEST_SECONDS}

    def client(self) -> bigquery.Client:
        """Raises TerminalError if there are no credentials. The emulator
        (BIGQUERY_EMULATOR_HOST) needs none.
        """
        credentials = gcp.credentials(self.connection, "BigQuery", _SCOPE, settings.connection)
        if credentials is None and os.environ.get("BIGQUERY_EMULATOR_HOST"):
            credentials = AnonymousCredentials()
        with gcp.require_credentials():
            return bigquery.Client(self.project, credentials, location=self.location)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise the client's errors within the block as semel's errors."""
        try:
            yield
        except ERRORS as error:
            raise self.translate_error(error) from error

    def translate_error(self, error: Exception) -> SemelError:
        """The error of semel for an error of the client."""
        why, who = first_line(error), gcp.identity_text(self.connection)
        if isinstance(error, _AWAY):
            return UnavailableError(
                f"{self.address}: BigQuery does not answer ({why}), by {who}; try later"
            )
        if isinstance(error, GoogleAuthError):  # Its text may contain a key.
            return TerminalError(
                f"{self.address}: Google rejects {who} ({type(error).__name__}); correct it"
            )
        if reason_of(error) in _BUSY:
            return RetryableError(f"{self.address}: a BigQuery quota is used up ({why}); try later")
        if isinstance(error, api.NotFound):
            return TableMissingError(
                f"{self.address} does not exist ({why}). Create it as docs/bigquery.md describes, "
                "or restore it"
            )
        if isinstance(error, api.Forbidden):
            return TerminalError(
                f"{self.address}: {who} lacks a right ({why}); give it roles/bigquery.dataEditor "
                f"on the dataset and roles/bigquery.jobUser on the project {self.project}"
            )
        return TerminalError(f"{self.address}: BigQuery rejects the request ({why})")


def reason_of(error: Exception) -> str | None:
    """BigQuery's reason code of an error, such as `quotaExceeded`. Returns None without one."""
    errors = getattr(error, "errors", None)
    return errors[0].get("reason") if errors else None
