"""Google Pub/Sub, by its own client, and what its errors mean.

The client renews its credentials (`clients/gcp.py`); with PUBSUB_EMULATOR_HOST it takes none. Known
limitation: neither Google's token service nor its metadata server was ever met, nor what the real
service says of exactly-once delivery.

Messages are pulled by the client's channel and as plain protobuf, at 4 us each; the classes that
the client puts around them make that 55.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from semel import settings
from semel.clients import gcp
from semel.clients.connection import installed
from semel.clients.queue import About, DeadLetters, Pulled, Queue
from semel.errors import SemelError, TerminalError, UnavailableError

if TYPE_CHECKING:
    import grpc
    from google.cloud.pubsub_v1 import SubscriberClient

ANSWER_SECONDS = 8
"""A service that does not answer for so long is away: errors come within ten seconds."""

PULL_SECONDS = 10
"""How long one pull stays with the service, which answers once there is a message. Who gives it up
earlier may lose messages that are on their way, until their deadline is over."""

MESSAGES_MAX = 1_000
"""Messages of one pull or acknowledgement: the service takes requests of 512 KiB."""

AHEAD_BYTES = 4 << 20
"""What is asked for before it is wanted, about."""

MESSAGE_BYTES = 64 << 10
"""What a message is taken to have until some were seen."""

_SCOPE = "https://www.googleapis.com/auth/pubsub"
_SERVICE = "/google.pubsub.v1.Subscriber/"
_DELETED = "_deleted-topic_"
_RIGHTS = "pubsub.subscriptions.get and pubsub.subscriptions.consume"


def opened(
    *,
    connection: str | None,
    subscription: str,
    find: Callable[[str], str | None] = settings.connection,
) -> "Pubsub":
    """A subscription, which is not asked anything yet.

    `subscription`: `projects/P/subscriptions/S`. `connection`: None: the machine's own credentials.
    TerminalError: google-cloud-pubsub is not installed, the connection cannot be used, or there are
    no credentials.
    """
    with installed("Pub/Sub", "pubsub"):
        from google.cloud.pubsub_v1 import SubscriberClient

    who = gcp.who(connection)
    credentials = gcp.credentials(connection, "Pub/Sub", _SCOPE, find)
    with gcp.needed():
        client = SubscriberClient(credentials=credentials)
    return Pubsub(client, subscription, who)


class Pubsub(Queue):
    """A subscription. A handle is the ack id of one delivery."""

    rights = _RIGHTS

    def __init__(self, client: "SubscriberClient", subscription: str, who: str) -> None:
        from google.pubsub_v1 import types

        self._client, self._subscription, self._who = client, subscription, who
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
        self._asked: grpc.Future | None = None
        self._left: list[Any] = []
        self._message_bytes = MESSAGE_BYTES
        self._ahead = True

    def about(self) -> About:
        """Ask for the subscription. The address is its topic: ids are unique in that."""
        from google.api_core.exceptions import GoogleAPICallError, RetryError
        from google.auth.exceptions import GoogleAuthError

        try:
            found = self._client.get_subscription(
                subscription=self._subscription, timeout=ANSWER_SECONDS, retry=None
            )
        except GoogleAPICallError as error:
            code = error.grpc_status_code.name if error.grpc_status_code else "UNKNOWN"
            raise self._refused(code, error.message, "pubsub.subscriptions.get") from None
        except (RetryError, GoogleAuthError) as error:
            raise self._refused("UNAVAILABLE", str(error), "pubsub.subscriptions.get") from None
        self._judge(type(found).pb(found))
        self._deadline_seconds = found.ack_deadline_seconds
        policy, topic = found.dead_letter_policy, found.dead_letter_policy.dead_letter_topic
        # What nobody takes is handed back, which counts as a delivery; and the next messages of an
        # ordering key come to who asks after these are acknowledged.
        self._ahead = not topic and not found.enable_message_ordering
        return About(
            address=found.topic,
            deadline_seconds=found.ack_deadline_seconds,
            # By Seek somebody may let a subscription deliver what its topic still keeps.
            retention=max(
                found.message_retention_duration or timedelta(),
                found.topic_message_retention_duration or timedelta(),
            )
            or None,
            dead_letters=DeadLetters(
                address=topic,
                deliveries=policy.max_delivery_attempts or 5,  # The service's own default.
                back=f"gcloud pubsub topics list-subscriptions {topic}",
            ) if topic else None,
            ordered=found.enable_message_ordering,
        )

    def _judge(self, found: Any) -> None:
        if found.topic == _DELETED:
            raise TerminalError(
                f"the topic of {self._subscription} was deleted, so the ids of its messages belong "
                "to none; make a subscription to the new topic, and name that"
            )
        others = ("bigquery_config", "cloud_storage_config")
        if found.push_config.push_endpoint or any(
            name in found.DESCRIPTOR.fields_by_name and found.HasField(name) for name in others
        ):
            raise TerminalError(
                f"{self._subscription} delivers its messages elsewhere by itself; make a "
                "subscription for pulls, and name that"
            )

    def pull(self, messages: int, size: int, seconds: float) -> Pulled:
        """Wait for what was asked for, here or by an earlier pull; then ask for the next ones,
        which come while these are made durable.
        """
        import grpc

        found, self._left = self._left, []
        if not found:
            self._ask(messages, size)
            try:
                answer = self._asked.result(seconds)
                self._asked, found = None, list(answer.received_messages)
                if found:
                    self._message_bytes = answer.ByteSize() // len(found)
            except grpc.FutureTimeoutError:
                return Pulled()
            except grpc.RpcError as error:
                self._asked = None
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise self._told(error) from None
                self.about()  # Nothing came, or nobody is there.
        found, self._left = found[:messages], found[messages:]
        if self._ahead and found and (len(found) < messages or messages >= MESSAGES_MAX):
            self._ask(MESSAGES_MAX, AHEAD_BYTES)  # Else these may be the last that are wanted.
        return _columns(found)

    def _ask(self, messages: int, size: int) -> None:
        """Ask for messages, unless some are asked for or left."""
        if self._asked is None and not self._left:
            most = min(messages, MESSAGES_MAX, max(1, size // self._message_bytes))
            self._asked = self._call("Pull", PULL_SECONDS, max_messages=most)

    def acknowledge(self, handles: Sequence[str]) -> int:
        """Acknowledge them. Only a subscription with exactly-once delivery says what was late."""
        return self._sent("Acknowledge", handles)

    def extend(self, handles: Sequence[str]) -> None:
        """Set their deadline to the subscription's, from now on, and that of what came since."""
        import grpc

        seconds = self._deadline_seconds or int(self.about().deadline_seconds)
        if self._asked is not None and self._asked.done():
            with suppress(grpc.RpcError):  # The next pull meets it.
                self._left += self._asked.result().received_messages
                self._asked = None
        ahead = [each.ack_id for each in self._left]
        self._sent("ModifyAckDeadline", [*handles, *ahead], ack_deadline_seconds=seconds)

    def hand_back(self, handles: Sequence[str]) -> None:
        """Set their deadline to now."""
        with suppress(SemelError):
            self._sent("ModifyAckDeadline", handles, ack_deadline_seconds=0)

    def close(self) -> None:
        """End the connection, and let what nobody took be delivered again."""
        import grpc

        if self._asked is not None:
            self._asked.cancel()
            with suppress(grpc.RpcError, grpc.FutureCancelledError, grpc.FutureTimeoutError):
                self._left += self._asked.result(0).received_messages
        self.hand_back([each.ack_id for each in self._left])
        self._client.close()

    def _call(self, name: str, seconds: float, **fields: Any) -> "grpc.Future":
        request = self._requests[name](subscription=self._subscription, **fields)
        return self._calls[name].future(
            request,
            timeout=seconds,
            metadata=[("x-goog-request-params", f"subscription={self._subscription}")],
        )

    def _sent(self, name: str, handles: Sequence[str], **fields: Any) -> int:
        """Say it of all handles, all calls at once. Returns how many were refused."""
        import grpc

        calls = [
            (some, self._call(name, ANSWER_SECONDS, ack_ids=some, **fields))
            for some in (
                handles[at : at + MESSAGES_MAX] for at in range(0, len(handles), MESSAGES_MAX)
            )
        ]
        refused = 0
        for some, each in calls:
            try:
                each.result()
            except grpc.RpcError as error:
                # Exactly-once delivery: the call fails as a whole when one of its ids was late.
                if error.code().name not in ("FAILED_PRECONDITION", "INVALID_ARGUMENT"):
                    raise self._told(error) from None
                refused += _refused_ids(error) or len(some)
        return refused

    def _told(self, error: "grpc.RpcError") -> SemelError:
        return self._refused(error.code().name, error.details(), "pubsub.subscriptions.consume")

    def _refused(self, code: str, details: str | None, right: str) -> SemelError:
        """What an answer means. `right`: what the call needs."""
        details = details or ""
        if "metadata from plugin failed" in details or code == "UNAUTHENTICATED":
            why = re.search(r"\b(invalid_[a-z]+|unauthorized_client|access_denied)\b", details)
            if why or code == "UNAUTHENTICATED":
                return TerminalError(
                    f"Google does not take {self._who} ({why[0] if why else code}); put a key "
                    "there that is valid"
                )
            return UnavailableError(
                f"Google's token service gives none for {self._who} ({code}); see that it is "
                "reached from here"
            )
        if code == "NOT_FOUND":
            return TerminalError(
                f"there is no subscription {self._subscription}, or it was deleted; make it, or "
                "correct source.subscription"
            )
        if code == "PERMISSION_DENIED":
            return TerminalError(
                f"{self._who} may not use {self._subscription}, or the API of its project is off; "
                f"allow {right}; in all semel needs {_RIGHTS} on it (roles/pubsub.subscriber and "
                "roles/pubsub.viewer)"
            )
        if code in ("FAILED_PRECONDITION", "INVALID_ARGUMENT", "UNIMPLEMENTED"):
            return TerminalError(
                f"Pub/Sub refuses a call for {self._subscription} ({code}), which needs {right}"
            )
        return UnavailableError(
            f"Pub/Sub does not answer for {self._subscription} at {self._client.api_endpoint}, by "
            f"{self._who} ({code}); see that it is reached from here"
        )


def _refused_ids(error: "grpc.RpcError") -> int:
    """How many ids an answer names as not acknowledged."""
    from google.rpc.error_details_pb2 import ErrorInfo
    from grpc_status import rpc_status

    status, info = rpc_status.from_call(error), ErrorInfo()
    if status is None:
        return 0
    return sum(len(info.metadata) for each in status.details if each.Unpack(info))


def _columns(found: Sequence[Any]) -> Pulled:
    plain = [each.message for each in found]
    times = [each.publish_time for each in plain]
    plain_ids = [each.message_id for each in plain]
    ids = [f"{i}-{t.seconds}{t.nanos:09}" for i, t in zip(plain_ids, times, strict=True)]
    return Pulled(
        ids=ids,
        published=[each.seconds * 1_000_000 + each.nanos // 1_000 for each in times],
        # Most have none: to ask what an empty mapping has costs more than all else of a message.
        attributes=[
            [(key, found[key].encode()) for key in found] if found else []
            for found in [each.attributes for each in plain]
        ],
        ordering_keys=[each.ordering_key or None for each in plain],
        attempts=[each.delivery_attempt for each in found],
        values=[each.data for each in plain],
        handles=[each.ack_id for each in found],
    )
