"""How each guard of the protocol is taken out of the running code. `guards` says who notices."""

import contextlib
import importlib
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import sqlalchemy as sa


def patch(module: str, name: str, change: Callable) -> None:
    """Replace semel.<module>.<name> by `change(original)`."""
    place = importlib.import_module(f"semel.{module}")
    *path, last = name.split(".")
    for part in path:
        place = getattr(place, part)
    setattr(place, last, change(getattr(place, last)))


def source(module: str, function: str, changes: dict[str, str]) -> None:
    """Change the text of semel.<module>.<function>, or of <module>.<class>.<function>."""
    place = importlib.import_module(f"semel.{module}")
    *owner, name = function.split(".")
    holder = getattr(place, *owner) if owner else place
    text = textwrap.dedent(inspect.getsource(getattr(holder, name)))
    for old, new in changes.items():
        assert old in text, f"semel.{module}.{function} does not say {old!r}"
        text = text.replace(old, new)
    exec(compile(text, place.__file__, "exec"), vars(place))
    setattr(holder, name, vars(place)[name])


def statement(verb: str, name: str, old: str, new: str = "") -> None:
    """Change a statement of sql/queries/<verb>.sql."""
    ledger = importlib.import_module("semel.ledger")
    found = ledger._queries(verb)
    text = found[name].text
    assert old in text, f"{verb}.{name} does not say {old!r}"
    found[name] = sa.text(text.replace(old, new))


def index(name: str) -> None:
    """Drop an index of the schema, in every ledger that is made from now on."""
    postgres = importlib.import_module("fix_postgres")
    postgres.SCHEMA_CHANGES.append(f"DROP INDEX semel.{name};")


def constraint(table: str, name: str) -> None:
    """Drop a constraint of the schema, in every ledger that is made from now on."""
    postgres = importlib.import_module("fix_postgres")
    postgres.SCHEMA_CHANGES.append(f"ALTER TABLE semel.{table} DROP CONSTRAINT {name};")


def no_pipeline_lock() -> None:
    statement("pipelines", "lock", "FOR NO KEY UPDATE")


def no_reread() -> None:
    """Plan trusts what it read before it had the lock."""
    again = (
        "now.version == survey.version",
        "now.latest == before",
        "set(survey.orphans) <= set(now.orphans)",
    )
    source("plan", "_lock", dict.fromkeys(again, "True"))


def no_pinned_list() -> None:
    """A task asks the runs that are live when it runs."""
    snapshot = importlib.import_module("semel.catalog.runs").snapshot
    shard = importlib.import_module("semel.steps.shard")

    def live(original: Callable) -> Callable:
        def call(job, *rest):  # noqa: ANN001, ANN002, ANN202
            with shard.ledger_of(job).transaction() as connection:
                runs = snapshot(connection, job.pipeline_id).runs
            return original(replace(job, runs=runs), *rest)

        return call

    patch("steps.shard", "classify_shard", live)


def any_ledger() -> None:
    """A task works with whatever ledger it was pointed to."""
    there = "[row[\"started_at\"] for row in found] != [job.began_at]"
    source("steps.shard", "ledger_of", {there: "False"})


def no_links_tried() -> None:
    patch("stage", "check_links_of", lambda _: lambda *_: None)


def no_comparison() -> None:
    patch("commit", "overlap", lambda _: lambda *_: 0)


def no_sequence_check() -> None:
    """Commit takes its place, whoever committed since it compared."""
    statement("commit", "take_place", "commit_seq = :compared_seq", ":compared_seq >= 0")
    source("commit", "_decide", {'now["commit_seq"] != compared': "False"})


def no_floor_check() -> None:
    source("commit", "_decide", {"attempt.bucket_min is not None": "False"})


def no_floor_before_retirement() -> None:
    statement("collect", "raise_floor", "GREATEST(gc_floor,", "LEAST(gc_floor,")
    statement("catalog", "retire_expired", "bucket_end IS NULL", "true")


def filter_is_truth() -> None:
    """A hit in the filter is taken for a duplicate."""

    def always(_: Callable) -> Callable:
        return lambda ledger, run, index, h1, h2: np.ones(len(h1), dtype=bool)

    patch("catalog.payload", "_look_up", always)


def filter_with_a_bit_cleared() -> None:
    """Each filter lacks the bits of its first word."""

    def cleared(original: Callable) -> Callable:
        def call(*arguments):  # noqa: ANN002, ANN202
            words = original(*arguments).copy()
            words.reshape(-1)[:: max(1, words.size // 8)] = 0
            return words

        return call

    patch("catalog.bloom", "build_part", cleared)


def no_fsync() -> None:
    """A file is closed and never fsynced."""

    class NoSync:
        def __getattr__(self, name: str) -> object:
            return getattr(importlib.import_module("os"), name)

        def fsync(self, _: int) -> None:
            pass

    patch("storage", "os", lambda _: NoSync())


def no_input_digest() -> None:
    statement("stage", "other_digest", "input_digest <> :input_digest", ":input_digest = ''")


def plan_not_persisted() -> None:
    """Stage reads what is in the files now, and not what was planned."""
    os = importlib.import_module("os")

    def grown(original: Callable) -> Callable:
        def call(connection, verb, name, /, **values):  # noqa: ANN001, ANN003, ANN202
            found = original(connection, verb, name, **values)
            if name != "claims":
                return found
            return [{**claim, "end": os.stat(claim["name"]).st_size} for claim in found]

        return call

    patch("stage", "rows", grown)
    patch("sources.files", "claimed.check_claims", lambda _: lambda claims, root, batch_id: None)


def delete_on_unknown_outcome() -> None:
    """Who did not hear that a commit landed removes what it staged."""
    errors = importlib.import_module("semel.errors")
    storage = importlib.import_module("semel.storage")
    archive = importlib.import_module("semel.sinks.archive")

    def rash(original: Callable) -> Callable:
        def call(ledger, spec, pipeline, batch, attempt, log):  # noqa: ANN001, ANN202
            try:
                return original(ledger, spec, pipeline, batch, attempt, log)
            except errors.OutcomeUnknownError:
                kept = archive.of(spec)
                storage.remove_folder(archive.attempt(kept, batch.batch_id, attempt.fence))
                raise

        return call

    patch("commit", "_try", rash)


def stage_retries_left_on() -> None:
    patch("spark.engine", "_REQUIRED", lambda _: {})


def no_fence() -> None:
    """The siblings of a winner stay as they are, and may be sealed and committed."""
    statement("commit", "win_attempt", "status IN ('running', 'staged')", "false")


def existence_is_truth() -> None:
    """Finalize takes a name that exists for the right file."""
    presence = importlib.import_module("semel.sinks").Presence
    os = importlib.import_module("os")

    def exists(_: Callable) -> Callable:
        right, absent = presence.RIGHT, presence.ABSENT
        return lambda looks, file, path: right if os.path.lexists(path) else absent

    patch("sinks.folder", "Looks._presence", exists)


def link_replaces() -> None:
    """A final name that is taken is replaced."""
    os = importlib.import_module("os")

    def replacing(_: Callable) -> Callable:
        def call(source, target) -> None:  # noqa: ANN001
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target)
            os.link(source, target)

        return call

    patch("sinks.folder", "link_new", replacing)


def payload_goes_at_once() -> None:
    statement("catalog", "deletable_runs", "a.started_at <= r.retired_at", "false")


def runs_of_the_lost() -> None:
    """A task of a lost attempt may still store its run."""
    statement("catalog", "share_attempt", "AND status = 'running'")


def no_look_for_traces() -> None:
    patch("sinks.owned", "refuse_traces", lambda _: lambda *_: None)


def no_numbers_passed() -> None:
    statement("adopt", "pass_numbers", "GREATEST(:batch_max", "LEAST(:batch_max")


def copies_are_new() -> None:
    """What a file begins with is no evidence."""
    match = importlib.import_module("semel.sources.files.recognise").Match
    patch("sources.files.gather", "likeness", lambda _: lambda seen, known, **_: match.NONE)


def refusals_are_forgotten() -> None:
    """A plan does not know what the one before it refused."""
    statement("partitions", "refused", "WHERE ", "WHERE false AND ")


def what_cannot_be_told_is_new() -> None:
    """The table takes what is unsure for what is not there."""
    kinds = importlib.import_module("semel.sources.files.recognise")

    def table(decide):
        def decided(own, place, match, *, by_position):
            place = kinds.Place.FREE if place is kinds.Place.UNSURE else place
            match = kinds.Match.NONE if match is kinds.Match.UNSURE else match
            return decide(own, place, match, by_position=by_position)

        return decided

    patch("sources.files.gather", "recognise", table)


def what_is_not_listed_is_gone() -> None:
    """A folder that cannot be read is taken for an empty one."""
    files = importlib.import_module("semel.sources.files.listing")
    files.Listing.complete = property(lambda _: True)


def no_key_of_batches() -> None:
    """semel_batch takes a batch twice."""
    key = "(table_name, pipeline, batch_id)"
    statement("postgres", "create_batches", f"PRIMARY KEY {key},")
    statement("postgres", "note", f"ON CONFLICT {key} DO NOTHING")


def any_digest_is_right() -> None:
    source("sinks.postgres", "PostgresSink.look", {'found["digest"] == won.digest': "True"})


def note_lands_alone() -> None:
    """The batch's row in semel_batch is committed before its rows."""
    alone = {"facts = examine(": "connection.commit()\n    facts = examine("}
    source("sinks.postgres", "PostgresSink._begin", alone)


def rows_are_not_counted() -> None:
    source("sinks.staged", "check_count", {"landed != wanted": "False"})


def later_rows_are_replaced() -> None:
    statement("postgres", "upsert", "WHERE coalesce(stored._semel_seq, 0) < excluded._semel_seq")


def rows_in_any_order() -> None:
    statement("postgres", "upsert", "ORDER BY {key}")


def tables_are_made_at_once() -> None:
    statement("postgres", "lock_schema", "pg_advisory_xact_lock(", "abs(")


def columns_may_change() -> None:
    """The table is looked at, and not held."""
    statement("postgres", "hold_table", "LOCK TABLE {table} IN ROW EXCLUSIVE MODE", "SELECT 1")


def commits_need_not_last() -> None:
    statement("postgres", "settings", "set_config('synchronous_commit', 'on', true),")


def constraints_may_wait() -> None:
    source("sinks.postgres", "PostgresSink._begin", {"SET CONSTRAINTS ALL IMMEDIATE": "SELECT 1"})


def tables_are_not_looked_at() -> None:
    patch("sinks.postgres", "PostgresSink.check", lambda _: lambda *_: None)


def no_row_is_looked_at() -> None:
    patch("sinks.postgres.refused", "RowCheck.__call__", lambda _: lambda *_: [])


def keys_may_repeat() -> None:
    patch("sinks.postgres", "twice", lambda _: lambda *_: None)


def old_rows_go_first() -> None:
    """They are deleted in a transaction of its own."""
    delete = "replaced.delete(connection, self._target, won)"
    source("sinks.postgres", "PostgresSink._begin", {delete: f"{delete}; connection.commit()"})


def old_rows_may_stay() -> None:
    source("sinks.postgres.replaced", "delete", {"if left:": "if False:"})


def tables_are_not_asked_for_their_old_rows() -> None:
    patch("sinks.postgres.replaced", "check", lambda _: lambda *_: ())


def a_marker_is_the_newest() -> None:
    alone = {"newest := told.newest": "newest := 0"}
    source("sinks.postgres", "PostgresSink.rows", alone)


def refused_rows_are_kept_later() -> None:
    """The others are committed first."""
    source(
        "sinks.postgres",
        "PostgresSink.publish_accepting",
        {"keep(table)": "connection.commit()\n            keep(table)"},
    )
