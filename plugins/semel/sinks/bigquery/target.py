"""Which table of BigQuery rows go to, how it is asked, and what its errors mean."""

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
"""How long a question that fails is asked again: errors come within ten seconds."""

REQUEST_SECONDS = 30
"""How long one request may wait for the next byte."""

ERRORS = (api.GoogleAPIError, GoogleAuthError, requests.RequestException)
"""What the client raises."""

_SCOPE = "https://www.googleapis.com/auth/bigquery"
_AWAY = (
    api.ServerError, api.TooManyRequests, api.RetryError, requests.RequestException, TransportError
)  # fmt: skip
_BUSY = ("quotaExceeded", "rateLimitExceeded")


class TableMissingError(TerminalError):
    """There is no such table, or not in this location."""


@dataclass(frozen=True, kw_only=True)
class BigQueryTarget:
    """A table, `dataset.name`, in whose project and location load jobs and queries run.

    `connection`: None: the application default credentials.
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
    def patience(self) -> dict[str, Any]:
        """How long a call that only asks may take, as its keywords."""
        retry = bigquery.DEFAULT_RETRY.with_timeout(ANSWER_SECONDS)
        return {"retry": retry, "timeout": REQUEST_SECONDS}

    def client(self) -> bigquery.Client:
        """TerminalError: there are no credentials. With BIGQUERY_EMULATOR_HOST none are needed."""
        credentials = gcp.credentials(self.connection, "BigQuery", _SCOPE, settings.connection)
        if credentials is None and os.environ.get("BIGQUERY_EMULATOR_HOST"):
            credentials = AnonymousCredentials()
        with gcp.needed():
            return bigquery.Client(self.project, credentials, location=self.location)

    @contextmanager
    def answers(self) -> Iterator[None]:
        """Errors of the client within the block, as errors of semel."""
        try:
            yield
        except ERRORS as error:
            raise self.told(error) from error

    def told(self, error: Exception) -> SemelError:
        """What an error of the client means."""
        why, who = first_line(error), gcp.who(self.connection)
        if isinstance(error, _AWAY):
            return UnavailableError(
                f"{self.address}: BigQuery does not answer ({why}), by {who}; try later"
            )
        if isinstance(error, GoogleAuthError):  # Its words may quote a key.
            return TerminalError(
                f"{self.address}: Google does not take {who} ({type(error).__name__}); correct it"
            )
        if reason_of(error) in _BUSY:
            return RetryableError(f"{self.address}: BigQuery takes no more now ({why}); try later")
        if isinstance(error, api.NotFound):
            return TableMissingError(
                f"{self.address} is not there ({why}); make it, docs/bigquery.md says how, or "
                "restore it"
            )
        if isinstance(error, api.Forbidden):
            return TerminalError(
                f"{self.address}: {who} lacks a right ({why}); give it roles/bigquery.dataEditor "
                f"on the dataset and roles/bigquery.jobUser on the project {self.project}"
            )
        return TerminalError(f"{self.address}: BigQuery refuses to be asked ({why})")


def reason_of(error: Exception) -> str | None:
    """The service's own word for an error."""
    errors = getattr(error, "errors", None)
    return errors[0].get("reason") if errors else None
