"""Where a sink's notes are looked for: behind what the control topic held before the batch."""

import json

import pytest

from fix_kafka import Kafka, Record
from fix_sink_kafka import CONTROL, Outlet, ids
from fix_sinks import table
from semel.errors import CorruptionError
from semel.sinks import Presence


# Attacks KP12.
def test_notes_of_earlier_batches_are_not_read(outlet: Outlet) -> None:
    """What the control topic held when stage began is behind whoever looks for the batch: that a
    history is long costs nothing. A note that came later is found, by a twin as well.
    """
    outlet.make()
    won, sink = outlet.won(table(0, 10)), outlet.sink()
    damaged = Record(value=b"no note", key=b'["events",1]')
    outlet.kafka.produce(outlet.control, [damaged])
    with pytest.raises(CorruptionError, match="is no note of a batch"):
        sink.look(won)
    sink.check(won.schema, outlet.folder)
    assert sink.look(won) == [Presence.ABSENT]
    outlet.finalize(won)
    sink.publish(won, won.files)
    assert sink.look(won) == [Presence.RIGHT] and outlet.ids == ids(0, 10)


# Attacks KP12.
@pytest.mark.parametrize("harm", ["restored", "another leader", "not written"])
def test_notes_that_may_lie_before_are_read(outlet: Outlet, kafka: Kafka, harm: str) -> None:
    """Where the control topic was restored from a copy, where another broker led it meanwhile, and
    where the file of stage is damaged, its notes may lie anywhere: nothing lands again.
    """
    outlet.make()
    won, sink = outlet.won(table(0, 10)), outlet.sink()
    outlet.finalize(won)
    [note] = kafka.drain(outlet.control)
    kafka.produce(outlet.control, [Record(value=None, key=b"other")] * 3)
    sink.check(won.schema, outlet.folder)  # As if stage had been later than the note.
    assert sink.look(won) == [Presence.ABSENT]
    kept = outlet.folder / "_control.json"
    if harm == "restored":
        kafka.delete(outlet.control)
        kafka.topic(outlet.control, config=CONTROL)
        filler = [Record(value=None, key=b"other")] * 9
        kafka.produce(outlet.control, [Record(value=note.value, key=note.key), *filler])
    elif harm == "another leader":
        plain = json.loads(kept.read_text())
        kept.write_text(json.dumps({**plain, "leaders": {"0": plain["leaders"]["0"] - 1}}))
    else:
        kept.write_text(kept.read_text()[:20])
    assert sink.look(won) == [Presence.RIGHT]
    sink.publish(won, won.files)
    assert outlet.ids == ids(0, 10)
