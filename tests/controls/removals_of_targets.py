"""How each guard of what a target holds is taken out of the running code, as in `removals`."""

import importlib

from removals import patch, source


def declarations_of_now() -> None:
    stored = {"open_stored(Spec.from_json(batch.spec), ": "open_stored(spec, "}
    source("finalize", "_finalize", stored)


def targets_are_not_asked() -> None:
    nothing = importlib.import_module("semel.sinks.held").Differences()
    patch("sinks.held", "compare", lambda _: lambda *_: nothing)
    patch("sinks.postgres.noted", "refuse_others", lambda _: lambda *_: None)


def adopt_does_not_ask() -> None:
    patch("adopt", "check_landed", lambda _: lambda *_: None)


def addresses_follow() -> None:
    """The row follows what is declared, as that of a folder does."""
    source("register", "registering", {"spec.sink_path() is None and": "False and"})


def moves_are_not_proven() -> None:
    source("accept", "accept_moved", {"owned.check_held(": "(lambda *_, **__: None)("})


def rows_may_lack_their_note() -> None:
    for name in ("refuse_unnoted", "refuse_landed"):
        patch("sinks.postgres.noted", name, lambda _: lambda *_: None)


def a_table_is_shared() -> None:
    patch("sinks.postgres.noted", "refuse_others", lambda _: lambda *_: None)


def rows_read_are_not_counted() -> None:
    patch("sinks.postgres.noted", "check_count", lambda _: lambda *_: None)


def rows_there_are_not_counted() -> None:
    patch("sinks.postgres.landing", "_check_there", lambda _: lambda *_: None)
