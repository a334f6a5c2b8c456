"""The guards of the protocol: what goes wrong without each, and which test attacks the real one.

A guard alone is often not needed, for another one stands behind it: then a row takes both out.
"""

from collections.abc import Callable
from dataclasses import dataclass

import model_batch as batch
import model_catalog as catalog
import model_claims as claims
import model_finalize as final
import model_losses as losses
import model_replaced as replaced
import model_replay as replay
from model_search import STUCK, Model

TWINS = "chaos/test_twins.py::"
ORDERS = "chaos/test_interleavings.py::"
LATE = "integration/sources/test_late.py::"
RULES = "chaos/test_rules.py::"
FILES = "chaos/test_rules_of_files.py::"
PLAYED = "chaos/test_counterexamples.py::"
REPLAYS = "chaos/test_replay_races.py::"


@dataclass(frozen=True, kw_only=True)
class Scope:
    """One model at one size. `states_min`: fewer would mean that it lost a part of the protocol."""

    model: Callable[..., Model]
    options: dict[str, object]
    states_min: int
    soak: bool = False

    def without(self, *guards: str) -> Model:
        return self.model(guards, **self.options)


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Guards that are taken out together, the damage that follows, and the tests that replay it."""

    without: tuple[str, ...]
    scope: str
    damage: str
    rules: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return " + ".join(self.without)


def _scope(model: type[Model], states_min: int, *, soak: bool = False, **options: object) -> Scope:
    return Scope(model=model, options=options, states_min=states_min, soak=soak)


SCOPES = {
    "claims": _scope(claims.ClaimsModel, 70_000),
    "losses": _scope(losses.LossesModel, 5_000, plans=1, accepts=2, cells=2),
    "batch": _scope(batch.BatchModel, 10_000),
    "catalog": _scope(catalog.CatalogModel, 7_000),
    "forgotten": _scope(catalog.CatalogModel, 40_000, scope="forgotten"),
    "drop": _scope(catalog.CatalogModel, 5_000, scope="drop", attempts_max=2),
    "new segment": _scope(catalog.CatalogModel, 5_000, scope="new", attempts_max=2),
    "finalize": _scope(final.FinalizeModel, 2_000),
    "replay": _scope(replay.ReplayModel, 1_000),
    "replaced marker": _scope(replaced.ReplacedModel, 10_000),
    "late finalizer": _scope(
        replaced.ReplacedModel, 30_000, scope="late", newest=3, outages_max=0
    ),
    "larger replay": _scope(replay.ReplayModel, 5_000, soak=True, replays_max=5),
    "larger replaced marker": _scope(replaced.ReplacedModel, 300_000, soak=True, newest=3),
    "three finalizers": _scope(replaced.ReplacedModel, 200_000, soak=True, finalizers=3),
    "larger late finalizer": _scope(
        replaced.ReplacedModel, 150_000, soak=True, scope="late", newest=3
    ),
    "three late finalizers": _scope(
        replaced.ReplacedModel, 500_000, soak=True, scope="late", newest=3, finalizers=3,
        outages_max=0,
    ),
    "losses of two plans": _scope(
        losses.LossesModel, 100_000, soak=True, plans=2, accepts=1, cells=2
    ),
    "larger losses": _scope(
        losses.LossesModel, 50_000, soak=True, plans=1, accepts=2, cells=3
    ),
    "larger batch": _scope(batch.BatchModel, 200_000, soak=True, attempts_max=3),
    "larger catalog": _scope(catalog.CatalogModel, 80_000, soak=True, attempts_max=4),
    "larger drop": _scope(catalog.CatalogModel, 70_000, soak=True, scope="drop"),
    "larger new segment": _scope(catalog.CatalogModel, 90_000, soak=True, scope="new"),
    "larger finalize": _scope(final.FinalizeModel, 3_000, soak=True, outages_max=2),
}


def _guard(without: str, scope: str, damage: str, rules: str, *tests: str) -> Guard:
    names = tuple(without.split(" + "))
    return Guard(without=names, scope=scope, damage=damage, rules=rules, tests=tests)


_PLAN = TWINS + "test_plan_twice_at_once"
_WRITING = PLAYED + "test_a_planner_waits_for_one_that_writes"
_BESIDE = TWINS + "test_collect_beside_an_open_attempt"
_COPY = PLAYED + "test_a_copy_of_a_task_sees_what_the_first_saw"
_POWER = FILES + "test_what_is_said_to_be_there_outlasts_a_loss_of_power"
_AT_ONCE = REPLAYS + "test_two_requests_plan_at_once"
_SILENT = REPLAYS + "test_a_silent_replay_is_given_up_while_its_driver_goes_on"
_LATE = REPLAYS + "test_a_late_finalizer_changes_nothing"
_LASTS = REPLAYS + "test_what_a_replay_replaces_outlasts_a_loss_of_power"
_READ = "chaos/test_replay_readers.py::test_a_reader_at_each_point"
_KEPT = REPLAYS + "test_files_go_when_nobody_can_be_reading_them"
_TOLD = "integration/sources/test_kafka_source.py::test_what_retention_took_is_told_until_accepted"
_ACCEPTS = "chaos/test_kafka_losses.py::test_two_accepts_at_once"
_PLANNED = "chaos/test_kafka_losses.py::test_an_accept_beside_a_plan"

GUARDS = (
    # plan
    _guard("pipeline lock", "claims", claims.REFUSED, "P2", _WRITING),
    _guard("pipeline lock + exclusion constraint", "claims", claims.CLAIMED_TWICE, "P3", _WRITING),
    _guard("re-read under the lock", "claims", claims.REFUSED, "P2", _PLAN),
    _guard("re-read under the lock + exclusion constraint + request key", "claims",
           claims.CLAIMED_TWICE, "P2, P3", _PLAN),
    _guard("re-read under the lock + exclusion constraint + request key", "claims",
           claims.TWO_BATCHES, "P5", _PLAN),
    _guard("plan is written down", "claims", claims.UNREAD, "P1",
           "integration/sources/test_bad_changes.py::"
           "test_growth_between_plan_and_stage_is_the_next_batchs"),
    # what is gone before it is read
    _guard("gone is refused", "losses", STUCK, "KS3", _TOLD),
    _guard("a deleted start is an error", "losses", losses.UNREAD, "KS1",
           "chaos/test_kafka_source_faults.py::test_what_a_task_reads_is_deleted"),
    _guard("claims are not lost", "losses", losses.TWICE, "A5", _PLANNED),
    _guard("losses are subtracted", "losses", losses.REFUSED, "A5", _TOLD),
    _guard("losses are subtracted + losses exclude losses", "losses", losses.TWICE, "A5", _TOLD),
    _guard("looked at again", "losses", losses.REFUSED, "A5", _ACCEPTS),
    _guard("looked at again + losses exclude losses", "losses", losses.TWICE, "A5", _ACCEPTS,
           _PLANNED),
    _guard("looked at again + claims exclude claims", "losses of two plans", losses.TWICE, "P2, P3",
           _PLAN),
    _guard("floor waits for planned", "losses", losses.UNTOLD, "KS3, A6",
           "integration/sources/test_kafka_source.py::test_a_plan_does_not_pay_for_its_history"),
    # attempts
    _guard("pipeline lock", "batch", batch.OPEN, "S1", PLAYED + "test_stage_and_abandon"),
    _guard("pipeline lock", "batch", batch.REFUSED, "S1", PLAYED + "test_two_attempts_begin"),
    _guard("abandon takes the lock", "batch", batch.OPEN, "A2", PLAYED + "test_stage_and_abandon"),
    _guard("states are expected", "batch", batch.TAKEN_TWICE, "C7, A1",
           ORDERS + "test_commit_and_abandon"),
    _guard("states are expected", "batch", batch.REFUSED, "C7",
           ORDERS + "test_two_commits_of_one_batch"),
    _guard("states are expected + one winner in the database", "batch", batch.WON_TWICE, "C7",
           ORDERS + "test_two_commits_of_one_batch"),
    _guard("siblings are lost at once", "batch", batch.OPEN, "C7",
           TWINS + "test_two_attempts_of_one_batch"),
    _guard("ids only while running", "batch", batch.ZOMBIE_IDS, "S9",
           TWINS + "test_zombie_attempt_is_told",
           "integration/ledger/test_catalog.py::test_a_lost_attempt_stores_nothing"),
    _guard("input digest", "batch", batch.OTHER_BYTES, "S13",
           PLAYED + "test_twins_that_read_other_bytes"),
    _guard("digest under the lock", "batch", batch.OTHER_BYTES, "S13",
           PLAYED + "test_twins_that_read_other_bytes"),
    _guard("unknown stays unknown", "batch", batch.NO_FILES, "C11",
           PLAYED + "test_a_commit_on_its_way_keeps_its_files",
           "chaos/test_ledger_away.py::test_a_commit_is_cut"),
    _guard("folders of the lost", "batch", batch.NO_FILES, "G6",
           PLAYED + "test_a_commit_on_its_way_keeps_its_files", _BESIDE),
    # ids
    _guard("pipeline lock", "catalog", catalog.GONE, "S2, G2",
           PLAYED + "test_an_attempt_begins_beside_collect"),
    _guard("pinned list", "catalog", catalog.ALARM, "S3", _COPY),
    _guard("pinned list + same ids", "catalog", catalog.TWICE, "S3, S9", _COPY,
           "integration/ledger/test_catalog.py::test_a_twin_with_other_ids_is_an_error"),
    _guard("compare", "catalog", catalog.TWICE, "C2",
           TWINS + "test_common_ids_committed_in_both_orders"),
    _guard("sequence check", "catalog", catalog.TWICE, "C4", ORDERS + "test_two_commits", _BESIDE),
    _guard("merged seq_max", "catalog", catalog.TWICE, "C2", ORDERS + "test_commit_and_merge"),
    _guard("merge is one transaction", "catalog", catalog.TWICE, "G3",
           PLAYED + "test_an_attempt_begins_beside_collect"),
    _guard("payload is kept", "catalog", catalog.GONE, "G4", ORDERS + "test_commit_and_merge",
           _BESIDE),
    _guard("payload is kept + missing is an error", "catalog", catalog.TWICE, "G4, S3",
           "integration/ledger/test_catalog.py::test_damage_is_an_error_and_never_no_ids"),
    _guard("forgotten before retirement", "forgotten", catalog.TWICE, "G1",
           PLAYED + "test_a_late_copy_beside_a_retirement"),
    _guard("forgotten at commit", "forgotten", catalog.TWICE, "C5",
           RULES + "test_a_bucket_that_was_collected_takes_no_commit"),
    _guard("what nobody read is open", "forgotten", catalog.LATE, "G1",
           LATE + "test_what_was_never_read_is_not_late"),
    _guard("forgotten since it began", "forgotten", catalog.ALARM, "C5",
           LATE + "test_a_batch_around_what_is_forgotten_commits"),
    _guard("drop asks for attempts", "drop", catalog.GONE, "G5", ORDERS + "test_commit_and_drop"),
    _guard("attempt before segment", "new segment", catalog.GONE, "G5",
           PLAYED + "test_a_span_ends_while_an_attempt_begins"),
    # names
    _guard("checksums decide", "finalize", final.NOT_WHOLE, "F2",
           "integration/sinks/test_contract_sinks.py::test_damaged_staged_files_are_loud"),
    _guard("names are never replaced", "finalize", final.REPLACED, "F3",
           PLAYED + "test_a_name_is_taken_before_the_link"),
    _guard("look again", "finalize", final.NOT_WHOLE, "F9",
           PLAYED + "test_a_name_is_taken_before_the_link"),
    _guard("files before the marker", "finalize", final.NOT_WHOLE, "F5", _POWER),
    _guard("folders are fsynced", "finalize", final.NOT_WHOLE, "F5", _POWER),
    _guard("marker is whole", "finalize", final.HALF_MARKER, "F6",
           "chaos/test_kill.py::test_killed_and_killed_again"),
    _guard("marker before finalized", "finalize", final.UNMARKED, "F5, F6", _POWER),
    _guard("staged names stay", "finalize", final.NOWHERE, "F8",
           FILES + "test_a_crash_may_forget_the_final_names"),
    _guard("folder goes last", "finalize", final.NOWHERE, "G6",
           ORDERS + "test_replay_of_a_committed_run_and_collect"),
    # replay: generations
    _guard("pipeline lock", "replay", replay.REFUSED, "RP2", _AT_ONCE),
    _guard("pipeline lock + one of a generation", "replay", replay.AT_WORK, "RP2", _AT_ONCE,
           "integration/replays/test_replay.py::test_generations_never_fork"),
    _guard("pipeline lock + one of a generation + the one before is finalized", "replay",
           replay.FORK, "RP2, RP4", _AT_ONCE),
    _guard("states are expected", "replay", replay.REFUSED, "C7", _SILENT),
    _guard("states are expected + one of a generation", "replay", replay.AT_WORK, "C7, RP2",
           _SILENT),
    _guard("the one before is finalized", "replay", replay.UNFINISHED, "RP4",
           "integration/replays/test_replay.py::test_two_replays_of_one_batch"),
    _guard("retired by the winner", "replay", replay.BY_NONE, "RP4",
           REPLAYS + "test_a_commit_that_does_not_land_retires_nothing"),
    # replay: markers
    _guard("files before the marker", "replaced marker", replaced.MISSING, "F5", _LASTS),
    _guard("fence", "late finalizer", replaced.OLDER, "RP6", _LATE),
    _guard("fence of the root", "replaced marker", replaced.STRAY, "RP6, RP7", _LATE),
    _guard("gone is proven", "late finalizer", replaced.OLDER, "RP6",
           REPLAYS + "test_a_folder_that_is_written_to_is_removed_again"),
    _guard("told before the look", "late finalizer", replaced.UNTOLD, "RP5", _LATE),
    _guard("fence before the look + told before the look", "late finalizer", STUCK, "RP5, RP6",
           _LATE),
    _guard("look at the generation", "replaced marker", replaced.FOREIGN_GONE, "RP5",
           REPLAYS + "test_an_older_marker_is_not_replaced"),
    _guard("look at the generation", "replaced marker", replaced.WRONG_KEPT, "RP5",
           REPLAYS + "test_an_older_marker_is_not_replaced"),
    _guard("kept before", "replaced marker", replaced.LOST_KEPT, "RP5", _LASTS),
    _guard("kept before + kept as seen", "replaced marker", replaced.WRONG_KEPT, "RP5", _LASTS),
    _guard("kept durably", "replaced marker", replaced.LOST_KEPT, "RP5", _LASTS),
    _guard("marker is whole", "replaced marker", replaced.HALF, "F6", _LASTS),
    _guard("one rename", "replaced marker", replaced.NEITHER, "RP5", _READ),
    _guard("one name", "replaced marker", replaced.BOTH, "RP5", _READ),
    _guard("marker before finalized", "replaced marker", replaced.OLDER, "F5, F6", _LASTS),
    _guard("found is durable", "replaced marker", replaced.OLDER, "F5, F6", _LASTS),
    _guard("collect asks the ledger", "replaced marker", replaced.MISSING, "RP7", _KEPT),
    _guard("collect asks the ledger + marker lists none", "replaced marker", replaced.MISSING,
           "RP7", _KEPT,
           "integration/replays/test_replay.py::test_files_that_count_are_never_removed"),
    _guard("keep_replaced", "replaced marker", replaced.BENEATH, "RP7", _KEPT),
    _guard("unlinks are durable", "replaced marker", replaced.STRAY, "RP7", _LASTS),
)  # fmt: skip
"""Every guard of every model, with each damage that it prevents."""
