"""The guards of a topic as a source, as in `guards`."""

import removals_of_kafka as without
from guard import Guard

_FAULTS = "tests/chaos/test_kafka_source_faults.py"
_MOVING = "tests/unit/test_kafka_moving.py"
_LOSSES = "tests/chaos/test_kafka_losses.py"
_EDGES = "tests/integration/test_kafka_edges.py"
_OFFSETS = "tests/integration/test_kafka_offsets.py"
_SOURCE = "tests/integration/test_kafka_source.py"

OF_KAFKA = (
    Guard(
        name="a task asks for the topic's id",
        rules="KS1",
        remove=without.any_topic_of_that_name,
        tests=(f"{_FAULTS}::test_a_task_reads_the_planned_topic_alone",),
    ),
    Guard(
        name="a deleted start is an error for a task",
        rules="KS1",
        remove=without.deleted_ranges_are_passed_over,
        tests=(f"{_FAULTS}::test_what_a_task_reads_is_deleted",),
    ),
    Guard(
        name="a task reads to the claim's end",
        rules="KS1",
        remove=without.short_ranges_are_read,
        tests=(f"{_FAULTS}::test_the_cluster_lost_what_was_claimed",),
    ),
    Guard(
        name="a silent topic is asked for",
        rules="KS1",
        remove=without.silence_is_waited_for,
        tests=(f"{_FAULTS}::test_a_topic_is_deleted_while_a_task_reads",),
    ),
    Guard(
        name="tasks read what is committed",
        rules="KS1",
        remove=without.aborted_messages_are_read,
        tests=(f"{_SOURCE}::test_transactions",),
    ),
    Guard(
        name="offsets that are given to others are refused",
        rules="KS2",
        remove=without.shorter_partitions_go_on,
        tests=(f"{_FAULTS}::test_the_cluster_lost_what_was_claimed",),
    ),
    Guard(
        name="a topic that was made anew waits for a person",
        rules="KS2",
        remove=without.new_topics_are_read,
        tests=(f"{_SOURCE}::test_a_topic_that_was_made_anew_is_another",),
    ),
    Guard(
        name="unclaimed offsets that are gone are refused",
        rules="KS3",
        remove=without.what_is_gone_is_passed_over,
        tests=(f"{_SOURCE}::test_what_retention_took_is_told_until_accepted",),
    ),
    Guard(
        name="what is left may begin without a record",
        rules="KS3",
        remove=without.the_first_record_is_the_first_offset,
        tests=(f"{_OFFSETS}::test_an_interval_reaches_back_to_a_gap",),
    ),
    Guard(
        name="what is missing is looked at under the lock",
        rules="A5 KS3",
        remove=without.losses_are_written_as_they_were_seen,
        tests=(
            f"{_LOSSES}::test_two_accepts_at_once",
            f"{_LOSSES}::test_an_accept_beside_a_plan",
        ),
    ),
    Guard(
        name="a partition is known at first sight",
        rules="KS4",
        remove=without.known_once_it_is_read,
        tests=(f"{_SOURCE}::test_records_that_nobody_saw_are_missed",),
    ),
    Guard(
        name="no offset for a time is no end where records are left",
        rules="KS5",
        remove=without.times_without_an_offset_are_the_end,
        tests=(f"{_MOVING}::test_no_offset_for_a_time_that_has_records_is_no_end",),
    ),
    Guard(
        name="an interval has its offsets alone",
        rules="KS5",
        remove=without.intervals_take_all,
        tests=(f"{_SOURCE}::test_a_backfill_by_timestamps",),
    ),
    Guard(
        name="the mark of a transaction has no time",
        rules="KS5",
        remove=without.marks_of_transactions_have_a_time,
        tests=(f"{_EDGES}::test_history_that_was_sent_in_transactions",),
    ),
    Guard(
        name="a search begins behind earlier intervals alone",
        rules="KS5",
        remove=without.later_intervals_tell_where_to_begin,
        tests=(f"{_EDGES}::test_history_that_was_sent_in_transactions[(3, 1, 2, 0)]",),
    ),
    Guard(
        name="only a registry's own word is a verdict",
        rules="KS6",
        remove=without.any_answer_is_a_verdict,
        tests=("tests/unit/test_schema_registry.py::test_answers_that_are_no_verdict",),
    ),
    Guard(
        name="a value ends where its record does",
        rules="KS7",
        remove=without.what_is_left_over_is_passed_over,
        tests=("tests/unit/test_avro_values.py::test_what_is_no_value_of_its_schema",),
    ),
    Guard(
        name="an audit misses a schema that is gone",
        rules="KS8",
        remove=without.lost_schemas_are_not_missed,
        tests=("tests/integration/test_kafka_avro.py::test_a_registry_that_lost_a_schema",),
    ),
)
