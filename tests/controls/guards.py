"""The guards of the protocol: which rules each keeps, and which tests must notice its absence.

This is the source of the tables "Guards" in docs/protocol.md, docs/postgres.md and docs/kafka.md (a
test compares them).
"""

import removals as without
from guard import Guard
from guards_of_kafka import OF_KAFKA
from guards_of_replay import OF_REPLAY
from guards_of_targets import OF_TARGETS
from guards_of_topics import OF_TOPICS

CHAOS, INTEGRATION, UNIT = "tests/chaos", "tests/integration", "tests/unit"
CONTRACT = f"{INTEGRATION}/test_contract_sinks.py"
OF_REPLAYS = f"{INTEGRATION}/test_sink_postgres_replay.py"
OF_TABLES = f"{CHAOS}/test_sink_postgres_faults.py"


_ALL = (
    Guard(
        name="pipeline lock",
        rules="S1 S2 C3 G2 A2",
        remove=without.no_pipeline_lock,
        tests=(
            f"{CHAOS}/test_rules_of_files.py::test_id_runs_are_retired_under_the_pipelines_lock",
        ),
    ),
    Guard(
        name="claims read again under the lock",
        rules="P2",
        remove=without.no_reread,
        tests=(f"{CHAOS}/test_twins.py::test_plan_twice_at_once[r2-plan.before_lock]",),
    ),
    Guard(
        name="exclusion constraint on claims",
        rules="P3",
        remove=lambda: without.constraint("claim", "claim_disjoint"),
        tests=(f"{INTEGRATION}/test_constraints.py::test_a_position_is_claimed_once",),
    ),
    Guard(
        name="pinned list",
        rules="S2 S3",
        remove=without.no_pinned_list,
        tests=(f"{CHAOS}/test_time.py::test_a_speculative_task_sees_what_the_first_one_saw",),
    ),
    Guard(
        name="comparison at commit",
        rules="C2",
        remove=without.no_comparison,
        tests=(f"{CHAOS}/test_twins.py::test_common_ids_committed_in_both_orders[order0]",),
    ),
    Guard(
        name="commit sequence looked at under the lock",
        rules="C4",
        remove=without.no_sequence_check,
        tests=(
            f"{CHAOS}/test_twins.py::test_collect_beside_an_open_attempt[commit.after_compare]",
        ),
    ),
    Guard(
        name="garbage-collection watermark looked at by commit",
        rules="C5",
        remove=without.no_floor_check,
        tests=(f"{CHAOS}/test_rules.py::test_a_bucket_that_was_collected_takes_no_commit",),
    ),
    Guard(
        name="garbage-collection watermark raised before a run is retired",
        rules="G1",
        remove=without.no_floor_before_retirement,
        tests=(f"{CHAOS}/test_time.py::test_what_a_bucket_forgot_is_late",),
    ),
    Guard(
        name="a hit in a filter is looked up",
        rules="S3",
        remove=without.filter_is_truth,
        tests=(f"{INTEGRATION}/test_catalog.py::test_look_ups_and_merges_agree_with_sets",),
    ),
    Guard(
        name="a filter misses no id",
        rules="S3 L5",
        remove=without.filter_with_a_bit_cleared,
        tests=(
            f"{UNIT}/test_bloom.py::test_what_was_added_is_found",
            f"{INTEGRATION}/test_catalog.py::test_look_ups_and_merges_agree_with_sets",
        ),
    ),
    Guard(
        name="fsync before `staged`",
        rules="S10",
        remove=without.no_fsync,
        tests=(
            f"{CHAOS}/test_rules_of_files.py"
            "::test_what_is_said_to_be_there_outlasts_a_loss_of_power",
        ),
    ),
    Guard(
        name="input digest",
        rules="S13",
        remove=without.no_input_digest,
        tests=(
            f"{INTEGRATION}/test_bad_changes.py"
            "::test_an_edit_in_the_middle_is_seen_between_attempts",
        ),
    ),
    Guard(
        name="the plan is written down",
        rules="P1 S6",
        remove=without.plan_not_persisted,
        tests=(
            f"{INTEGRATION}/test_bad_changes.py"
            "::test_growth_between_plan_and_stage_is_the_next_batchs",
        ),
    ),
    Guard(
        name="nothing is deleted on an unknown outcome",
        rules="C11",
        remove=without.delete_on_unknown_outcome,
        tests=(f"{CHAOS}/test_ledger_away.py::test_a_commit_is_cut[commit.before_win-reply]",),
    ),
    Guard(
        name="Spark's stage retries are off",
        rules="S15",
        remove=without.stage_retries_left_on,
        tests=(
            f"{INTEGRATION}/test_rules_spark.py"
            "::test_a_spark_that_runs_a_stage_again_is_refused[None-spark.stage.maxAttempts]",
        ),
    ),
    Guard(
        name="what was read is not read again in a copy",
        rules="P17",
        remove=without.copies_are_new,
        tests=(
            f"{INTEGRATION}/test_rotation.py::test_logrotate_for_ever[3-copytruncate-]",
            f"{INTEGRATION}/test_which_file.py::test_rsync_of_a_file_that_grew",
        ),
    ),
    Guard(
        name="a refused copy is remembered",
        rules="P17",
        remove=without.refusals_are_forgotten,
        tests=(
            f"{INTEGRATION}/test_copies.py"
            "::test_a_small_copy_stays_refused_when_its_file_goes_on[gzip --keep]",
        ),
    ),
    Guard(
        name="what cannot be looked for keeps its path and its content",
        rules="P9 P17",
        remove=without.what_cannot_be_told_is_new,
        tests=(
            f"{INTEGRATION}/test_unsure.py"
            "::test_what_has_the_path_of_an_unreadable_file_waits[position]",
            f"{INTEGRATION}/test_unsure.py::test_a_copy_of_an_unreadable_file_waits[position]",
        ),
    ),
    Guard(
        name="gone is decided from the whole folder",
        rules="P18",
        remove=without.what_is_not_listed_is_gone,
        tests=(
            f"{INTEGRATION}/test_which_file.py::test_a_folder_that_is_away_makes_no_file_gone",
        ),
    ),
    Guard(
        name="siblings of the winner are lost",
        rules="C7",
        remove=without.no_fence,
        tests=(f"{CHAOS}/test_twins.py::test_two_attempts_of_one_batch",),
    ),
    Guard(
        name="size and checksum decide, not existence",
        rules="F2",
        remove=without.existence_is_truth,
        tests=(
            f"{CONTRACT}::test_damaged_staged_files_are_loud",
            f"{CONTRACT}::test_what_another_batch_of_its_number_left_is_loud[parquet]",
        ),
    ),
    Guard(
        name="a final name is never replaced",
        rules="F3",
        remove=without.link_replaces,
        tests=(f"{CHAOS}/test_twins.py::test_finalize_twice_at_once[finalize.after_look-1]",),
    ),
    Guard(
        name="pinned payload stays",
        rules="G4",
        remove=without.payload_goes_at_once,
        tests=(f"{INTEGRATION}/test_catalog.py::test_payload_stays_while_an_attempt_may_ask",),
    ),
    Guard(
        name="only a running attempt stores ids",
        rules="S9",
        remove=without.runs_of_the_lost,
        tests=(f"{INTEGRATION}/test_catalog.py::test_a_lost_attempt_stores_nothing",),
    ),
    Guard(
        name="a task's ledger has its attempt",
        rules="S23",
        remove=without.any_ledger,
        tests=(
            f"{INTEGRATION}/test_executors.py"
            "::test_an_executor_that_is_pointed_to_another_ledger[steps]",
        ),
    ),
    Guard(
        name="what tasks made is linked before it is staged",
        rules="S24",
        remove=without.no_links_tried,
        tests=(f"{INTEGRATION}/test_executors.py::test_executors_of_another_user[None]",),
    ),
    Guard(
        name="a sink with traces is refused",
        rules="D1",
        remove=without.no_look_for_traces,
        tests=(
            f"{INTEGRATION}/test_fresh_ledger.py"
            "::test_a_fresh_ledger_writes_nothing_beside_an_older_ones_output[markers]",
        ),
    ),
    Guard(
        name="sequences pass what files hold",
        rules="D5",
        remove=without.no_numbers_passed,
        tests=(f"{INTEGRATION}/test_adopt.py::test_numbers_pass_all_that_files_hold",),
    ),
    Guard(
        name="a batch has one row in semel_batch",
        rules="PG2",
        remove=without.no_key_of_batches,
        tests=(f"{CONTRACT}::test_published_twice_lands_once[append]",),
    ),
    Guard(
        name="a batch that landed is known by its digest",
        rules="PG2",
        remove=without.any_digest_is_right,
        tests=(f"{CONTRACT}::test_what_another_batch_of_its_number_left_is_loud[append]",),
    ),
    Guard(
        name="a batch and its row in semel_batch land together",
        rules="PG1",
        remove=without.note_lands_alone,
        tests=(f"{CONTRACT}::test_a_publish_that_died_half_way_is_finished[append]",),
    ),
    Guard(
        name="rows are counted before they land",
        rules="PG1",
        remove=without.rows_are_not_counted,
        tests=(f"{INTEGRATION}/test_sink_postgres.py::test_a_file_that_lacks_rows_lands_nothing",),
    ),
    Guard(
        name="what lands is durable",
        rules="PG1",
        remove=without.commits_need_not_last,
        tests=(f"{OF_TABLES}::test_what_is_published_is_durable",),
    ),
    Guard(
        name="a row replaces earlier ones only",
        rules="PG3",
        remove=without.later_rows_are_replaced,
        tests=(
            f"{INTEGRATION}/test_sink_postgres.py"
            "::test_the_later_commit_wins_in_any_order[order1]",
        ),
    ),
    Guard(
        name="rows are written in the order of the key",
        rules="PG3",
        remove=without.rows_in_any_order,
        tests=(
            f"{OF_TABLES}::test_two_finalizers_of_common_keys_do_not_wait_for_each_other",
        ),
    ),
    Guard(
        name="one at a time makes tables",
        rules="PG3",
        remove=without.tables_are_made_at_once,
        tests=(f"{OF_TABLES}::test_many_make_the_tables_at_once",),
    ),
    Guard(
        name="a table's columns stay as they were looked at",
        rules="PG5",
        remove=without.columns_may_change,
        tests=(f"{INTEGRATION}/test_sink_postgres.py::test_nobody_changes_a_column_meanwhile",),
    ),
    Guard(
        name="a table is looked at before any work",
        rules="PG4",
        remove=without.tables_are_not_looked_at,
        tests=(f"{CONTRACT}::test_what_does_not_fit_is_refused_before_any_work[append]",),
    ),
    Guard(
        name="rows are looked at in stage",
        rules="PG6 S27",
        remove=without.no_row_is_looked_at,
        tests=(
            f"{INTEGRATION}/test_postgres.py::test_what_the_table_will_refuse_is_a_dead_letter",
        ),
    ),
    Guard(
        name="constraints are met before a batch lands",
        rules="PG7",
        remove=without.constraints_may_wait,
        tests=(
            f"{INTEGRATION}/test_sink_postgres_values.py"
            "::test_a_deferred_constraint_is_met_before_commit",
        ),
    ),
    Guard(
        name="refused rows are kept before the others land",
        rules="PG7",
        remove=without.refused_rows_are_kept_later,
        tests=(
            f"{INTEGRATION}/test_sink_postgres_values.py"
            "::test_rows_that_cannot_be_kept_let_nothing_land",
        ),
    ),
    Guard(
        name="a key is in one row of a batch",
        rules="PG8",
        remove=without.keys_may_repeat,
        tests=(
            f"{INTEGRATION}/test_postgres.py"
            "::test_a_key_that_is_twice_in_a_batch_fails_at_stage",
        ),
    ),
    Guard(
        name="old rows go when the new ones come",
        rules="PG9",
        remove=without.old_rows_go_first,
        tests=(f"{OF_REPLAYS}::test_a_reader_sees_the_old_rows_or_the_new",),
    ),
    Guard(
        name="no old row stays beside new ones",
        rules="PG9",
        remove=without.old_rows_may_stay,
        tests=(f"{OF_REPLAYS}::test_a_trigger_that_keeps_rows",),
    ),
    Guard(
        name="a table is asked for its old rows before any work",
        rules="PG10 RP8",
        remove=without.tables_are_not_asked_for_their_old_rows,
        tests=(
            f"{INTEGRATION}/test_replay_postgres.py"
            "::test_what_cannot_be_replaced_is_refused_before_any_work",
        ),
    ),
    Guard(
        name="rows that a marker lists are the newest",
        rules="PG11",
        remove=without.a_marker_is_the_newest,
        tests=(
            f"{INTEGRATION}/test_replay_postgres.py::test_who_reads_by_a_marker_is_told",
        ),
    ),
)

GUARDS = {guard.name: guard for guard in (*_ALL, *OF_REPLAY, *OF_TOPICS, *OF_KAFKA, *OF_TARGETS)}
