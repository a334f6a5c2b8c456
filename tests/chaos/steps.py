"""The verbs in the words of the chaos tests."""

from fix_account import quiet
from fix_engine import LocalEngine
from fix_scene import Scene
from semel.commit import Committed, commit
from semel.finalize import Finalized, finalize
from semel.plan import plan
from semel.stage import stage


def staged(scene: Scene, request: str, engine: LocalEngine | None = None) -> int:
    """Plan and stage a request's batch. Returns its number."""
    batch_id = plan(scene.ledger, scene.spec, request).batch.batch_id
    stage(scene.ledger, scene.spec, batch_id, engine or LocalEngine(), quiet)
    return batch_id


def committed(scene: Scene, batch_id: int) -> Committed:
    """Commit a batch; it is staged again when it must be."""

    def restage() -> None:
        stage(scene.ledger, scene.spec, batch_id, LocalEngine(), quiet)

    return commit(scene.ledger, scene.spec, batch_id, restage, quiet)


def finalized(scene: Scene, batch_id: int) -> Finalized:
    return finalize(scene.ledger, scene.spec, batch_id)
