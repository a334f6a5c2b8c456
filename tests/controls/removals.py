"""How each guard is taken out of the running code: one row a guard, by the name it has in the docs.

The tables "Guards" of docs/protocol.md, docs/postgres.md and docs/kafka.md say which rules each
keeps, and which tests must fail without it (test_controls.py reads them there).
"""

import contextlib
import importlib
import inspect
import os
import secrets
import textwrap
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import sqlalchemy as sa

Removal = Callable[[], None]


def all_of(*removals: Removal) -> Removal:
    """Several changes that are one guard's."""

    def remove() -> None:
        for removal in removals:
            removal()

    return remove


def other(target: str, change: Callable[[Any], Any]) -> Removal:
    """Replace semel.<module>:<name> by `change(original)`."""

    def remove() -> None:
        holder, name = _place(target)
        setattr(holder, name, change(getattr(holder, name)))

    return remove


def gives(target: str, value: object = None) -> Removal:
    """Replace a function by one that returns a value, whatever it is called with."""
    return other(target, lambda _: lambda *_, **__: value)


def code(target: str, *old: str, new: str = "False", user: str = "") -> Removal:
    """Change the text of a function: `<old>` in `new` is what it was.

    `user` is a module that has imported the function by name.
    """

    def remove() -> None:
        holder, name = _place(target)
        module = importlib.import_module(f"semel.{target.partition(':')[0]}")
        text = textwrap.dedent(inspect.getsource(getattr(holder, name)))
        for part in old:
            assert part in text, f"semel.{target} does not say {part!r}"
            text = text.replace(part, new.replace("<old>", part))
        exec(compile(text, module.__file__, "exec"), vars(module))
        made = vars(module)[name]
        setattr(holder, name, made)
        if user:
            setattr(importlib.import_module(f"semel.{user}"), name, made)

    return remove


def sql(statement: str, old: str, new: str = "") -> Removal:
    """Change a statement of sql/queries/: `<file>.<name>`."""

    def remove() -> None:
        verb, name = statement.split(".")
        found = importlib.import_module("semel.clients.sql")._queries(verb)
        text = found[name].text
        assert old in text, f"{statement} does not say {old!r}"
        found[name] = sa.text(text.replace(old, new))

    return remove


def schema(change: str) -> Removal:
    """Change the schema of every ledger that is made from now on."""
    return lambda: importlib.import_module("fixtures.postgres.server").SCHEMA_CHANGES.append(change)


def _place(target: str) -> tuple[Any, str]:
    """What holds `<module>:<name>`, or `<module>:<class>.<name>`, and the last name."""
    module, _, path = target.partition(":")
    holder = importlib.import_module(f"semel.{module}")
    *owners, name = path.split(".")
    for owner in owners:
        holder = getattr(holder, owner)
    return holder, name


# What is more than a line.


def live_runs_for_a_task(original: Callable) -> Callable:
    """A task asks the runs that are live when it runs."""
    snapshot = importlib.import_module("semel.catalog.runs").snapshot
    shard = importlib.import_module("semel.stage.shard")

    def call(job, *rest):  # noqa: ANN001, ANN002, ANN202
        with shard.ledger_of(job).transaction() as connection:
            runs = snapshot(connection, job.pipeline_id).runs
        return original(replace(job, runs=runs), *rest)

    return call


def first_word_cleared(original: Callable) -> Callable:
    """Each filter lacks the bits of its first word."""

    def call(*arguments):  # noqa: ANN002, ANN202
        words = original(*arguments).copy()
        words.reshape(-1)[:: max(1, words.size // 8)] = 0
        return words

    return call


def _nothing() -> object:
    """What is said of a target that holds what it should."""
    return importlib.import_module("semel.sinks.note_comparison").Differences()


class NoSync:
    """The module os, but that a file is closed and never fsynced."""

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def fsync(self, _: int) -> None:
        pass


def claims_to_the_files_ends(original: Callable) -> Callable:
    """Stage reads what is in the files now, and not what was planned."""

    def call(connection, verb, name, /, **values):  # noqa: ANN001, ANN003, ANN202
        found = original(connection, verb, name, **values)
        if name != "claims":
            return found
        return [{**claim, "end": os.stat(claim["name"]).st_size} for claim in found]

    return call


def rash_commit(original: Callable) -> Callable:
    """Who did not hear that a commit landed removes what it staged."""
    errors = importlib.import_module("semel.errors")
    storage = importlib.import_module("semel.storage")
    archive = importlib.import_module("semel.archive.layout")

    def call(ledger, spec, pipeline, batch, attempt, log):  # noqa: ANN001, ANN202
        try:
            return original(ledger, spec, pipeline, batch, attempt, log)
        except errors.OutcomeUnknownError:
            kept = archive.archive_folder(spec)
            storage.remove_folder(archive.attempt(kept, batch.batch_id, attempt.fence))
            raise

    return call


def presence_by_name(_: Callable) -> Callable:
    """Finalize takes a name that exists for the right file."""
    presence = importlib.import_module("semel.sinks").Presence
    right, absent = presence.RIGHT, presence.ABSENT
    return lambda looks, file, path: right if os.path.lexists(path) else absent


def replacing_link(_: Callable) -> Callable:
    """A final name that is taken is replaced."""

    def call(source, target) -> None:  # noqa: ANN001
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)
        os.link(source, target)

    return call


def no_likeness(_: Callable) -> Callable:
    """What a file begins with is no evidence."""
    match = importlib.import_module("semel.sources.files.recognise").Match
    return lambda opened, partition, **_: match.NONE


def unsure_is_new(decide: Callable) -> Callable:
    """The table takes what is unsure for what is not there."""
    kinds = importlib.import_module("semel.sources.files.recognise")

    def decided(own, place, match, *, by_position):  # noqa: ANN001, ANN202
        place = kinds.PathMatch.FREE if place is kinds.PathMatch.UNSURE else place
        match = kinds.Match.NONE if match is kinds.Match.UNSURE else match
        return decide(own, place, match, by_position=by_position)

    return decided


def retiring_commit(original: Callable) -> Callable:
    """The output before is retired, and that committed, before the replay's commit."""

    def call(ledger, spec, pipeline, batch, attempt, log):  # noqa: ANN001, ANN202
        if batch.replays is not None:
            values = {"root": batch.root, "generation": batch.generation}
            ledger.rows("commit", "retire_generation", batch_id=batch.batch_id, **values)
        return original(ledger, spec, pipeline, batch, attempt, log)

    return call


def begin_under_any_name(judge: Callable) -> Callable:
    """A topic's name that had another topic is taken for a new one."""
    does = importlib.import_module("semel.sources.kafka.matching").TopicDecision

    def judged(held, topic_known, lost):  # noqa: ANN001, ANN202
        return does.BEGIN if held == "other" else judge(held, topic_known, lost)

    return judged


LANDING = "sinks.kafka.landing"
LOADS = "sinks.bigquery.landing"
COMMITS = "sinks.delta.landing"
READING = "sources.kafka.messages:READER_CONFIG"
MESSAGES = "sources.kafka.messages:messages"
POINT = "\n    failpoints.point('storage.before_swap')\n    "
KEY = "(table_name, pipeline, batch_id)"
TOLD = "CAST(:forgotten AS int8multirange)"
ASIDE = 'path.with_name(f"b99999999.json")'

# fmt: off - a row is a line, or two.
OF_SECONDS: dict[str, Removal] = {
    "a file lies in the folder of its rows' times": gives("audit:_Audit._blame_folder"),
    "a shard is by position": other(
        "stage.part_files:_shards", lambda _: lambda table, count: np.arange(len(table)) % count
    ),
    "a group is synced before it is acknowledged": code(
        "sources.queue.segment:OpenSegment.append", "os.fdatasync(self._file.fileno())", new="None"
    ),
    "a segment is put before it is acknowledged": gives("sources.queue.segment:StoredSegments._put"),
    "a part's name is synced before it is written to":
        code("sources.queue.segment:OpenSegment.create", "sync_folder(folder)", new="None"),
    "a group that was not synced is not acknowledged":
        code("sources.queue.receive:_Receiver._acknowledge", "future.result()", new="None"),
    "a sync that failed is not tried again":
        code("sources.queue.segment:OpenSegment._refuse_once_broken", "self._broken:", new="False:"),
    "a part is cut behind its last whole group":
        code("sources.queue.segment:recover_part", "file.truncate(part.end)", new="None"),
    "a whole group behind damage is no tear": gives("sources.queue.segment:_next_whole_frame"),
    "a part is sealed by who holds its lock": gives("sources.queue.segment:lock_part", True),
    "the last group is written once more": code(
        "sources.queue.segment:recover_part", "if last is not None:", new="if False:"
    ),
    "a plan seals what a dead receiver left": code(
        "sources.queue.source:Segments.discover", "self.spool.recover(lambda _: None)",
        new="type(self.spool)(self.sealed / 'none').recover(print)",
    ),
    "a part that may not be written keeps no plan from the others": code(
        "sources.queue.spool:Spool.recover", "error.errno not in _FORBIDDEN", new="True"
    ),
    "a segment's bytes are proven before it is claimed":
        code("sources.queue.source:_read_whole", "state.hexdigest() == foot.digest", new="True"),
    "a damaged segment is missed when it is gone":
        code("sources.queue.source:Segments.match", "*self._damaged(result, known)", new=""),
    "the id has the queue's address": code(
        "sources.queue.records:_other_columns", "address, ids", new="'', ids"
    ),
    "ids of a stream go by its name": code(
        "sources.queue.spec:NatsSourceSpec.id_address", '_CREATED.sub("", segment)', new="segment"
    ),
    "ids of an older semel go on": code(
        "sources.queue.spec:NatsSourceSpec.id_address", "last == UNKNOWN", new="False"
    ),
    "a segment stays for keep_spool":
        sql("collect.accounted", ":kept_seconds", "0 * :kept_seconds"),
    "a spool that has nothing of what was read is another one":
        code("sources.queue.source:Segments.match",
             'not (newest["there"] or self.spool.was_removed(newest["content"] or "-"))'),
    "what is not in another spool is not gone":
        code("sources.queue.source:Segments.match", "lost_ranges=listed, ", new=""),
    "an object that was replaced waits for a person": code(
        "sources.objects.matching:_match_name", "NameMatch.OTHER if partition.reached",
        new="NameMatch.UNREAD if partition.reached",
    ),
    "each read names the etag": all_of(
        *(code(f"clients.objects:Store.{name}", '{"if_match": f\'"{etag}"\', "range"',
               new='{"range"') for name in ("read", "chunks")),
        gives("clients.objects:Store._check_etag"),
    ),
    "what was read says what it is of": gives("clients.objects:Store._check_etag"),
    "what is not listed is not gone":
        code("sources.objects.matching:_lost_ranges", "k.name in listing.scope", new="True"),
    "an ordered listing goes back for what was refused":
        sql("objects.begin", "r.pipeline_id = :pipeline_id", "false"),
    "an ordered listing goes back for what is planned":
        sql("objects.begin", "b.status = 'planned'", "false"),
    "a put is refused where an object is":
        code("clients.objects:Store.create", 'metadata, "create")', new='metadata, "overwrite")'),
    "HEAD compares checksum and digest": code(
        "sinks.objects.sink:ObjectsSink._presence", "and about == about | _metadata(won, file)", new=""
    ),
    "a put is of the manifest's bytes": code(
        "sinks.objects.sink:ObjectsSink._put",
        "xxhash.xxh3_128_hexdigest(data) != file.checksum",
    ),
    "a name of an archive is put where none is": code(
        "storage.store:_create", "key.store.create(key.key, data, {CHECKSUM: checksum})",
        new='(key.store._put(key.key, data, {CHECKSUM: checksum}, "overwrite") is None)',
    ),
    "a put that failed is none":
        other("storage.store:Upload.__exit__", lambda _: lambda file, *_: file.close()),
    "a lost answer is one's own put": code(
        "storage.store:_create", "(found.size, found.checksum) != (len(data), checksum)",
        new="True",
    ),
    "a marker replaces the version that was judged": code(
        "storage.store:_swap",
        "key.store.replace(key.key, data, about, version.etag, version.version)",
        new='key.store._put(key.key, data, about, "overwrite")',
    ),
    "a finalizer whose marker was replaced asks whether it is late":
        code("finalize:finalize", "CorruptionError, ReplacedError)", new="CorruptionError)"),
    "an archive's store is tried": gives("storage:check_guarantees"),
    "markers before the newest known ones are asked for by name":
        code("archive.ownership:check_target", "if not exists", new="if True"),
    "a batch's number is claimed": gives("sinks.objects.notes:claim_number"),
    "a note of another batch stops the batch": code(
        "sinks.objects.notes:claim_number",
        "(head.size, stored.get(CHECKSUM)) != (len(text), metadata[CHECKSUM])",
    ),
    "a note that changed since stage is read again": code(
        "sinks.objects.notes:_version", " {item.etag}", new=""
    ),
    "collect deletes only its own": code(
        "sinks.objects.sink:ObjectsSink._remove_object",
        "(head.size, about.get(CHECKSUM)) != (file.bytes, file.checksum)",
    ),
    "a long key is refused in time": gives("sinks.objects.spec:ObjectsSinkSpec.path_problems", ()),
    "the audit compares what it fetches": code(
        "sinks.objects.sink:ObjectsSink._download", "digest.hexdigest() != file.checksum"
    ),
    "the audit looks for other keys of a batch": code(
        "sinks.objects.sink:ObjectsSink.rows", "self._list_output() if strays else ()", new="()"
    ),
    "each attempt tries the store": gives("sinks.objects.sink:check_conditional_puts"),
    "a batch that met a slash is planned without it": code(
        "sources.objects.source:ObjectsSource.evidence", "offer.partition is not None"
    ),
    "a folder in which something is refused is listed":
        gives("sources.objects.source:outermost_folders", ("dt=2026-01-02",)),
    "a stale replacement is tried": code(
        "clients.objects.probe:check_conditional_puts", "if replaces", new="if False",
        user="sinks.objects.sink",
    ),
    "each attempt tries the store of a table": gives("sinks.delta.table:check_conditional_puts"),
    "an older copy leaves a newer one":
        code("sinks.objects.notes:put_marker_copy", "int(number) > generation", new="False and <old>"),
    "the copy of a marker is put": gives("sinks.objects.notes:put_marker_copy"),
    "a reader compares what it opens": code(
        "sinks.objects.reading:_MarkedObjects.open_input_file",
        "(head.size, metadata.get(CHECKSUM)) != (file.bytes, file.checksum)",
    ),
    "receive asks for room before it pulls": code(
        "sources.queue.receive:_Receiver._group_limit", "free is not None and free < FREE_BYTES_MIN"
    ),
    "what a failed receive holds is stored":
        code("sources.queue.receive:_Receiver._run", "with suppress(SemelError):", new="if False:"),
    "check refuses a queue that has given messages up":
        code("sources.queue.probe:check_service", "letters and dead:", new="False:"),
    "an id of Pub/Sub has the time of publishing":
        code("clients.queue.pubsub:_message_columns", "{i}-{t.seconds}{t.nanos:09}", new="{i}"),
    "receive acknowledges before it waits for an ordered queue": code(
        "sources.queue.receive:_Receiver._pull", "self.about.ordered or not len(pulled)", new="False"
    ),
    "two pipelines have no queue in common":
        code("pipeline:_clashes", "paths.drained & other.drained", new="()"),
    "check refuses a horizon that is too short":
        code("sources.queue.probe:check_service", "horizon < retention + _MARGIN"),
    "pipeline lock": sql("pipelines.lock", "FOR NO KEY UPDATE"),
    # Plan trusts what it read before it had the lock.
    "claims read again under the lock": code(
        "plan:_lock",
        "now.version == survey.version", "now.latest == latest",
        "set(survey.orphans) <= set(now.orphans)",
        new="True",
    ),
    "exclusion constraint on claims":
        schema("ALTER TABLE semel.claim DROP CONSTRAINT claim_disjoint;"),
    "pinned list": other("stage.shard:classify_shard", live_runs_for_a_task),
    "comparison at commit": gives("commit:overlap", 0),
    # Commit takes its place, whoever committed since it compared.
    "commit sequence looked at under the lock": all_of(
        sql("commit.take_place", "commit_seq = :compared_seq", ":compared_seq >= 0"),
        code("commit:_decide", 'now["commit_seq"] != compared'),
    ),
    "forgotten buckets looked at by commit":
        code("commit:_decide", 'attempt_now["forgotten"] is not None'),
    # Commit also counts what was late for the attempt already.
    "commit looks at what was forgotten since":
        sql("commit.lock_attempt", "(p.forgotten - a.forgotten)", "p.forgotten"),
    "a batch covers when it is finalized":
        code("plan:_write", "if batch is None:  # Otherwise", new="if True:  # Otherwise"),
    "what is refused is not covered":
        code("plan.covered:sees_all", "item.when is None or in_window(item.when, request.window)"),
    "what waits for its end is not covered":
        code("plan.covered:sees_all", "offer.end < offer.ahead"),
    "what an open batch may have is not covered by others":
        sql("plan.covers", "b.status IN ('planned', 'committed')", "false"),
    "time to come is not covered":
        code("plan.covered:covers", "request.looked_at, ", new=""),
    "adopt covers again":
        code("repair.adopt:_write_ledger", "batch.first.covers.ranges", new="()"),
    "no record time is ahead of its plan":
        other("limits:CLOCKS_AHEAD", lambda _: timedelta(days=30_000)),
    "no claim has a time ahead of its plan":
        sql("finalize.frontier", "c.time_max <= b.planned_at + CAST(:ahead AS interval)", "true"),
    "a plan that leaves data is not full":
        code("plan.event_time:leaves_nothing", "or draft.remaining", new=""),
    "a plan that refuses data is not full":
        code("plan.event_time:leaves_nothing", "survey.refusals or draft.refused"),
    "an open batch holds the frontier":
        sql("finalize.frontier", "o.status IN ('planned', 'committed')", "false"),
    "abandon takes the mark from later batches":
        sql("abandon.abandon_batch", "AND b.is_full", "AND false"),
    "windows that changed are named":
        code("reports.completeness:windows_of_batch", 'batch["times"] or ()', new="()"),
    "a person ends a hold only where one is":
        sql("accept.late", "AND arrived_to > COALESCE(event_time, '-infinity')"),
    "a chain is held by its upstream":
        gives("sources.pipeline.source:FinalizedBatches.is_complete", True),
    "event time never goes back":
        sql("finalize.event_time_of_streams", "GREATEST(l.event_time, (", "GREATEST(NULL, ("),
    "a stream ends before what is not finalized":
        sql("finalize.advance", "b.status IN ('planned', 'committed')", "false"),
    "a stream with a backlog is not idle":
        sql("finalize.event_time_of_streams", "(p.finalized_to < p.seen\n           OR", "("),
    "buckets forgotten before a run is retired": all_of(
        gives("collect:forget_expired"),
        sql("catalog.retire_expired", "buckets IS NULL", "true"),
    ),
    # With a bucket all before it are forgotten, also those that nobody ever read.
    "what nobody read is not forgotten": sql(
        "catalog.forget", TOLD, f"int8multirange(int8range(0, upper({TOLD})))",
    ),
    "a configuration that Airflow keeps back is missed": gives("airflow.replays:refuse_ignored"),
    "places of pipelines are compared": gives("pipeline:_shared", iter(())),
    "tables that a sink makes are compared with declared ones": gives("pipeline:_derived", ()),
    "circles of pipelines are looked for": gives("pipeline:_circle", ()),
    # A set of buckets is its hull.
    "sets of buckets are exact": other("model.buckets:BUCKET_RANGES_MAX", lambda _: 1),
    # It is taken for a duplicate.
    "a hit in a filter is looked up": other(
        "catalog.payload:_look_up",
        lambda _: lambda ledger, run, index, h1, h2: np.ones(len(h1), dtype=bool),
    ),
    "a filter misses no id": other("catalog.bloom:build_part", first_word_cleared),
    "fsync before `staged`": other("storage.folder:os", lambda _: NoSync()),
    "input digest":
        sql("stage.other_digest", "input_digest <> :input_digest", ":input_digest = ''"),
    "the plan is written down": all_of(
        other("stage:rows", claims_to_the_files_ends),
        gives("sources.files.source:file_claims.check_claims"),
    ),
    "nothing is deleted on an unknown outcome": other("commit:_try_commit", rash_commit),
    "a task that reads twice reads the same":
        code("stage.write:_read_again", "(again.digest, start) != (report.digest, len(code))"),
    "Spark's stage retries are off": other("spark.engine:_REQUIRED", lambda _: {}),
    "what was read is not read again in a copy":
        other("sources.files.gather:likeness", no_likeness),
    "a part that was read is not read in a copy":
        code("sources.sealed.matching:judge", "by_position and twin is not Twin.NONE"),
    # A footer is taken for the content.
    "all bytes of a part decide": code(
        "sources.sealed.matching:PartMatcher._has_content",
        'judged.content == partition.evidence.get("content")', new="True",
    ),
    "a task looks at its part again": gives("sources.files.parquet:ParquetFiles._check_read"),
    "rows that cannot be decoded are dead letters": code(
        "formats.parquet:_RowGroupReader.read_group", "range(at, high, limits.PIECE_ROWS_MAX)",
        new="()",
    ),
    "a source's file goes when it is finalized": sql(
        "collect.accounted", "SELECT int8range(0, p.reached)", "SELECT true OR int8range(0, 1)"
    ),
    "a source's file goes as it was read":
        code("sources.files.moving:move_finalized", "fingerprint(partition.name) != partition.fingerprint"),
    "a marker goes only if the pack has it":
        code("collect.pack:_remove", "marker.read_bytes() == packed", new="True"),
    "a pack that is noted no more ends nothing":
        code("collect.pack:_finish", "< len(batches)", new="< 0"),
    "a changed marker is not packed":
        code("collect.pack:_write", "packs.name_of(markers or {0: b\"\"}) != pack", new="False"),
    "a pack is read by the hash in its name": all_of(
        code("storage.packs:read", "name_of(markers) != path.name", new="False"),
        code("storage.packs:_batches", "batches_named(path.name) != (min(batches), max(batches))"),
    ),
    "a planned replay loses to a pack": sql("replay.insert", "AND r.packed_in IS NULL"),
    "a packed batch is not computed again": all_of(
        code("runs.replay:_check_replaceable", 'root_row["packed"]'),
        code("stage.replayed:_winner", 'won["packed_in"]'),
        code("compare.choice:choose_batches", 'if r["packed_in"]', new="if False", user="compare"),
    ),
    "a batch with an admission is not packed": all_of(
        *(sql(f"collect.{name}", "WHERE a.admits = b.batch_id", "WHERE false")
          for name in ("packable", "begin_pack"))
    ),
    "the newest batches are not packed": all_of(
        *(sql(f"collect.{name}", "ORDER BY n.batch_id DESC LIMIT :newest",
              "ORDER BY n.batch_id DESC LIMIT 0 * :newest + 1")
          for name in ("packable", "begin_pack"))
    ),
    "a header goes with all that name it":
        sql("collect.remove_runs", "AND s.segment_id < ALL", "AND s.dropped_at IS NOT NULL OR s.segment_id < ALL"),
    "a late finalizer writes no marker beside a packed one":
        code("finalize:_finalize", 'current["status"] == BatchStatus.FINALIZED'),
    "markers are removed under the pipeline's lock":
        code("collect.pack:_finish", "pipelines.lock(connection, pipeline)", new="None"),
    "only batches that committed count as newest": all_of(
        *(sql(f"collect.{name}", "AND n.status IN ('committed', 'finalized')")
          for name in ("packable", "begin_pack"))
    ),
    "one claim covers what others did":
        sql("collect.extend_claims", "SET span = int8range(s.start, s.\"end\"),", "SET"),
    "what was replaced is read and judged anew": gives("runs.replay:replaced_parts", []),
    "a later replay takes the newest verdicts":
        sql("replay.roots", "COALESCE(n.judged_by, n.batch_id) AS", "b.batch_id AS"),
    "what others have judged is not judged anew": gives("runs.replay:_refuse_apart"),
    "an acceptance is of one output":
        sql("sealed.readers", "WHERE p.pipeline_id", "WHERE p.retired_at IS NULL AND p.pipeline_id"),
    "what was accepted is no replay's": sql("replay.apart", "OR offered", "OR false"),
    "what a replay has claimed is no new content":
        sql("sealed.readers", "b.replays IS NOT NULL AND NOT EXISTS", "false AND NOT EXISTS"),
    "plan leaves alone what an open batch has claimed": code(
        "sources.pipeline.matching:judge",
        "waits = {\n        UpstreamProgress.ALIVE: BatchDecision.WAIT,", new="waits = {",
    ),
    "an orphan goes with the content that it claimed": all_of(
        code("plan:_write", "else matched.released_batches", new="else ()"),
        code("plan.survey:take_survey", "[*matched.released_batches]", new="[]"),
    ),
    "a batch whose marker is gone holds up new ones":
        gives("sources.pipeline.matching:_missing", []),
    "content that is claimed stays its partition's":
        sql("partitions.update", "OR NOT EXISTS", "OR true OR NOT EXISTS"),
    "a claim commits with its partition's content": code(
        "commit:_decide", 'attempt_now["replaced"] is not None'
    ),
    "a replay of what was replaced again is planned anew": code(
        "runs.replay:abandon_outdated",
        "batch.replays and replaced_parts(ledger, spec, batch.batch_id)",
    ),
    "a part without rows is read as that":
        sql("replay.claim", "JOIN made USING (name)", 'JOIN made USING (name) WHERE f."end" > 0'),
    "what follows is replayed once": gives("runs.replay:follows", (True, None)),
    "a chain that cannot follow is not begun": gives("runs.downstream:refuse"),
    "what was read under a batch's name is not read in another form":
        gives("sources.pipeline.matching:judge", "go on"),
    "a file of a batch is proven before its rows are read":
        gives("sources.pipeline.published:OutputFile.is_whole", True),
    "a record of no window is set aside": all_of(
        gives("stage.read:timeless", ((), [])), gives("stage.together:timeless", ((), []))
    ),
    "what transforms gave can be counted": gives("spark.engine:_check_aggregate"),
    "partial rows stand for all survivors": code(
        "stage.account:sum_up", "not job.spec.transforms and stand_for != counts.survivors"
    ),
    "a sum that is too large is refused": gives("stage.combine:_is_safe", True),
    "floats are not added up": code("declare.aggregate:Function.problem", "at.is_floating(kind)"),
    "what is counted does not change":
        gives("pipeline.identity:_counted", {"window": None, "aggregate": None}),
    "a view takes no other's name": gives("sinks.postgres.view:check_names"),
    "a batch of other rules is not proven":
        code("audit.reading:Reading._dialect", "marker.parser_rules != PARSER_RULES"),
    "windows are counted again":
        sql("audit.windows", "WHERE miscounted IS NOT NULL OR altered IS NOT NULL", "WHERE false"),
    "a record has one value under the names of a column":
        code("formats.jsonl:_merge_names", "np.flatnonzero(valid & merged.is_valid().to_numpy())",
             new="np.flatnonzero([])"),
    "no batch of an interval is left out of its replay": gives("runs.replay:_check_within"),
    "a replay looks at headers first": all_of(
        gives("sources.files.source:FilesSource.check_columns"),
        gives("sources.sealed.source:SealedSource.check_columns"),
    ),
    # It is refused where it is planned, and where it is cast.
    "a column that would lose is refused": all_of(
        gives("formats.parquet:misfits", ([], "")),
        code("formats.exact:cast_exactly", "not _is_like(array.type, declared)", user="formats.parquet"),
    ),
    "the name of a moved file is free":
        gives("sources.files.parquet:ParquetFiles.is_archived", False),
    "names of writers' notes are not read": code(
        "plan.partitions:without_private", "item.name not in hidden", new="True"
    ),
    "old times of old writers are dead letters": gives("formats.parquet:calendar_limits", {}),
    "what is written on leaves its time open":
        code("plan.covered:with_growing", "open_from = min(begun, default=None)",
             new="open_from = None"),
    "a file that never rests is refused":
        code("plan.covered:with_growing",
             "since < start - (request.interval[1] - request.interval[0])"),
    "files of a Delta table are not read": gives("sources.files.listing:_check_tables"),
    "objects of a Delta table are not read": gives("sources.objects.listing:_check_tables"),
    "another day's plan judges refused files again":
        code("sources.files.offers:_judge_file", "file.path in doubtful"),
    "another day's plan judges refused sealed parts again":
        code("sources.sealed.matching:match", "part.name in doubtful"),
    "a plan lists late objects of earlier folders":
        code("plan.survey:take_survey", "narrow(request.listed", new="narrow(request.window",
             user="plan"),
    "a file within the delay leaves it open":
        sql("plan.covers", "WHEN EXISTS", "WHEN false AND EXISTS"),
    "an INT96 that Arrow wraps is a dead letter": gives("formats.parquet:_year_faults", ()),
    "a type that readers take for nothing is refused":
        gives("formats.parquet:_has_hidden_values", False),
    "a refused copy is remembered": sql("partitions.refused", "WHERE ", "WHERE false AND "),
    "what cannot be looked for keeps its path and its content":
        other("sources.files.gather:recognise", unsure_is_new),
    # A folder that cannot be read is taken for an empty one.
    "gone is decided from the whole folder":
        other("sources.files.listing:FileListing.complete", lambda _: property(lambda _: True)),
    # They stay as they are, and may be sealed and committed.
    "siblings of the winner are lost":
        sql("commit.win_attempt", "status IN ('running', 'staged')", "false"),
    "size and checksum decide, not existence":
        other("sinks.linked:LinkedFiles._presence", presence_by_name),
    "a final name is never replaced": other("storage:link_new", replacing_link),
    "pinned payload stays": sql("catalog.deletable_runs", "a.started_at <= r.retired_at", "false"),
    "only a running attempt stores ids": sql("catalog.share_attempt", "WHERE status = 'running'"),
    "a task's ledger has its attempt":
        code("stage.shard:ledger_of", '[row["started_at"] for row in attempts] != [job.began_at]'),
    "what tasks made is linked before it is staged": gives("stage:check_links_of"),
    "a sink with traces is refused": gives("archive.ownership:refuse_traces"),
    "sequences pass what files hold":
        sql("adopt.pass_numbers", "GREATEST(:batch_max", "LEAST(:batch_max"),
    "a batch has one row in semel_batch": all_of(
        sql("postgres.create_batches", f"PRIMARY KEY {KEY},"),
        sql("postgres.note", f"ON CONFLICT {KEY} DO NOTHING"),
    ),
    "a batch that landed is known by its digest":
        code("sinks.postgres.sink:PostgresSink.query_presence", 'note["digest"] == won.digest', new="True"),
    # The row is committed before the batch's.
    "a batch and its row in semel_batch land together": code(
        "sinks.postgres.sink:PostgresSink._begin_landing",
        "facts = examine(", new="connection.commit()\n    <old>",
    ),
    "rows are counted before they land": code("sinks.staged:check_count", "landed != expected"),
    "what lands is durable":
        sql("postgres.settings", "set_config('synchronous_commit', 'on', true),"),
    "a row replaces earlier ones only":
        sql("postgres.upsert", "WHERE coalesce(stored._semel_seq, 0) < excluded._semel_seq"),
    "rows are written in the order of the key": sql("postgres.upsert", "ORDER BY {key}"),
    "one at a time makes tables": sql("postgres.lock_schema", "pg_advisory_xact_lock(", "abs("),
    # The table is looked at, and not held.
    "a table's columns stay as they were looked at":
        sql("postgres.hold_table", "LOCK TABLE {table} IN ROW EXCLUSIVE MODE", "SELECT 1"),
    "a table is looked at before any work": gives("sinks.postgres.sink:PostgresSink.check"),
    "a server is asked before any work": gives("sinks.postgres.sink:PostgresSink._rehearse"),
    "columns that no table has are refused": all_of(
        gives("sinks.postgres.facts:output_problems", []), gives("sinks.postgres.sink:PostgresSink._rehearse")
    ),
    "a table that a crash empties is refused": code(
        "sinks.postgres.facts:_kind_problems", 'name := server["unlogged"]', new="name := None"
    ),
    "rows are measured in stage": other(
        "sinks.postgres.row_check:too_wide", lambda _: lambda _, rows: np.zeros(len(rows), bool)
    ),
    "a batch that no table takes is kept":
        gives("sinks.postgres.sink:output_problems", []),
    "a rule that rewrites is refused in mode upsert": code(
        "sinks.postgres.facts:examine", "rewriting and target.key", user="sinks.postgres.sink"
    ),
    "a key in several rows is found before commit": code(
        "sinks.postgres.facts:_check_key",
        'connection.execute(fill_query("repeats", **values)).fetchone()',
    ),
    "an index that another owner must make is asked for": code(
        "sinks.postgres.facts:_check_key", 'not deferred and not server["is_owner"]'
    ),
    "a right to some columns is no right to the table": code(
        "sinks.postgres.facts:_right_problems", 'server[f"may_{right}"]', new="everywhere"
    ),
    "what batches make together has 38 digits":
        code("reader:windows", "merged.validate(full=True)", new="None"),
    "a text is not null's folder": code(
        "formats.output:folder_value", 'text.lower() == "null"', user="stage.folders"
    ),
    "partial rows have their keys":
        code("stage.part_files:PartWriter.__init__", "and not keys", new=""),
    "a value that no folder holds is a dead letter": gives("stage.folders:refused", []),
    "keys are texts where they are texts": code(
        "sinks.postgres.facts:_fitting_types", "target.counting or field.name in target.key"
    ),
    "a column has its own type": code(
        "pipeline.spec:Spec.of_sink", "self.transforms or self.aggregate"
    ),
    "a text is not cut": gives("sinks.postgres.encode:_is_longer", False),
    "a role's isolation is not taken": code(
        "sinks.postgres.link:open_connection",
        "connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED",
        new="pass", user="sinks.postgres.sink",
    ),
    "rows are looked at in stage":
        other("sinks.postgres.row_check:PostgresRowCheck.__call__", lambda _: lambda *_: []),
    "constraints are met before a batch lands":
        code("sinks.postgres.sink:PostgresSink._begin_landing", "SET CONSTRAINTS ALL IMMEDIATE", new="SELECT 1"),
    # The others are committed first.
    "refused rows are kept before the others land": code(
        "sinks.postgres.sink:PostgresSink.publish_accepting",
        "keep(table)", new="connection.commit()\n            <old>",
    ),
    "a key is in one row of a batch": gives("sinks.postgres.sink:find_duplicate_key"),
    # They are deleted in a transaction of its own.
    "old rows go when the new ones come": code(
        "sinks.postgres.sink:PostgresSink._begin_landing",
        "replacement.delete_replaced(connection, self._target, won)", new="<old>; connection.commit()"
    ),
    "no old row stays beside new ones":
        code("sinks.postgres.replacement:delete_replaced", "if remaining:", new="if False:"),
    "a table is asked for its old rows before any work": gives("sinks.postgres.replacement:check_replaceable", ()),
    "rows that a marker lists are the newest":
        code("sinks.postgres.sink:PostgresSink.rows", "newest := notes.newest", new="newest := 0"),
    "what a table keeps back is counted": gives("sinks.postgres.landing:_check_dropped"),
    "rows without their notes are not doubled": all_of(
        gives("sinks.postgres.batch_notes:refuse_unnoted"), gives("sinks.postgres.batch_notes:refuse_unnoted_batch")
    ),
    "a table has one pipeline's rows": gives("sinks.postgres.batch_notes:refuse_other_owners"),
    "rows of a batch are as many as were put in": gives("sinks.postgres.batch_notes:check_count"),
    "a batch is published by its own declaration": code(
        "finalize:_finalize", "open_stored(stored, ", new="open_stored(spec, "
    ),
    "a target is held against the ledger": all_of(
        other("sinks.note_comparison:compare", lambda _: lambda *_: _nothing()),
        gives("sinks.postgres.batch_notes:refuse_other_owners"),
    ),
    "a marker is missed by what was read before it": code(
        "archive.ownership:check_target",
        "_check_markers(pipeline, lacking,",
        new="_check_markers(pipeline, {one.root for one in expected if one.finalized_at} - marked,",
    ),
    "adopt holds a target against the markers": gives("repair.adopt:compare_target"),
    # The row follows what is declared, as that of a folder does.
    "an address changes by a person's word":
        code(
            "plan.register:_moved", "folder is None and", new="False and",
            user="plan",
        ),
    "as many are erased as a person says":
        code("repair.erasure:_check_number", "total != lacking"),
    "ledger and adopt have the word":
        sql("accept.erase", "ON CONFLICT", "WHERE false ON CONFLICT"),
    "rows that are left are counted":
        code("audit:_Audit._recount", "stated -= marker.erased_rows", new="stated = actual"),
    "what was erased is not computed again": all_of(
        code("runs.replay:_check_replaceable", 'root_row["erased"]'),
        code("stage.replayed:_winner", "marker.erased"),
    ),
    "a moved target is proven by its notes":
        code("repair.accept:accept_moved", "ownership.check_target(", new="(lambda *_: None)("),
}
"""Those whose tests take seconds."""

OF_MINUTES: dict[str, Removal] = {
    "a generation is there once": schema("DROP INDEX semel.batch_generation;"),
    "the output before is retired by the winner's transaction": all_of(
        sql("commit.retire_generation", "AND replaced_by IS NULL"),
        other("commit:_try_commit", retiring_commit),
    ),
    "the marker that is replaced is the one before":
        code("archive.write_marker:_current_marker", "marker.generation < batch.generation - 1"),
    "a marker is kept before it is replaced": gives("archive.write_marker:_keep_aside"),
    # It is taken as it is.
    "what another finalizer kept is made durable":
        code("archive.write_marker:_keep_aside", "sync_folder(path.parent)", new="pass"),
    # The old marker goes, then the new one comes.
    "a marker is replaced in one step":
        code("storage.folder:swap", "os.rename(", new=f"os.unlink(path){POINT}<old>", user="storage"),
    # The new marker comes under another name, then it takes the old one's.
    "outputs of one batch have one marker": code(
        "storage.folder:swap",
        "os.rename(temporary, path)", new=f"os.link(temporary, {ASIDE}){POINT}<old>; os.unlink({ASIDE})",
        user="storage",
    ),
    "a marker that replaced another is durable before `finalized`":
        code("archive.write_marker:replace_marker", "sync_folder(path.parent)", new="pass"),
    "the folder goes from which the marker came": gives("storage:fence_off"),
    # A folder into which somebody wrote meanwhile is left.
    "that folder is gone, and not only removed":
        code("storage.folder:fence_off", "if not os.path.lexists(folder)", new="if True", user="storage"),
    "who finds files gone asks whether it is late":
        code("finalize:finalize", 'now["status"] == BatchStatus.FINALIZED'),
    "replaced files stay for who reads them": sql(
        "collect.replaced",
        "r.finalized_at < clock_timestamp() - make_interval(secs => :keep_seconds)",
        ":keep_seconds >= 0",
    ),
    # Collect does not look at the marker that is there.
    "files that the marker lists stay":
        code("collect:_check_replaced", "marker.generation <= old.generation or", new="False and"),
    "files that went do not come back":
        code("sinks.files.sink:Folder.remove_files", "sync_folder(folder)", new="pass"),
    # What was looked at before the lock counts; so of an admission.
    "a replay looks again under the lock":
        code(
            "runs.replay:plan",
            'now[0]["newest"] != root_row["newest"] or _open_replay(connection, root)',
        ),
    "an admission is there once": schema("DROP INDEX semel.batch_admission;"),
    "a pipeline keeps its guarantee": sql("pipelines.guarantee", "AND commit_seq = 0"),
    "the guarantee is looked at under the lock": code(
        "commit:_decide", 'batch.at_least_once != (now["exact_from"] is None)'
    ),
    "what has committed and was not read stops exact": sql(
        "exact.unread", "commit_seq IS NOT NULL", "false"
    ),
    "ids of a batch that the ledger does not have are not taught":
        code("repair.exact:_switch", "_refuse_unknown(", new="(lambda *_: None)("),
    "open attempts are lost when ids are taught": sql(
        "exact.lose_attempts", "a.status IN ('running', 'staged')", "a.status IN ('running')"
    ),
    "an admission looks again under the lock":
        code("runs.requarantine:_write", '(now and now["batch_id"]) != (last and last["batch_id"])'),
    # Messages are committed first, and their note behind them.
    "messages and their note land together": code(
        f"{LANDING}:_Landing._write_note",
        "self._producer.produce(self._target.control",
        new="self._producer.commit_transaction(30); self._producer.begin_transaction(); <old>",
    ),
    "rows are counted before a note says all": gives(f"{LANDING}:check_count"),
    "a batch is not written beside its note": gives(f"{LANDING}:_batch_note"),
    # Each producer has a transactional id of its own.
    "a batch's producer fences the one before": other(
        "sinks.kafka.target:KafkaTarget.transactional_id",
        lambda original: lambda *words: f"{original(*words)}.{secrets.token_hex(4)}",
    ),
    "a note is known by its digest":
        code("sinks.kafka.sink:KafkaSink.query_presence", "note.digest != won.digest"),
    # It ends where the first open transaction begins.
    "the control topic is read to its end":
        code("sinks.kafka.ends:_offsets", "committed=False", new="committed=True"),
    "an aborted note is none":
        code("sinks.kafka.control:committed_messages", '"read_committed"', new='"read_uncommitted"'),
    # One that was made anew under a name is taken for the one before.
    "a restored control topic is read from its start":
        code("sinks.kafka.ends:TopicEnds.written_since", "or earlier.topic_id != self.topic_id", new=""),
    # One that leads a partition after another is believed to have all of it.
    "what another leader has is read from its start":
        code("sinks.kafka.ends:TopicEnds.written_since", "leader is not None and", new="True or"),
    "who was fenced waits": gives(f"{LANDING}:_wait_for_rival"),
    "a topic is looked at before any work": gives("sinks.kafka.sink:KafkaSink.check"),
    "messages are measured in stage": gives("sinks.kafka.row_check:KafkaRowCheck._large"),
    "a lost control topic is not made anew":
        code("sinks.kafka.facts:_missing_topics", "if exists and any(", new="if False and any("),
    "a topic takes no replay": gives("sinks.kafka.sink:KafkaSink.check_replace", ()),
    "refused rows are kept":
        code("sinks.kafka.sink:KafkaSink.publish_accepting", "keep(rows)", new="pass"),
    "rows of a batch are all there":
        code("sinks.kafka.reading:rows", "if first > start or last < end:", new="if False:"),
    "retention explains what it deletes alone":
        code("sinks.kafka.reading:_deletion_error", "0 <= limits_now", new="True or <old>"),
    "compaction explains gaps alone":
        code("sinks.kafka.reading:_compaction_error", "missing <= gaps", new="True"),
    "a damaged note is its own batch's trouble":
        code("sinks.kafka.control:_notes", "notes[batch] = error", new="raise"),
    "a topic's newest note is looked for":
        code("sinks.kafka.control:newest_notes", "if since and has and has in (", new="if since and None is not ("),
    "the audit reads the whole topic": other("sinks.kafka.reading:strays", lambda _: lambda *_: {}),
    "a cut begins where the last one ended":
        code(f"{LANDING}:_Landing._blocks", "self._note.rows", new="0"),
    "a load job is known by the manifest's digest":
        code(f"{LOADS}:job_id", "-{won.digest[:12]}", new=""),
    "a job is asked for in its location":
        code(f"{LOADS}:_get_job", "target.location", new='"US"'),
    "a job is waited for":
        code(f"{LOADS}:land", "_check_job(target, won, _wait_for_job(client, target, won, job))", new="pass"),
    "a lost answer is no failure":
        code(f"{LOADS}:_insert_job", "failed = error ", new="raise target.translate_error(error) "),
    "rows are looked for beside the job":
        code(f"{LOADS}:land", "count(client, target, won.batch_id)"),
    "rows that are refused are not sent again": gives(f"{LOADS}:_may_retry", True),
    "a table of BigQuery is looked at before any work":
        other("sinks.bigquery.facts:_table_problems", lambda _: lambda *_: iter(())),
    "a time that BigQuery does not take is found in stage":
        gives("sinks.bigquery.refused:BigQueryRowCheck.__call__", ()),
    "rows are counted before they are loaded": gives(f"{LOADS}:check_count"),
    "rows of a table of BigQuery are counted":
        code("sinks.bigquery.sink:BigQuerySink.rows", "count != published"),
    "a commit is known by the manifest's digest":
        code(f"{COMMITS}:app_id", ":{won.digest}", new=""),
    "a commit names its batch":
        code(f"{COMMITS}:_commit", "[Transaction(app_id(won), 1)]", new="[]"),
    "a commit is not tried again by the library":
        code(f"{COMMITS}:_commit", "max_commit_retries=0", new="max_commit_retries=9"),
    "files that a vacuum took are put again":
        code(f"{COMMITS}:presences", "name in active and table.file_size(name) is None"),
    "a file that is gone is there again before anything is asked": gives(f"{COMMITS}:restore_files"),
    "a file is put back with the bytes that the log says":
        code(f"{COMMITS}:_put", "expected is not None and expected != written"),
    "a commit without its rows has not landed":
        code(f"{COMMITS}:presences", "len(active) < len(won.files)"),
    "what a folder's log says is synced": gives("sinks.delta.table:DeltaTarget.sync_log"),
    "rows are looked for beside the commit":
        code(f"{COMMITS}:presences", "table.count(now, won.batch_id)", new="0"),
    "no credential of the environment stands before a connection's": code(
        "clients.objects.access:Access.configuration",
        "os.environ.get(variable) and option not in config",
        new="False",
    ),
    "a Delta table is looked at before any work":
        other("sinks.delta.table:DeltaTarget._table_problems", lambda _: lambda *_: iter(())),
    "a Delta table that was made meanwhile is looked at":
        code("sinks.delta.table:DeltaTarget.open_or_create", "\n    table = self.examine(schema)",
             new="\n    table = self.open_newest()"),
    "a name that clients decode is refused": gives("sinks.delta.spec:name_problem"),
    "a file has bounds of all its columns, or none":
        code("sinks.delta.statistics:Statistics.text",
             "any(both is None or None in both for both in bounds.values())"),
    "a number's bound has all its digits":
        code("sinks.delta.statistics:_json", 'f"{value:f}"', new="repr(float(value))"),
    "a bound of text is no less than what it is cut from":
        code("sinks.delta.statistics:_high", "_above(value[:TEXT_MAX])", new="value[:TEXT_MAX]"),
    "rows of a Delta table are counted":
        code("sinks.delta.sink:DeltaSink.rows", "count != published"),
    "a task asks for the topic's id": gives("sources.kafka.claim_checks:check_topic"),
    "a deleted start is an error for a task":
        other(READING, lambda old: old | {"auto_offset_reset": "earliest"}),
    "a task reads to the claim's end":
        code(MESSAGES, "end_now is not None and end_now < end", user="sources.kafka.source"),
    "a silent topic is asked for": code(MESSAGES, "check_topic()", new="pass", user="sources.kafka.source"),
    "tasks read what is committed":
        other(READING, lambda old: old | {"isolation_level": "read_uncommitted"}),
    "another leader is asked for what was read":
        gives("sources.kafka.epochs:_query_epoch_ends", {}),
    "the same end under another leader is looked at": other(
        "sources.kafka.topics:FoundPartition.fingerprint",
        lambda _: property(lambda found: str(found.end)),
    ),
    "another leader is asked for what was claimed": gives("sources.kafka.claim_checks:_check_epochs"),
    "a task reads no record of a later leader": gives("sources.kafka.claim_checks:check_written"),
    "offsets that are given to others are refused":
        code("sources.kafka.epochs:first_lost_offsets", "verdict is EpochVerdict.LOST"),
    "a topic that was made anew waits for a person":
        other("sources.kafka.matching:judge", begin_under_any_name),
    "unclaimed offsets that are gone are refused":
        code("plan.survey:take_survey", "missing = [o for o in offers if", new="missing = [o for o in () if"),
    "what is left may begin without a record": code(
        "sources.kafka.edges:find_edges",
        "since[place] == first[place]", user="sources.kafka.matching",
    ),
    "what is missing is looked at under the lock":
        code("repair.losses:accept_loss", "if vanished and", new="if False and"),
    "a partition is known at first sight":
        code("sources.kafka.matching:match", "if partition.source_partition is None:", new="if False:"),
    "no offset for a time is no end where records are left":
        gives("sources.kafka.edges:_check_deletion"),
    "an interval has its offsets alone": gives("sources.kafka.matching:find_edges"),
    "a message that is ahead ends no interval":
        code("sources.kafka.edges:_Log.edges", "votes=VOTES, now=now", new="votes=1"),
    "what earlier intervals took ends none again": code(
        "sources.kafka.edges:find_edges",
        "max(until[place], at, taken_to.get(place, 0))", new="max(until[place], at)",
    ),
    "an interval begins at its own records": code(
        "sources.kafka.edges:find_edges",
        "if start.ms >= milliseconds(window[1])", new="if False",
    ),
    "the mark of a transaction has no time":
        code("sources.kafka.edges:_Log.not_older", "if head.ms < since", new="if False"),
    "a search begins behind earlier intervals alone":
        sql("kafka.reached", "AND interval_end <= :until"),
    "only a registry's own word is a verdict": code(
        "clients.kafka.registry:Registry._request",
        "error.http_status_code == 404 and error.error_code in _UNKNOWN", new="True",
    ),
    "a value ends where its record does":
        code("formats.avro:_decode_value", "if extra:", new="if False:"),
    "an audit misses a schema that is gone": gives("audit.reading:Reading._check_schemas"),
}
"""Those that `make proof` alone takes out."""

REMOVALS = OF_SECONDS | OF_MINUTES
