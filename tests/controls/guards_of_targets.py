"""The guards of what a target holds, as in `guards`."""

import removals_of_targets as without
from guard import Guard

_STORED = "tests/integration/test_stored_declaration.py"
_TARGET = "tests/integration/test_target.py"
_REPLAY = "tests/integration/test_sink_postgres_replay.py"
_KEPT = "tests/integration/test_sink_postgres_kept.py"

OF_TARGETS = (
    Guard(
        name="a batch is published by its own declaration",
        rules="F10",
        remove=without.declarations_of_now,
        tests=(f"{_STORED}::test_a_batch_is_published_in_its_own_mode[append-by_finalize]",),
    ),
    Guard(
        name="what a table keeps back is counted",
        rules="PG12",
        remove=without.rows_there_are_not_counted,
        tests=(f"{_KEPT}::test_what_a_trigger_keeps_back_is_named[append-null]",),
    ),
    Guard(
        name="a target is held against the ledger",
        rules="H2",
        remove=without.targets_are_not_asked,
        tests=(
            f"{_TARGET}::test_a_table_of_an_earlier_time[append]",
            f"{_TARGET}::test_two_pipelines_that_begin_together[append]",
        ),
    ),
    Guard(
        name="adopt holds a target against the markers",
        rules="D10 H2",
        remove=without.adopt_does_not_ask,
        tests=(f"{_TARGET}::test_adopt_at_an_empty_database[append]",),
    ),
    Guard(
        name="an address changes by a person's word",
        rules="H3",
        remove=without.addresses_follow,
        tests=(f"{_TARGET}::test_an_edited_connection_moves_nothing[append]",),
    ),
    Guard(
        name="a moved target is proven by its notes",
        rules="H3",
        remove=without.moves_are_not_proven,
        tests=(f"{_TARGET}::test_an_edited_connection_moves_nothing[upsert]",),
    ),
    Guard(
        name="rows without their notes are not doubled",
        rules="PG13",
        remove=without.rows_may_lack_their_note,
        tests=(f"{_TARGET}::test_notes_that_were_removed_before_the_marker",),
    ),
    Guard(
        name="a table has one pipeline's rows",
        rules="PG13",
        remove=without.a_table_is_shared,
        tests=(f"{_REPLAY}::test_batches_of_another_pipeline",),
    ),
    Guard(
        name="rows of a batch are as many as were put in",
        rules="PG11",
        remove=without.rows_read_are_not_counted,
        tests=(f"{_TARGET}::test_rows_that_somebody_removed[append]",),
    ),
)
