"""How each guard of a topic as a sink is taken out of the running code, as in `removals`."""

import secrets

from removals import patch, source

LANDING = "sinks.kafka.landing"


def notes_land_alone() -> None:
    """Messages are committed first, and their note behind them."""
    note = "self._producer.produce(self._target.control"
    apart = "self._producer.commit_transaction(30); self._producer.begin_transaction(); "
    source(LANDING, "_Landing._write_note", {note: apart + note})


def rows_are_not_counted() -> None:
    patch(LANDING, "check_count", lambda _: lambda *_: None)


def batches_land_again() -> None:
    patch(LANDING, "_find", lambda _: lambda *_: None)


def nobody_is_fenced() -> None:
    """Each producer has a transactional id of its own."""

    def another(original):  # noqa: ANN001, ANN202
        return lambda *words: f"{original(*words)}.{secrets.token_hex(4)}"

    patch("sinks.kafka.target", "KafkaTarget.transactional_id", another)


def hidden_notes_are_not_there() -> None:
    """The control topic ends where the first open transaction begins."""
    source("sinks.kafka.ends", "_offsets", {"committed=False": "committed=True"})


def topics_have_names_alone() -> None:
    """One that was made anew under a name is taken for the one before."""
    ends = "Ends.written_since"
    source("sinks.kafka.ends", ends, {"or earlier.topic_id != self.topic_id": ""})


def leaders_lose_nothing() -> None:
    """One that leads a partition after another is believed to have all of it."""
    ends = "Ends.written_since"
    source("sinks.kafka.ends", ends, {"leader is not None and": "True or"})


def aborted_notes_count() -> None:
    source("sinks.kafka.control", "between", {'"read_committed"': '"read_uncommitted"'})


def nobody_waits() -> None:
    patch(LANDING, "_wait", lambda _: lambda *_: None)


def topics_are_not_looked_at() -> None:
    patch("sinks.kafka", "KafkaSink.check", lambda _: lambda *_: None)


def messages_are_not_measured() -> None:
    patch("sinks.kafka.refused", "RowCheck._large", lambda _: lambda *_: None)


def control_topics_are_made_anew() -> None:
    source("sinks.kafka.facts", "_lacking", {"if there and any(": "if False and any("})


def topics_may_be_replaced() -> None:
    patch("sinks.kafka", "KafkaSink.check_replace", lambda _: lambda *_: ())


def refused_rows_are_not_kept() -> None:
    source("sinks.kafka", "KafkaSink.publish_accepting", {"keep(rows)": "pass"})


def a_part_is_the_whole() -> None:
    source("sinks.kafka.reading", "rows", {"if first > start or last < end:": "if False:"})


def retention_explains_anything() -> None:
    source("sinks.kafka.reading", "_missing", {"0 <= kept": "True or 0 <= kept"})


def compaction_explains_anything() -> None:
    source("sinks.kafka.reading", "_compacted", {"missing <= gaps": "True"})


def strays_are_not_seen() -> None:
    patch("sinks.kafka.reading", "strays", lambda _: lambda *_: {})


def cuts_begin_anew() -> None:
    source(LANDING, "_Landing._blocks", {"self._note.rows": "0"})


def any_digest_is_right() -> None:
    source("sinks.kafka", "KafkaSink.look", {"found.digest != won.digest": "False"})
