"""The page of the lineage: a drawing of pipelines and their upstream pipelines."""

from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from semel import pipeline, settings
from semel.airflow.page.common import cached_query, declarations, find_folders, render_page
from semel.errors import SemelError

router = APIRouter()

BOX_WIDTH, BOX_HEIGHT = 260, 64
_PITCH_X, _PITCH_Y = 320, 80


@dataclass(frozen=True, kw_only=True)
class Node:
    """A pipeline with its upstream pipelines, and its source and sink in words."""

    name: str
    reads: frozenset[str]
    source: str
    sink: str


@dataclass(frozen=True, kw_only=True)
class Box:
    """The place of a pipeline in the drawing. `node` is None if the user may not see it."""

    x: int
    y: int
    node: Node | None


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Boxes and the arrows between them, each from `x1, y1` to `x2, y2`."""

    boxes: tuple[Box, ...]
    arrows: tuple[tuple[int, int, int, int], ...]
    width: int
    height: int


@router.get("/lineage", response_class=HTMLResponse)
def show_lineage(request: Request, user: GetUserDep) -> HTMLResponse:
    """All pipelines that the user may see, next to the pipelines that they read."""
    permitted = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    find_folders()
    drawing = trouble = None
    try:
        files = _files()
        nodes = cached_query(f"nodes {hash(files)}", lambda: _nodes(files))
        drawing = nodes and draw(nodes, permitted)
    except CycleError:
        trouble = "The pipelines read each other in a circle: `semel validate` names it."
    except (SemelError, OSError) as error:
        trouble = str(error)
    else:
        if nodes is None:
            trouble = "Reading all declarations takes longer than a page waits."
    return render_page(
        request,
        "lineage.html",
        drawing=drawing,
        trouble=trouble,
        box_width=BOX_WIDTH,
        box_height=BOX_HEIGHT,
    )


def _files() -> tuple[object, ...]:
    """A key for the cache of `_nodes`: loading 200 declarations takes longer than a page waits."""
    return *settings.data_roots(), *declarations()


@lru_cache(maxsize=1)
def _nodes(files: tuple[object, ...]) -> list[Node]:  # noqa: ARG001 - other files, other nodes
    specs = {spec.name: spec for spec in pipeline.loadable()}
    return [
        Node(
            name=name,
            reads=frozenset(upstreams),
            source=specs[name].source.describe().replace("`", ""),
            sink=specs[name].sink.describe().replace("`", ""),
        )
        for name, upstreams in pipeline.upstreams(specs).items()
    ]


def draw(nodes: list[Node], permitted: set[str]) -> Drawing:
    """Place each pipeline to the right of its upstream pipelines. Raises CycleError.

    A pipeline that the user may not see is drawn without its name, and only next to one that the
    user may see.
    """
    by_name = {node.name: node for node in nodes}
    edges = {
        (upstream, node.name)
        for node in nodes
        for upstream in node.reads
        if permitted & {upstream, node.name}
    }
    drawn = (permitted & by_name.keys()) | {name for edge in edges for name in edge}
    reads = {name: [a for a, b in edges if b == name] for name in sorted(drawn)}
    columns: dict[str, int] = {}
    for name in TopologicalSorter(reads).static_order():
        columns[name] = 1 + max((columns[upstream] for upstream in reads[name]), default=-1)
    linked = {name for edge in edges for name in edge}
    rows: dict[str, float] = {}
    for column in range(max(columns.values(), default=-1) + 1):
        wishes = {
            name: sum(rows[upstream] for upstream in reads[name]) / max(len(reads[name]), 1)
            for name, its_column in columns.items()
            if its_column == column
        }
        next_row = 0.0
        for name in sorted(wishes, key=lambda name: (wishes[name], name not in linked, name)):
            rows[name] = max(next_row, wishes[name])
            next_row = rows[name] + 1
    places = {
        name: (columns[name] * _PITCH_X + 1, round(rows[name] * _PITCH_Y) + 1) for name in columns
    }
    middle = BOX_HEIGHT // 2
    return Drawing(
        boxes=tuple(
            Box(x=x, y=y, node=by_name[name] if name in permitted else None)
            for name, (x, y) in sorted(places.items())
        ),
        arrows=tuple(
            (places[a][0] + BOX_WIDTH, places[a][1] + middle, places[b][0], places[b][1] + middle)
            for a, b in sorted(edges)
        ),
        width=max((x for x, _ in places.values()), default=0) + BOX_WIDTH + 1,
        height=max((y for _, y in places.values()), default=0) + BOX_HEIGHT + 1,
    )
