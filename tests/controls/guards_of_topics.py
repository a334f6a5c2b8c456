"""The guards of a topic as a sink, as in `guards`."""

import removals_of_topics as without
from guard import Guard

_CONTRACT = "tests/integration/test_contract_sinks.py"
_RUNS = "tests/integration/test_sink_kafka_runs.py"
_TOPIC = "tests/integration/test_sink_kafka.py"

OF_TOPICS = (
    Guard(
        name="messages and their note land together",
        rules="KP1",
        remove=without.notes_land_alone,
        tests=(f"{_TOPIC}::test_a_publish_that_dies_is_finished[sink.before_cut]",),
    ),
    Guard(
        name="rows are counted before a note says all",
        rules="KP1",
        remove=without.rows_are_not_counted,
        tests=(f"{_TOPIC}::test_staged_files_that_lack_rows_land_nothing",),
    ),
    Guard(
        name="a batch is not written beside its note",
        rules="KP2",
        remove=without.batches_land_again,
        tests=(f"{_CONTRACT}::test_published_twice_lands_once[topic]",),
    ),
    Guard(
        name="a batch's producer fences the one before",
        rules="KP2",
        remove=without.nobody_is_fenced,
        tests=(f"{_TOPIC}::test_a_zombie_that_slept_before_its_commit[1]",),
    ),
    Guard(
        name="a note is known by its digest",
        rules="KP2",
        remove=without.any_digest_is_right,
        tests=(f"{_CONTRACT}::test_what_another_batch_of_its_number_left_is_loud[topic]",),
    ),
    Guard(
        name="the control topic is read to its end",
        rules="KP3",
        remove=without.hidden_notes_are_not_there,
        tests=(
            f"{_TOPIC}::test_an_open_transaction_of_another_batch_hides_nothing",
            f"{_TOPIC}::test_what_stays_hidden_is_an_error",
        ),
    ),
    Guard(
        name="an aborted note is none",
        rules="KP3",
        remove=without.aborted_notes_count,
        tests=(f"{_TOPIC}::test_an_aborted_note_is_none",),
    ),
    Guard(
        name="a restored control topic is read from its start",
        rules="KP12",
        remove=without.topics_have_names_alone,
        tests=(f"{_TOPIC}::test_notes_that_may_lie_before_are_read[restored]",),
    ),
    Guard(
        name="what another leader has is read from its start",
        rules="KP12",
        remove=without.leaders_lose_nothing,
        tests=(f"{_TOPIC}::test_notes_that_may_lie_before_are_read[another leader]",),
    ),
    Guard(
        name="who was fenced waits",
        rules="KP4",
        remove=without.nobody_waits,
        tests=(f"{_TOPIC}::test_who_was_fenced_waits_for_the_other",),
    ),
    Guard(
        name="a topic is looked at before any work",
        rules="KP5",
        remove=without.topics_are_not_looked_at,
        tests=(f"{_CONTRACT}::test_what_does_not_fit_is_refused_before_any_work[topic]",),
    ),
    Guard(
        name="messages are measured in stage",
        rules="KP6 S27",
        remove=without.messages_are_not_measured,
        tests=(f"{_TOPIC}::test_what_the_topic_will_refuse_is_a_dead_letter",),
    ),
    Guard(
        name="a lost control topic is not made anew",
        rules="KP7",
        remove=without.control_topics_are_made_anew,
        tests=(f"{_TOPIC}::test_a_lost_control_topic_is_never_made_anew",),
    ),
    Guard(
        name="a topic takes no replay",
        rules="KP8",
        remove=without.topics_may_be_replaced,
        tests=(f"{_CONTRACT}::test_an_output_is_replaced_or_the_sink_refuses[topic]",),
    ),
    Guard(
        name="refused rows are kept",
        rules="KP9",
        remove=without.refused_rows_are_not_kept,
        tests=(f"{_TOPIC}::test_refused_rows_can_be_kept_while_the_others_land",),
    ),
    Guard(
        name="rows of a batch are all there",
        rules="KP10",
        remove=without.a_part_is_the_whole,
        tests=(f"{_TOPIC}::test_rows_that_are_gone_are_told",),
    ),
    Guard(
        name="retention explains what it deletes alone",
        rules="KP10",
        remove=without.retention_explains_anything,
        tests=(f"{_RUNS}::test_what_the_retention_of_the_output_deleted",),
    ),
    Guard(
        name="compaction explains gaps alone",
        rules="KP10",
        remove=without.compaction_explains_anything,
        tests=(f"{_RUNS}::test_what_compaction_did_not_take",),
    ),
    Guard(
        name="the audit reads the whole topic",
        rules="KP10",
        remove=without.strays_are_not_seen,
        tests=(f"{_CONTRACT}::test_the_audit_sees_what_somebody_did_to_a_batch[topic-doubled]",),
    ),
    Guard(
        name="a cut begins where the last one ended",
        rules="KP11",
        remove=without.cuts_begin_anew,
        tests=(f"{_TOPIC}::test_another_size_of_transactions_moves_nothing[700]",),
    ),
)
