"""The guards of replays, as in `guards`."""

import removals_of_replay as without
from guard import Guard

_RACES = "tests/chaos/test_replay_races.py"
_LASTS = f"{_RACES}::test_what_a_replay_replaces_outlasts_a_loss_of_power"
_LATE = f"{_RACES}::test_a_late_finalizer_changes_nothing"
_READ = "tests/chaos/test_replay_readers.py::test_a_reader_at_each_point"
_VERBS = "tests/integration/test_replay.py"

OF_REPLAY = (
    Guard(
        name="a generation is there once",
        rules="RP2",
        remove=without.generations_may_fork,
        tests=(f"{_VERBS}::test_generations_never_fork",),
    ),
    Guard(
        name="the output before is retired by the winner's transaction",
        rules="RP4",
        remove=without.retired_ahead,
        tests=(f"{_RACES}::test_a_commit_that_does_not_land_retires_nothing",),
    ),
    Guard(
        name="the marker that is replaced is the one before",
        rules="RP5",
        remove=without.any_marker_is_replaced,
        tests=(f"{_RACES}::test_an_older_marker_is_not_replaced",),
    ),
    Guard(
        name="a marker is kept before it is replaced",
        rules="RP5",
        remove=without.nothing_is_kept,
        tests=(f"{_LATE}[2-finalize.before_rename-1-cleaned]",),
    ),
    Guard(
        name="what another finalizer kept is made durable",
        rules="RP5",
        remove=without.kept_is_not_durable,
        tests=(_LASTS,),
    ),
    Guard(
        name="a marker is replaced in one step",
        rules="RP5",
        remove=without.two_steps,
        tests=(_READ,),
    ),
    Guard(
        name="outputs of one batch have one marker",
        rules="RP5",
        remove=without.a_name_of_its_own,
        tests=(_READ,),
    ),
    Guard(
        name="a marker that replaced another is durable before `finalized`",
        rules="F5 RP5",
        remove=without.replaced_is_not_durable,
        tests=(_LASTS,),
    ),
    Guard(
        name="the folder goes from which the marker came",
        rules="RP6",
        remove=without.folders_stay,
        tests=(f"{_LATE}[2-finalize.before_rename-1-left]",),
    ),
    Guard(
        name="that folder is gone, and not only removed",
        rules="RP6",
        remove=without.folders_that_are_left,
        tests=(f"{_RACES}::test_a_folder_that_is_written_to_is_removed_again",),
    ),
    Guard(
        name="who finds files gone asks whether it is late",
        rules="F9",
        remove=without.late_ones_fail,
        tests=(f"{_LATE}[2-finalize.before_publish-1-cleaned]",),
    ),
    Guard(
        name="replaced files stay for who reads them",
        rules="RP7",
        remove=without.replaced_files_go_at_once,
        tests=(f"{_RACES}::test_files_go_when_nobody_can_be_reading_them",),
    ),
    Guard(
        name="files that the marker lists stay",
        rules="RP7",
        remove=without.listed_files_go,
        tests=(f"{_VERBS}::test_files_that_count_are_never_removed",),
    ),
    Guard(
        name="files that went do not come back",
        rules="RP7",
        remove=without.unlinks_may_come_back,
        tests=(_LASTS,),
    ),
    Guard(
        name="a replay looks again under the lock",
        rules="RP2",
        remove=without.a_replay_is_written_unseen,
        tests=(f"{_RACES}::test_two_requests_plan_at_once",),
    ),
    Guard(
        name="an admission is there once",
        rules="RP9",
        remove=without.admissions_may_fork,
        tests=("tests/integration/test_requarantine.py::test_two_at_once",),
    ),
    Guard(
        name="an admission looks again under the lock",
        rules="RP9",
        remove=without.an_admission_is_written_unseen,
        tests=("tests/chaos/test_requarantine_races.py::test_two_requests_admit_at_once",),
    ),
)
