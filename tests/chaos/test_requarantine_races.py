"""Dead letters that are judged again, beside replays, other requests and live runs."""

from collections.abc import Callable

import pytest

from fix_scene import Scene, finalized, replayed, shown, waiting
from fixtures.batches import replays
from fixtures.batches.faults import dies_at
from fixtures.batches.replays import falls_silent
from fixtures.batches.workbench import events
from schedule import Played, every_order
from semel import failpoints
from semel.errors import AttemptLostError, RetryableError, SemelError, StateError
from semel.model.batch import Batch
from semel.repair.accept import accept_columns
from semel.runs import requarantine

ROOT = 2
"""The batch whose dead letters are judged again."""

LETTERS = [
    {"id": "e000200", "n": 1.5, "at": "2026-01-01T00:00:00Z"},
    {"id": "e000001", "n": 2.5, "at": "2026-01-01T00:00:00Z"},
    {"id": "e000200", "n": 3.5, "at": "2026-01-01T00:00:00Z"},
]
"""Of these one is good by the wider declaration: the others repeat it, or what there was before."""

POINTS = [
    "requarantine.after_write",
    "stage.after_begin",
    "stage.after_job",
    "stage.after_seal",
    "commit.after_win",
    "finalize.after_publish",
    "finalize.after_mark",
]
OF_REPLAYS = [
    "replay.after_write",
    "stage.after_begin",
    "stage.after_job",
    "stage.after_seal",
    "commit.after_win",
    "finalize.before_replace",
    "storage.before_swap",
    "storage.after_swap",
]


@pytest.fixture
def letters(scene: Scene) -> Scene:
    """A scene with dead letters of a batch, some of which are good by the declaration of now."""
    scene.bench.write("in/b.jsonl", [*events(30, 80), *LETTERS, b"{not json"])
    scene.bench.write("in/c.jsonl", events(60, 110))  # Written later, so r1 takes the other.
    scene.run("r1")
    schema = {"id": "string", "n": "double", "at": "timestamp"}
    scene.spec = scene.declare(source={"schema": schema})
    accept_columns(scene.ledger, scene.spec)
    return scene


def admitted(scene: Scene, request: str) -> Batch | None:
    return replays.admitted(scene.ledger, scene.spec, ROOT, request).batch


def exact(scene: Scene) -> None:
    """All else is read, and each record is there once."""
    found = scene.finish("r1", "r2")
    assert "e000200" in {record_id for _, record_id, _ in found.survivors}


# Attacks RP9.
def test_two_requests_admit_at_once(letters: Scene) -> None:
    """One of them judges the dead letters, the other is told so."""

    def planning(request: str) -> Callable[[Scene], object]:
        return lambda there: requarantine.plan(there.ledger, there.spec, request, ROOT)

    def after(there: Scene, played: Played) -> None:
        failed = [a.error for a in played.actors.values() if a.error is not None]
        assert len(failed) == 1 and isinstance(failed[0], RetryableError), failed
        falls_silent(there.ledger)
        assert admitted(there, "z").admission == 1
        exact(there)

    acts = {"A": planning("x"), "B": planning("y")}
    found = every_order(letters, ("requarantine.before_write",), after, **acts)
    assert any(turn.blocked for played in found for turn in played.turns), "nobody waited"


# Attacks RP9.
def test_another_request_was_faster(letters: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finished behind our look: we judge what it left."""
    write = requarantine._write

    def late(*arguments: object) -> Batch:
        monkeypatch.setattr(requarantine, "_write", write)
        admitted(letters, "y")
        return write(*arguments)

    monkeypatch.setattr(requarantine, "_write", late)
    try:
        admitted(letters, "x")
    except (RetryableError, StateError) as error:
        assert "another request" in str(error)
    exact(letters)


# Attacks RP9, C7, A2.
@pytest.mark.parametrize("point", [p for p in POINTS if p.startswith(("req", "stage"))])
def test_a_silent_admission_is_given_up_while_its_driver_goes_on(
    letters: Scene, point: str
) -> None:
    """Another request took its place: it is told so, and no dead letter is admitted twice."""

    def meanwhile() -> None:
        falls_silent(letters.ledger)
        assert admitted(letters, "y").admission == 1

    with (
        failpoints.armed(point, meanwhile) as fault,
        pytest.raises((AttemptLostError, StateError)),
    ):
        admitted(letters, "x")
    assert fault.hit
    exact(letters)


# Attacks RP9, RP4, C2.
@pytest.mark.parametrize("point", POINTS)
def test_an_admission_beside_a_replay_and_a_live_run(letters: Scene, point: str) -> None:
    """Its root is replayed, and a live run brings one of the ids, while it stands still: exact."""
    letters.bench.write("in/c.jsonl", [*events(60, 110), *events(198, 202)])

    def meanwhile() -> None:
        assert replayed(letters, "x", ROOT).generation == 2
        letters.run("r2")

    with failpoints.armed(point, meanwhile) as fault:
        assert admitted(letters, "q").admission == 1
    assert fault.hit and shown(letters, ROOT)["generation"] == 2
    exact(letters)


# Attacks RP9, RP5.
@pytest.mark.parametrize("point", OF_REPLAYS)
def test_a_replay_beside_an_admission(letters: Scene, point: str) -> None:
    """Dead letters are judged again while their batch is being replayed: exact."""
    made = []
    with failpoints.armed(point, lambda: made.append(admitted(letters, "q"))) as fault:
        assert replayed(letters, "x", ROOT).generation == 2
    assert fault.hit
    assert replayed(letters, "x", made[0].batch_id).generation == 2
    exact(letters)


# Attacks RP9, RP5.
@pytest.mark.parametrize("point", ["storage.after_swap", "finalize.after_mark"])
def test_an_admission_behind_a_finalizer_that_died(letters: Scene, point: str) -> None:
    """The marker is replaced, and `finalized` not written: no backup is asked for."""
    number = waiting(letters, "x", ROOT)
    with dies_at(point):
        finalized(letters, number)
    try:
        admitted(letters, "q")
    except SemelError as error:
        assert "backup" not in str(error)
        finalized(letters, number)
        admitted(letters, "q")
    finalized(letters, number)
    exact(letters)
