"""The guards of what a target holds, as in `guards`."""

import removals_of_targets as without
from guard import Guard

_STORED = "tests/integration/test_stored_declaration.py"
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
)
