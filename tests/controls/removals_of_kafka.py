"""How each guard of a topic as a source is taken out. `guards_of_kafka` says who notices."""

import importlib

from removals import patch, source, statement


def any_topic_of_that_name() -> None:
    patch("sources.kafka.claimed", "check_topic", lambda _: lambda *_: None)


def deleted_ranges_are_passed_over() -> None:
    patch("sources.kafka.messages", "READING", lambda old: old | {"auto_offset_reset": "earliest"})


def short_ranges_are_read() -> None:
    _reader({"ended is not None and ended < end": "False"})


def silence_is_waited_for() -> None:
    _reader({"still()": "pass"})


def aborted_messages_are_read() -> None:
    level = {"isolation_level": "read_uncommitted"}
    patch("sources.kafka.messages", "READING", lambda old: old | level)


def shorter_partitions_go_on() -> None:
    source("sources.kafka.matching", "judge_all", {"item.end < partition.reached": "False"})


def new_topics_are_read() -> None:
    """A name that had another topic is taken for a new one."""
    does = importlib.import_module("semel.sources.kafka.matching").Does

    def judging(judge):  # noqa: ANN001, ANN202
        def judged(held, topic_known, shrunk):  # noqa: ANN001, ANN202
            return does.BEGIN if held == "other" else judge(held, topic_known, shrunk)

        return judged

    patch("sources.kafka.matching", "judge", judging)


def what_is_gone_is_passed_over() -> None:
    source("survey", "look", {"missing = [o for o in offers if": "missing = [o for o in () if"})


def the_first_record_is_the_first_offset() -> None:
    source("sources.kafka.edges", "find_edges", {"since[place] == first[place]": "False"})
    made = importlib.import_module("semel.sources.kafka.edges").find_edges
    patch("sources.kafka.matching", "find_edges", lambda _: made)


def losses_are_written_as_they_were_seen() -> None:
    source("losses", "accept_loss", {"if passed and": "if False and"})


def known_once_it_is_read() -> None:
    source("sources.kafka.matching", "match", {"if one.known is None:": "if False:"})


def times_without_an_offset_are_the_end() -> None:
    patch("sources.kafka.edges", "_check_told", lambda _: lambda *_: None)


def intervals_take_all() -> None:
    patch("sources.kafka.matching", "find_edges", lambda _: lambda *_: None)


def marks_of_transactions_have_a_time() -> None:
    source("sources.kafka.edges", "_Log.not_older", {"if head.ms < since": "if False"})


def later_intervals_tell_where_to_begin() -> None:
    statement("kafka", "reached", "AND interval_end <= :until")


def _reader(changes: dict[str, str]) -> None:
    """Change how messages are read; the package has that function under the module's name."""
    source("sources.kafka.messages", "messages", changes)
    made = importlib.import_module("semel.sources.kafka.messages").messages
    patch("sources.kafka", "messages", lambda _: made)


def any_answer_is_a_verdict() -> None:
    own = "error.http_status_code == 404 and error.error_code in _UNKNOWN"
    source("kafka.registry", "Registry._asked", {own: "True"})


def what_is_left_over_is_passed_over() -> None:
    source("formats.avro", "_decoded", {"if left:": "if False:"})


def lost_schemas_are_not_missed() -> None:
    patch("audit.reading", "Reading._check_schemas", lambda _: lambda *_: None)
