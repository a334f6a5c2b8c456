"""Receive from Google Pub/Sub with Google's client, and translate its errors.

The client renews its credentials (`clients/gcp.py`); with PUBSUB_EMULATOR_HOST it does not use any.
Known limitation: no test has used Google's token service or metadata server, or seen the real
service's answers for exactly-once delivery.

semel pulls through the client's channel, as plain protobuf, at 4 us per message. With the client's
own classes a message takes 55 us.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from semel import settings
from semel.clients import gcp
from semel.clients.connection import require_package
from semel.clients.queue import DeadLetterQueue, PulledMessages, Queue, QueueInfo
from semel.errors import SemelError, TerminalError, UnavailableError

if TYPE_CHECKING:
    import grpc
    from google.cloud.pubsub_v1 import SubscriberClient

ANSWER_SECONDS = 8
"""Longest wait for the service's answer, so that an error comes within ten seconds."""

PULL_SECONDS = 10
"""How long the service keeps a pull until a message comes. If a client cancels it earlier, messages
on their way come again only after their deadline."""

MESSAGES_MAX = 1_000
"""Most messages of one pull or acknowledgement: the service accepts requests of 512 KiB."""

AHEAD_BYTES = 4 << 20
"""About how many bytes semel requests before the receiver wants them."""

MESSAGE_BYTES = 64 << 10
"""The assumed size of a message before the first pull."""

_SCOPE = "https://www.googleapis.com/auth/pubsub"
_SERVICE = "/google.pubsub.v1.Subscriber/"
_DELETED = "_deleted-topic_"
_RIGHTS = "pubsub.subscriptions.get and pubsub.subscriptions.consume"


def open_queue(
    *,
    connection: str | None,
    subscription: str,
    find: Callable[[str], str | None] = settings.connection,
) -> "Pubsub":
    """A subscription, without a request to it.

    `subscription`: `projects/P/subscriptions/S`. `connection`: None for the machine's own
    credentials. Raises TerminalError if google-cloud-pubsub is not installed, the connection is
    unusable, or there are no credentials.
    """
    with require_package("Pub/Sub", "pubsub"):
        from google.cloud.pubsub_v1 import SubscriberClient

    identity = gcp.identity_text(connection)
    credentials = gcp.credentials(connection, "Pub/Sub", _SCOPE, find)
    with gcp.require_credentials():
        client = SubscriberClient(credentials=credentials)
    return Pubsub(client, subscription, identity)


class Pubsub(Queue):
    """A subscription. A handle is the ack id of one delivery."""

    rights = _RIGHTS

    def __init__(self, client: "SubscriberClient", subscription: str, identity: str) -> None:
        from google.pubsub_v1 import types

        self._client, self._subscription, self._identity = client, subscription, identity
        self._requests = {
            name: getattr(types, f"{name}Request").pb()
            for name in ("Pull", "Acknowledge", "ModifyAckDeadline")
        }
        answers = {"Pull": types.PullResponse.pb().FromString}
        self._calls = {
            name: client.transport.grpc_channel.unary_unary(
                _SERVICE + name,
                request_serializer=request.SerializeToString,
                response_deserializer=answers.get(name, bytes.__len__),
            )
            for name, request in self._requests.items()
        }
        self._deadline_seconds: int | None = None
        self._pending_pull: grpc.Future | None = None
        self._buffer: list[Any] = []
        self._message_bytes = MESSAGE_BYTES
        self._ahead = True

    def describe(self) -> QueueInfo:
        """Query the subscription. The address is its topic, within which ids are unique."""
        from google.api_core.exceptions import GoogleAPICallError, RetryError
        from google.auth.exceptions import GoogleAuthError

        right = "pubsub.subscriptions.get"
        try:
            subscription = self._client.get_subscription(
                subscription=self._subscription, timeout=ANSWER_SECONDS, retry=None
            )
        except GoogleAPICallError as error:
            code = error.grpc_status_code.name if error.grpc_status_code else "UNKNOWN"
            raise self._status_error(code, error.message, right) from None
        except (RetryError, GoogleAuthError) as error:
            raise self._status_error("UNAVAILABLE", str(error), right) from None
        self._check_pull_subscription(type(subscription).pb(subscription))
        self._deadline_seconds = subscription.ack_deadline_seconds
        topic = (policy := subscription.dead_letter_policy).dead_letter_topic
        # semel hands unused messages back, which counts as a delivery. With ordering, the next
        # messages of a key come only after these are acknowledged.
        self._ahead = not topic and not subscription.enable_message_ordering
        return QueueInfo(
            address=subscription.topic,
            deadline_seconds=subscription.ack_deadline_seconds,
            # An operator's Seek makes a subscription deliver messages that its topic still has.
            retention=max(
                subscription.message_retention_duration or timedelta(),
                subscription.topic_message_retention_duration or timedelta(),
            )
            or None,
            dead_letters=DeadLetterQueue(
                address=topic,
                deliveries=policy.max_delivery_attempts or 5,  # The service's default.
                restore_command=f"gcloud pubsub topics list-subscriptions {topic}",
            ) if topic else None,
            ordered=subscription.enable_message_ordering,
        )

    def _check_pull_subscription(self, subscription: Any) -> None:
        if subscription.topic == _DELETED:
            raise TerminalError(
                f"the topic of {self._subscription} was deleted: semel cannot recognize repeats. "
                "Create a subscription to the new topic, and name it in source.subscription"
            )
        fields = subscription.DESCRIPTOR.fields_by_name
        exports = ("bigquery_config", "cloud_storage_config")
        if subscription.push_config.push_endpoint or any(
            name in fields and subscription.HasField(name) for name in exports
        ):
            raise TerminalError(
                f"{self._subscription} pushes its messages elsewhere. Create a pull subscription, "
                "and name it in source.subscription"
            )

    def pull(self, messages: int, size: int, seconds: float) -> PulledMessages:
        """Wait for the pending request, or a new one; then request the next messages, which arrive
        while the receiver makes these durable.
        """
        import grpc

        received, self._buffer = self._buffer, []
        if not received:
            self._request(messages, size)
            try:
                answer = self._pending_pull.result(seconds)
                self._pending_pull, received = None, list(answer.received_messages)
                if received:
                    self._message_bytes = answer.ByteSize() // len(received)
            except grpc.FutureTimeoutError:
                return PulledMessages()
            except grpc.RpcError as error:
                self._pending_pull = None
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise self._call_error(error) from None
                self.describe()  # Raises if the service is away, and not only without messages.
        received, self._buffer = received[:messages], received[messages:]
        if self._ahead and received and (len(received) < messages or messages >= MESSAGES_MAX):
            # Otherwise the receiver may have all the messages that it wants.
            self._request(MESSAGES_MAX, AHEAD_BYTES)
        return _message_columns(received)

    def _request(self, messages: int, size: int) -> None:
        """Request messages, unless a request is pending or the buffer has some."""
        if self._pending_pull is None and not self._buffer:
            limit = min(messages, MESSAGES_MAX, max(1, size // self._message_bytes))
            self._pending_pull = self._call("Pull", PULL_SECONDS, max_messages=limit)

    def acknowledge(self, handles: Sequence[str]) -> int:
        """Acknowledge. Only a subscription with exactly-once delivery reports late ones."""
        return self._send("Acknowledge", handles)

    def extend(self, handles: Sequence[str]) -> None:
        """Restart the deadline of the messages and of the buffer."""
        import grpc

        seconds = self._deadline_seconds or int(self.describe().deadline_seconds)
        if self._pending_pull is not None and self._pending_pull.done():
            with suppress(grpc.RpcError):  # The next pull raises it.
                self._buffer += self._pending_pull.result().received_messages
                self._pending_pull = None
        ahead = [each.ack_id for each in self._buffer]
        self._send("ModifyAckDeadline", [*handles, *ahead], ack_deadline_seconds=seconds)

    def hand_back(self, handles: Sequence[str]) -> None:
        """Set the deadline of the messages to now."""
        with suppress(SemelError):
            self._send("ModifyAckDeadline", handles, ack_deadline_seconds=0)

    def close(self) -> None:
        """Hand unused messages back, and close the connection."""
        import grpc

        if self._pending_pull is not None:
            self._pending_pull.cancel()
            with suppress(grpc.RpcError, grpc.FutureCancelledError, grpc.FutureTimeoutError):
                self._buffer += self._pending_pull.result(0).received_messages
        self.hand_back([each.ack_id for each in self._buffer])
        self._client.close()

    def _call(self, name: str, seconds: float, **fields: Any) -> "grpc.Future":
        request = self._requests[name](subscription=self._subscription, **fields)
        return self._calls[name].future(
            request,
            timeout=seconds,
            metadata=[("x-goog-request-params", f"subscription={self._subscription}")],
        )

    def _send(self, name: str, handles: Sequence[str], **fields: Any) -> int:
        """Call the service for all handles, in parallel. Returns how many it refused."""
        import grpc

        calls = [
            (part, self._call(name, ANSWER_SECONDS, ack_ids=part, **fields))
            for part in (
                handles[at : at + MESSAGES_MAX] for at in range(0, len(handles), MESSAGES_MAX)
            )
        ]
        refused = 0
        for part, future in calls:
            try:
                future.result()
            except grpc.RpcError as error:
                # With exactly-once delivery the whole call fails if one of its ids is late.
                if error.code().name not in ("FAILED_PRECONDITION", "INVALID_ARGUMENT"):
                    raise self._call_error(error) from None
                refused += _refused_ids(error) or len(part)
        return refused

    def _call_error(self, error: "grpc.RpcError") -> SemelError:
        right = "pubsub.subscriptions.consume"
        return self._status_error(error.code().name, error.details(), right)

    def _status_error(self, code: str, details: str | None, right: str) -> SemelError:
        """Translate a status of gRPC. `right`: the call's permission."""
        details = details or ""
        if "metadata from plugin failed" in details or code == "UNAUTHENTICATED":
            why = re.search(r"\b(invalid_[a-z]+|unauthorized_client|access_denied)\b", details)
            if why or code == "UNAUTHENTICATED":
                return TerminalError(
                    f"Google refuses {self._identity} ({why[0] if why else code}). Replace the key"
                )
            return UnavailableError(
                f"Google's token service does not issue a token for {self._identity} ({code}). "
                "Check that this machine can connect to it"
            )
        if code == "NOT_FOUND":
            return TerminalError(
                f"there is no subscription {self._subscription}. Create it, or correct "
                "source.subscription"
            )
        if code == "PERMISSION_DENIED":
            return TerminalError(
                f"{self._identity} may not use {self._subscription}, or the Pub/Sub API of its "
                f"project is disabled. Allow {right}. In all semel needs {_RIGHTS} "
                "(roles/pubsub.subscriber and roles/pubsub.viewer)"
            )
        if code in ("FAILED_PRECONDITION", "INVALID_ARGUMENT", "UNIMPLEMENTED"):
            return TerminalError(
                f"Pub/Sub refuses a call for {self._subscription} ({code}), which needs {right}"
            )
        return UnavailableError(
            f"{self._subscription}: Pub/Sub does not answer at {self._client.api_endpoint}, with "
            f"{self._identity} ({code}). Check that this machine can connect to it"
        )


def _refused_ids(error: "grpc.RpcError") -> int:
    """How many ids an answer lists as not acknowledged."""
    from google.rpc.error_details_pb2 import ErrorInfo
    from grpc_status import rpc_status

    status, info = rpc_status.from_call(error), ErrorInfo()
    if status is None:
        return 0
    return sum(len(info.metadata) for each in status.details if each.Unpack(info))


def _message_columns(received: Sequence[Any]) -> PulledMessages:
    messages = [each.message for each in received]
    times = [each.publish_time for each in messages]
    numbers = [each.message_id for each in messages]
    ids = [f"{i}-{t.seconds}{t.nanos:09}" for i, t in zip(numbers, times, strict=True)]
    return PulledMessages(
        ids=ids,
        published=[each.seconds * 1_000_000 + each.nanos // 1_000 for each in times],
        # Most are empty, and the iteration of an empty one costs more than the rest of a message.
        attributes=[
            [(key, mapping[key].encode()) for key in mapping] if mapping else []
            for mapping in [each.attributes for each in messages]
        ],
        ordering_keys=[each.ordering_key or None for each in messages],
        attempts=[each.delivery_attempt for each in received],
        values=[each.data for each in messages],
        handles=[each.ack_id for each in received],
    )
