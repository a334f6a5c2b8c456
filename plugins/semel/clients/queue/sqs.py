"""Receive from Amazon SQS with boto3, and translate its errors.

The credentials come from an Airflow connection of type aws, read as Airflow's own provider reads
it, or from the machine. Each process looks them up itself; boto3 renews those that expire. Known
limitation: tests renew credentials of a program (credential_process), but have never used STS, SSO
or the metadata server of EC2.
"""

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from semel import settings
from semel.clients.connection import (
    ConnectionSettingsError,
    Fields,
    connection_text,
    parse_connection,
    require_kind,
    require_package,
    translate_settings_errors,
)
from semel.clients.queue import DeadLetterQueue, PulledMessages, Queue, QueueInfo
from semel.errors import SemelError, TerminalError, UnavailableError

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.exceptions import ClientError

CONNECT_SECONDS, ANSWER_SECONDS, TRIES = 2, 5, 2
"""Bounds of one call and its number of tries: semel reports an absent service in ten seconds."""

WAIT_SECONDS = 3
"""How long the service may keep one call open until a message comes: less than ANSWER_SECONDS."""

SHORT_SECONDS = 0.25
"""semel does not wait if less time than this is left."""

BATCH = 10
"""Most messages of one call, the service's own limit."""

THREADS = 8
"""Calls at once. Each takes about 10 ms on the way to AWS."""

SINGLE_PULLS = 50
"""So many pulls use one call after parallel calls came back empty, as they do for a FIFO queue with
one message group."""

_EXAMPLE = (
    '"conn_type": "aws", "login": "access key id", "password": "secret access key", '
    '"extra": {"region_name": "eu-west-1"}'
)
_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_UNSUPPORTED = ("role_arn", "assume_role_method", "assume_role_kwargs")
"""boto3 assumes a role by a profile, and renews its credentials."""

_RIGHTS = (
    "sqs:GetQueueAttributes, sqs:ReceiveMessage, sqs:DeleteMessage and sqs:ChangeMessageVisibility"
)
_REFUSED = (
    "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch",
    "InvalidAccessKeyId", "InvalidSecurity", "IncompleteSignature", "MissingAuthenticationToken",
    "AuthFailure", "NotAuthorized",
)  # fmt: skip
_BUSY = (
    "OverLimit", "Throttling", "ThrottlingException", "RequestThrottled", "RequestLimitExceeded",
    "TooManyRequestsException", "SlowDown", "ServiceUnavailable", "InternalError",
    "InternalFailure", "RequestTimeout", "KmsThrottled", "KMS.ThrottlingException",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Access:
    """Arguments for boto3. `session` has secrets. `identity`: the credentials in words."""

    identity: str
    session: Mapping[str, str] = field(default_factory=dict, repr=False)
    endpoint: str | None = field(default=None, repr=False)


def open_queue(
    *,
    connection: str | None,
    endpoint: str | None,
    queue: str,
    find: Callable[[str], str | None] = settings.connection,
) -> "Sqs":
    """A queue, without a request to it.

    `queue`: its URL. `endpoint`: the URL of a service that is not AWS, if it differs from the
    queue's. `connection`: None for the machine's own credentials.
    Raises TerminalError if boto3 is not installed, or refuses the credentials or configuration.
    """
    with require_package("SQS", "sqs"):
        import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    access = _access(connection, find)
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=ANSWER_SECONDS,
        retries={"mode": "standard", "total_max_attempts": TRIES},
        max_pool_connections=THREADS,
    )
    url = urlsplit(queue)
    aws = re.search(r"(?:^|\.)(?:sqs\.)?([a-z]{2}-[a-z-]+-\d)\..*amazonaws\.com", url.netloc)
    origin = None if "amazonaws.com" in url.netloc else f"{url.scheme}://{url.netloc}"
    try:
        session = boto3.session.Session(**access.session)
        client = session.client(
            "sqs",
            region_name=aws[1] if aws else session.region_name or "us-east-1",
            endpoint_url=endpoint or access.endpoint or origin,
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        raise TerminalError(
            f"boto3 does not accept {access.identity} ({type(error).__name__}). Correct it"
        ) from None
    return Sqs(client, queue, access.identity)


def _access(connection: str | None, find: Callable[[str], str | None]) -> _Access:
    if connection is None:
        return _Access(identity="this machine's own AWS credentials")
    text = connection_text(connection, find, _EXAMPLE)
    with translate_settings_errors(connection, "SQS"):
        fields = parse_connection(text)
        require_kind(fields, "aws")
        return _Access(
            identity=f"the connection {connection!r}",
            session=_session(fields),
            endpoint=_endpoint(fields),
        )


def _session(fields: Fields) -> dict[str, str]:
    if unsupported := [name for name in _UNSUPPORTED if fields.extra.get(name)]:
        raise ConnectionSettingsError(
            f"its extra has {unsupported[0]}, which semel does not support; assume the role in a "
            "profile of ~/.aws/config, and set profile_name"
        )
    login, password = fields.login or None, fields.password or None
    config = {
        **{key: fields.extra.get(key) for key in (*_KEYS, "region_name", "profile_name")},
        **({_KEYS[0]: login} if login else {}),
        **({_KEYS[1]: password} if password else {}),
    }
    if (config[_KEYS[0]] is None) != (config[_KEYS[1]] is None):
        raise ConnectionSettingsError(
            "it has only one of access key id (login) and secret access key (password)"
        )
    for key, value in config.items():
        if value is not None and not isinstance(value, str):
            raise ConnectionSettingsError(f"{key} is not text")
    return {key: value for key, value in config.items() if value}


def _endpoint(fields: Fields) -> str | None:
    for_sqs = (fields.extra.get("service_config") or {}).get("sqs") or {}
    return for_sqs.get("endpoint_url") or fields.extra.get("endpoint_url")


class Sqs(Queue):
    """A queue of SQS. A handle is the receipt of one delivery.

    One pull or acknowledgement makes its calls by several threads.
    """

    rights = _RIGHTS

    def __init__(self, client: "BaseClient", url: str, identity: str) -> None:
        self._client, self._url, self._identity = client, url, identity
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sqs")
        self._deadline_seconds: int | None = None
        self._single_pulls = 0

    def _attributes(self, url: str) -> dict[str, str]:
        with self._translate_errors("sqs:GetQueueAttributes"):
            answer = self._client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        return answer["Attributes"]

    def describe(self) -> QueueInfo:
        """Query its attributes. The address is its ARN: ids are unique in all of SQS."""
        attributes = self._attributes(self._url)
        self._deadline_seconds = int(attributes["VisibilityTimeout"])
        if not self._deadline_seconds:
            raise TerminalError(
                f"the queue {self._url} has a VisibilityTimeout of 0, so it delivers a message "
                "again before semel has stored it. Set it to 30 seconds or more"
            )
        retention = attributes.get("MessageRetentionPeriod")
        policy = json.loads(attributes.get("RedrivePolicy") or "{}")
        return QueueInfo(
            address=attributes["QueueArn"],
            deadline_seconds=self._deadline_seconds,
            retention=timedelta(seconds=int(retention)) if retention else None,
            waiting=int(attributes["ApproximateNumberOfMessages"]),
            dead_letters=DeadLetterQueue(
                address=policy["deadLetterTargetArn"],
                deliveries=int(policy["maxReceiveCount"]),
                restore_command="aws sqs start-message-move-task --source-arn "
                + policy["deadLetterTargetArn"],
            ) if policy else None,
            ordered=attributes.get("FifoQueue") == "true",
        )

    def count_dead_letters(self) -> int | None:
        """The messages of its dead-letter queue, if the user has the right to read them."""
        if (letters := self.describe().dead_letters) is None:
            return None
        *_, account, name = letters.address.split(":")
        with suppress(SemelError), self._translate_errors("sqs:GetQueueUrl"):
            url = self._client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)
            return int(self._attributes(url["QueueUrl"])["ApproximateNumberOfMessages"])
        return None

    def pull(self, messages: int, size: int, seconds: float) -> PulledMessages:
        """Receive by one call; if that returns a full batch, then by all threads."""
        deadline, received = time.monotonic() + seconds, []
        while not received:
            seconds_left = max(0.0, deadline - time.monotonic())
            # SQS takes whole seconds; a receiver with messages in hand must not wait a second.
            wait = 0 if seconds_left < SHORT_SECONDS else min(math.ceil(seconds_left), WAIT_SECONDS)
            received = self._receive(min(messages, BATCH), wait)
            if seconds_left <= WAIT_SECONDS:
                break
        is_full = len(received) == BATCH
        self._single_pulls = max(0, self._single_pulls - is_full)
        if is_full and not self._single_pulls:
            largest = max(len(each["Body"]) for each in received)
            calls = min(THREADS, (messages - BATCH) // BATCH, size // (BATCH * largest + 1) - 1)
            for future in [self._threads.submit(self._receive, BATCH, 0) for _ in range(calls)]:
                with suppress(SemelError):  # The next pull raises it, without messages in hand.
                    received += future.result()
            if calls > 0 and len(received) == BATCH:
                self._single_pulls = SINGLE_PULLS
        return _message_columns(received)

    def _receive(self, limit: int, seconds: int) -> list[dict[str, Any]]:
        with self._translate_errors("sqs:ReceiveMessage"):
            return self._client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=limit,
                WaitTimeSeconds=seconds,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            ).get("Messages", [])

    def acknowledge(self, handles: Sequence[str]) -> int:
        """Delete the messages, ten per call."""

        def delete(part: Sequence[str]) -> int:
            entries = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(part)]
            with self._translate_errors("sqs:DeleteMessage"):
                answer = self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)
            return len(answer.get("Failed", ()))

        return sum(self._threads.map(delete, _parts(handles)))

    def extend(self, handles: Sequence[str]) -> None:
        """Hide the messages for the queue's VisibilityTimeout."""
        self._hide(handles, self._deadline_seconds or int(self.describe().deadline_seconds))

    def hand_back(self, handles: Sequence[str]) -> None:
        """Make the messages visible."""
        with suppress(SemelError):
            self._hide(handles, 0)

    def _hide(self, handles: Sequence[str], seconds: int) -> None:
        def hide(part: Sequence[str]) -> None:
            entries = [
                {"Id": str(n), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
                for n, handle in enumerate(part)
            ]
            with self._translate_errors("sqs:ChangeMessageVisibility"):
                self._client.change_message_visibility_batch(QueueUrl=self._url, Entries=entries)

        for _ in self._threads.map(hide, _parts(handles)):
            pass

    def close(self) -> None:
        """Stop its threads and close its connections."""
        self._threads.shutdown(cancel_futures=True)
        self._client.close()

    @contextmanager
    def _translate_errors(self, right: str) -> Iterator[None]:
        """Turn boto3's errors within the block into SemelErrors. `right`: the call's permission."""
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ConnectionError,
            CredentialRetrievalError,
            HTTPClientError,
        )
        from botocore.parsers import ResponseParserError

        try:
            yield
        except ClientError as error:
            raise self._client_error(error, right) from None
        except (ConnectionError, HTTPClientError, ResponseParserError) as error:
            raise UnavailableError(
                f"the queue {self._url}: SQS does not answer at "
                f"{self._client.meta.endpoint_url}, with {self._identity} "
                f"({type(error).__name__}). Check that this machine can connect to it"
            ) from None
        except CredentialRetrievalError as error:
            # The error quotes a program or a service that handles secrets.
            raise UnavailableError(
                f"{self._identity}: the provider {error.kwargs.get('provider')!r} does not "
                "return credentials at the moment. Run it by hand to see why"
            ) from None
        except BotoCoreError as error:
            raise TerminalError(
                f"semel cannot use the queue {self._url} with {self._identity} "
                f"({type(error).__name__}). Name a connection, or set AWS_PROFILE, "
                "AWS_ACCESS_KEY_ID or the machine's role"
            ) from None

    def _client_error(self, error: "ClientError", right: str) -> SemelError:
        code = str(error.response["Error"].get("Code", "")).rpartition("#")[2]
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code.endswith(("QueueDoesNotExist", "NonExistentQueue")):
            return TerminalError(
                f"there is no queue {self._url}. Create it, or correct source.queue"
            )
        if code.startswith("Expired"):
            return TerminalError(
                f"the session of {self._identity} has expired ({code}). Replace its token, or use "
                "credentials that boto3 renews, such as a profile or the machine's role"
            )
        if code in _REFUSED:
            return TerminalError(
                f"AWS refuses {self._identity} ({code}). Correct access key id, secret access "
                "key and session token"
            )
        if "AccessDenied" in code:
            needed = "kms:Decrypt on its key" if "kms" in code.lower() else f"{right} on it"
            return TerminalError(
                f"{self._identity} may not use the queue {self._url} ({code}). Allow {needed}. "
                f"In all semel needs {_RIGHTS}"
            )
        if code in _BUSY or status >= 500 or status == 429:
            return UnavailableError(
                f"the queue {self._url}: SQS is too busy, or fails ({code}), with "
                f"{self._identity}. Try again later"
            )
        return TerminalError(
            f"SQS refuses a call for the queue {self._url} ({code}), which needs {right}"
        )


def _parts(handles: Sequence[str]) -> list[Sequence[str]]:
    return [handles[at : at + BATCH] for at in range(0, len(handles), BATCH)]


def _message_columns(messages: Sequence[Mapping[str, Any]]) -> PulledMessages:
    facts = [each.get("Attributes", {}) for each in messages]
    return PulledMessages(
        ids=[each["MessageId"] for each in messages],
        published=[int(f["SentTimestamp"]) * 1000 if "SentTimestamp" in f else None for f in facts],
        attributes=[
            [(key, _bytes(value)) for key, value in each.get("MessageAttributes", {}).items()]
            for each in messages
        ],
        ordering_keys=[f.get("MessageGroupId") for f in facts],
        attempts=[int(f.get("ApproximateReceiveCount", 0)) for f in facts],
        values=[each["Body"].encode() for each in messages],
        handles=[each["ReceiptHandle"] for each in messages],
    )


def _bytes(value: Mapping[str, Any]) -> bytes:
    """The bytes of a Binary, or of the text of a String or a Number."""
    return value["BinaryValue"] if "BinaryValue" in value else value["StringValue"].encode()
