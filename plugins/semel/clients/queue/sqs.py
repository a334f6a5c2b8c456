"""Amazon SQS, by boto3: which credentials are taken, what is asked, and what its errors mean.

The credentials are those of an Airflow connection of type aws, as Airflow's own provider reads it,
or the machine's own. boto3 renews what expires. They are looked up in the process that uses them.
Known limitation: tests have seen it renew what a program gives (credential_process); STS, SSO and
the metadata server of EC2 were never met.
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
    installed,
    parsed,
    require_kind,
    text_of,
    usable,
)
from semel.clients.queue import About, DeadLetters, Pulled, Queue
from semel.errors import SemelError, TerminalError, UnavailableError

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.exceptions import ClientError

CONNECT_SECONDS, ANSWER_SECONDS, TRIES = 2, 5, 2
"""Bounds of one call, which is tried twice: a service that is away is told of in ten seconds."""

WAIT_SECONDS = 3
"""How long the service may hold one call open until a message comes: less than ANSWER_SECONDS."""

SHORT_SECONDS = 0.25
"""A shorter wait is none."""

BATCH = 10
"""Messages of one call, the service's own limit."""

THREADS = 8
"""Calls at once. Each takes some 10 ms on the way to AWS."""

ALONE = 50
"""Pulls by one call after more at once had nothing, as of a FIFO queue with one message group."""

_EXAMPLE = (
    '"conn_type": "aws", "login": "access key id", "password": "secret access key", '
    '"extra": {"region_name": "eu-west-1"}'
)
_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_ELSEWHERE = ("role_arn", "assume_role_method", "assume_role_kwargs")
"""A role is the business of a profile: boto3 takes it, and renews what expires."""

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
    """What boto3 is told: `session` has secrets. `who`: whose credentials they are."""

    who: str
    session: Mapping[str, str] = field(default_factory=dict, repr=False)
    endpoint: str | None = field(default=None, repr=False)


def opened(
    *,
    connection: str | None,
    endpoint: str | None,
    queue: str,
    find: Callable[[str], str | None] = settings.connection,
) -> "Sqs":
    """A queue, which is not asked anything yet.

    `queue`: its URL. `endpoint`: the URL of a service that is not AWS, when the queue's names it
    otherwise. `connection`: None: the machine's own credentials.
    TerminalError: boto3 is not installed, or refuses what the connection or the machine declares.
    """
    with installed("SQS", "sqs"):
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
            f"boto3 has no use for {access.who} ({type(error).__name__}); correct it"
        ) from None
    return Sqs(client, queue, access.who)


def _access(connection: str | None, find: Callable[[str], str | None]) -> _Access:
    if connection is None:
        return _Access(who="this machine's own AWS credentials")
    text = text_of(connection, find, _EXAMPLE)
    with usable(connection, "SQS"):
        found = parsed(text)
        require_kind(found, "aws")
        return _Access(
            who=f"the connection {connection!r}", session=_session(found), endpoint=_endpoint(found)
        )


def _session(found: Fields) -> dict[str, str]:
    if named := [name for name in _ELSEWHERE if found.extra.get(name)]:
        raise ConnectionSettingsError(
            f"its extra has {named[0]}; let a profile of ~/.aws/config assume the role, and name "
            "it as profile_name"
        )
    login, password = found.login or None, found.password or None
    wanted = {
        **{key: found.extra.get(key) for key in (*_KEYS, "region_name", "profile_name")},
        **({_KEYS[0]: login} if login else {}),
        **({_KEYS[1]: password} if password else {}),
    }
    if (wanted[_KEYS[0]] is None) != (wanted[_KEYS[1]] is None):
        raise ConnectionSettingsError(
            "it has one of access key id (login) and secret access key (password)"
        )
    for key, value in wanted.items():
        if value is not None and not isinstance(value, str):
            raise ConnectionSettingsError(f"{key} is no text")
    return {key: value for key, value in wanted.items() if value}


def _endpoint(found: Fields) -> str | None:
    ours = (found.extra.get("service_config") or {}).get("sqs") or {}
    return ours.get("endpoint_url") or found.extra.get("endpoint_url")


class Sqs(Queue):
    """A queue of SQS. A handle is the receipt of one delivery.

    Calls of one pull or acknowledgement are made by several threads.
    """

    rights = _RIGHTS

    def __init__(self, client: "BaseClient", url: str, who: str) -> None:
        self._client, self._url, self._who = client, url, who
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sqs")
        self._deadline_seconds: int | None = None
        self._alone = 0

    def _attributes(self, url: str) -> dict[str, str]:
        with self._asked("sqs:GetQueueAttributes"):
            found = self._client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        return found["Attributes"]

    def about(self) -> About:
        """Ask for its attributes. The address is its ARN: ids are unique in all of SQS."""
        found = self._attributes(self._url)
        self._deadline_seconds = int(found["VisibilityTimeout"])
        if not self._deadline_seconds:
            raise TerminalError(
                f"the queue {self._url} has a VisibilityTimeout of 0, so it delivers a message "
                "again before that is stored; let it be 30 seconds or more"
            )
        kept = found.get("MessageRetentionPeriod")
        policy = json.loads(found.get("RedrivePolicy") or "{}")
        return About(
            address=found["QueueArn"],
            deadline_seconds=self._deadline_seconds,
            retention=timedelta(seconds=int(kept)) if kept else None,
            waiting=int(found["ApproximateNumberOfMessages"]),
            dead_letters=DeadLetters(
                address=policy["deadLetterTargetArn"],
                deliveries=int(policy["maxReceiveCount"]),
                back="aws sqs start-message-move-task --source-arn "
                + policy["deadLetterTargetArn"],
            ) if policy else None,
            ordered=found.get("FifoQueue") == "true",
        )

    def dead(self) -> int | None:
        """As its dead-letter queue says, where that may be asked."""
        if (letters := self.about().dead_letters) is None:
            return None
        *_, account, name = letters.address.split(":")
        with suppress(SemelError), self._asked("sqs:GetQueueUrl"):
            url = self._client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)
            return int(self._attributes(url["QueueUrl"])["ApproximateNumberOfMessages"])
        return None

    def pull(self, messages: int, size: int, seconds: float) -> Pulled:
        """Receive once, then by all threads when there were as many as one call can have."""
        deadline, found = time.monotonic() + seconds, []
        while not found:
            left = max(0.0, deadline - time.monotonic())
            # Whole seconds; who has messages in hand waits for no second.
            wait = 0 if left < SHORT_SECONDS else min(math.ceil(left), WAIT_SECONDS)
            found = self._received(min(messages, BATCH), wait)
            if left <= WAIT_SECONDS:
                break
        full = len(found) == BATCH
        self._alone = max(0, self._alone - full)
        if full and not self._alone:
            largest = max(len(each["Body"]) for each in found)
            calls = min(THREADS, (messages - BATCH) // BATCH, size // (BATCH * largest + 1) - 1)
            asked = [self._threads.submit(self._received, BATCH, 0) for _ in range(calls)]
            for each in asked:
                with suppress(SemelError):  # The next pull meets it, and has nothing to lose.
                    found += each.result()
            if calls > 0 and len(found) == BATCH:
                self._alone = ALONE
        return _columns(found)

    def _received(self, most: int, seconds: int) -> list[dict[str, Any]]:
        with self._asked("sqs:ReceiveMessage"):
            return self._client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=most,
                WaitTimeSeconds=seconds,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            ).get("Messages", [])

    def acknowledge(self, handles: Sequence[str]) -> int:
        """Delete them, ten a call."""

        def delete(some: Sequence[str]) -> int:
            entries = [{"Id": str(n), "ReceiptHandle": one} for n, one in enumerate(some)]
            with self._asked("sqs:DeleteMessage"):
                done = self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)
            return len(done.get("Failed", ()))

        return sum(self._threads.map(delete, _parts(handles)))

    def extend(self, handles: Sequence[str]) -> None:
        """Hide them for as long as the queue's VisibilityTimeout."""
        self._hide(handles, self._deadline_seconds or int(self.about().deadline_seconds))

    def hand_back(self, handles: Sequence[str]) -> None:
        """Let them be visible."""
        with suppress(SemelError):
            self._hide(handles, 0)

    def _hide(self, handles: Sequence[str], seconds: int) -> None:
        def hide(some: Sequence[str]) -> None:
            entries = [
                {"Id": str(n), "ReceiptHandle": one, "VisibilityTimeout": seconds}
                for n, one in enumerate(some)
            ]
            with self._asked("sqs:ChangeMessageVisibility"):
                self._client.change_message_visibility_batch(QueueUrl=self._url, Entries=entries)

        for _ in self._threads.map(hide, _parts(handles)):
            pass

    def close(self) -> None:
        """End its threads and connections."""
        self._threads.shutdown(cancel_futures=True)
        self._client.close()

    @contextmanager
    def _asked(self, right: str) -> Iterator[None]:
        """What boto3 raises within the block, in semel's words. `right`: what the call needs."""
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
            raise self._refused(error, right) from None
        except (ConnectionError, HTTPClientError, ResponseParserError) as error:
            raise UnavailableError(
                f"SQS does not answer at {self._client.meta.endpoint_url} for the queue {self._url}, by "
                f"{self._who} ({type(error).__name__}); see that it runs and is reached from here"
            ) from None
        except CredentialRetrievalError as error:
            # Its words are those of a program or a service that has to do with secrets.
            raise UnavailableError(
                f"{self._who}: the provider {error.kwargs.get('provider')!r} gives no "
                "credentials at the moment; run it by hand to see why"
            ) from None
        except BotoCoreError as error:
            raise TerminalError(
                f"{self._who} cannot be used for the queue {self._url} "
                f"({type(error).__name__}); name a connection, or let boto3 find credentials here, "
                "as by AWS_PROFILE, AWS_ACCESS_KEY_ID or the machine's role"
            ) from None

    def _refused(self, error: "ClientError", right: str) -> SemelError:
        said = error.response["Error"]
        code = str(said.get("Code", "")).rpartition("#")[2]
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code.endswith(("QueueDoesNotExist", "NonExistentQueue")):
            return TerminalError(
                f"there is no queue {self._url}, or it was deleted; make it, or correct "
                "source.queue"
            )
        if code.startswith("Expired"):
            return TerminalError(
                f"the session of {self._who} has expired ({code}); put a new one there, or name "
                "credentials that boto3 renews, as a profile or the machine's role"
            )
        if code in _REFUSED:
            return TerminalError(
                f"AWS does not take {self._who} ({code}); correct access key id, secret access key "
                "and session token"
            )
        if "AccessDenied" in code:
            needed = "kms:Decrypt on its key" if "kms" in code.lower() else f"{right} on it"
            return TerminalError(
                f"{self._who} may not use the queue {self._url} ({code}); allow {needed}; "
                f"in all semel needs {_RIGHTS}"
            )
        if code in _BUSY or status >= 500 or status == 429:
            return UnavailableError(
                f"SQS is too busy for the queue {self._url}, by {self._who}, or fails ({code}); try "
                "later"
            )
        return TerminalError(
            f"SQS refuses a call for the queue {self._url} ({code}), which needs {right}"
        )


def _parts(handles: Sequence[str]) -> list[Sequence[str]]:
    return [handles[at : at + BATCH] for at in range(0, len(handles), BATCH)]


def _columns(found: Sequence[Mapping[str, Any]]) -> Pulled:
    told = [each.get("Attributes", {}) for each in found]
    return Pulled(
        ids=[each["MessageId"] for each in found],
        published=[int(t["SentTimestamp"]) * 1000 if "SentTimestamp" in t else None for t in told],
        attributes=[
            [(key, _bytes(value)) for key, value in each.get("MessageAttributes", {}).items()]
            for each in found
        ],
        ordering_keys=[t.get("MessageGroupId") for t in told],
        attempts=[int(t.get("ApproximateReceiveCount", 0)) for t in told],
        values=[each["Body"].encode() for each in found],
        handles=[each["ReceiptHandle"] for each in found],
    )


def _bytes(value: Mapping[str, Any]) -> bytes:
    """A String and a Number as text; a Binary as it is."""
    return value["BinaryValue"] if "BinaryValue" in value else value["StringValue"].encode()
