"""Records and declaration of a batch: its first output rows, its dead letters as a file, and the
YAML of its pipeline.
"""

import base64
import json
from itertools import islice
from typing import Any

import yaml
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse

from semel import pipeline
from semel.airflow.page.common import (
    MayRead,
    MaySee,
    cached_query,
    render_page,
    spec_of,
    wrong_lines,
)
from semel.errors import LimitError, RetryableError, SemelError
from semel.formats import words
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel.reports import dead_letters

PAGE_ROWS = 20
"""Output rows of a sample."""

PAGE_LETTERS_MAX = 10_000
"""Dead letters of a file."""

PAGE_LETTERS_BYTES_MAX = 16 << 20
"""Bytes of a file of dead letters, which the server builds in memory."""

_VALUE_CHARS = 200

router = APIRouter()

may_read_code = requires_access_dag(method="GET", access_entity=DagAccessEntity.CODE)
MayReadCode = Depends(may_read_code)
"""A user who may read the DAG's code may read its pipeline's declaration."""


@router.get(
    "/dags/{dag_id}/declaration",
    response_class=HTMLResponse,
    dependencies=[MaySee, MayReadCode],
)
def declaration(
    request: Request,
    dag_id: str,
    user: GetUserDep,  # noqa: ARG001 - needs a login
) -> HTMLResponse:
    """The YAML of a pipeline: its file, else the declaration of its newest batch."""
    spec, declared = spec_of(dag_id)
    wrong = [] if declared else wrong_lines(dag_id)
    path = pipeline.file_of(dag_id) if declared else None
    if path:
        text = path.read_text(encoding="utf-8")
    else:
        text = yaml.safe_dump(spec.to_json(), sort_keys=False, allow_unicode=True)
    return render_page(
        request,
        "declaration.html",
        name=spec.name,
        spec=spec,
        declared=declared,
        wrong=wrong,
        path=path,
        text=text,
    )


@router.get(
    "/dags/{dag_id}/batches/{batch_id}/rows",
    response_class=HTMLResponse,
    dependencies=[MaySee, MayRead],
)
def rows(
    request: Request,
    dag_id: str,
    batch_id: int,
    user: GetUserDep,  # noqa: ARG001 - needs a login
) -> HTMLResponse:
    """The first output rows of a finalized batch."""
    spec, _ = spec_of(dag_id)
    sample = trouble = None
    try:
        _refuse_without_samples(spec)
        sample = cached_query(f"rows {dag_id} {batch_id}", lambda: _sample(spec, batch_id))
    except (SemelError, OSError) as error:
        trouble = str(error)
    return render_page(
        request,
        "rows.html",
        name=spec.name,
        spec=spec,
        batch_id=batch_id,
        sample=sample,
        trouble=trouble,
    )


@router.get(
    "/dags/{dag_id}/batches/{batch_id}/letters.jsonl",
    response_class=Response,
    dependencies=[MaySee, MayRead],
)
def letters_file(
    dag_id: str,
    batch_id: int,
    user: GetUserDep,  # noqa: ARG001 - needs a login
) -> Response:
    """The dead letters of a finalized batch as JSON Lines, each record whole."""
    spec, _ = spec_of(dag_id)
    _refuse_without_samples(spec)
    key = f"letters file {dag_id} {batch_id}"
    content = cached_query(key, lambda: _letters_file(spec, batch_id))
    if content is None:
        raise RetryableError(
            f"batch {batch_id}: reading its dead letters takes longer than a page waits. "
            "Load this page again"
        )
    name = f"{spec.name}-batch-{batch_id}-letters.jsonl"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type="text/plain; charset=utf-8", headers=headers)


def _refuse_without_samples(spec: Spec) -> None:
    if not spec.limits.log_samples:
        raise LimitError(
            f"{spec.name} declares limits.log_samples: false, so these pages do not show records"
        )


def _sample(spec: Spec, batch_id: int) -> tuple[list[str], list[list[str]]]:
    """The columns of a batch's output, and the values of its first rows as short texts."""
    marker = dead_letters.marker_of(spec, batch_id)
    columns: list[str] = []
    values: list[list[str]] = []
    with open_sink(spec) as sink:
        for table in sink.rows(marker):
            columns = table.column_names
            first = table.slice(0, PAGE_ROWS - len(values)).to_pylist()
            values += [[_short(row[name]) for name in columns] for row in first]
            if len(values) >= PAGE_ROWS:
                break
    return columns, values


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        return words.record_excerpt(value)
    return "" if value is None else words.excerpt(str(value), _VALUE_CHARS)


def _letters_file(spec: Spec, batch_id: int) -> bytes:
    """JSON Lines. If a limit cuts the file, the last line has the number of missing letters, and
    the paths of the complete files.
    """
    marker = dead_letters.marker_of(spec, batch_id)
    lines: list[bytes] = []
    size = 0
    for letter in islice(dead_letters.raw_letters(marker), PAGE_LETTERS_MAX):
        line = json.dumps(_plain(letter), ensure_ascii=False, default=str).encode() + b"\n"
        size += len(line)
        if size > PAGE_LETTERS_BYTES_MAX:
            break
        lines.append(line)
    files = dead_letters.files_of(marker)
    if left_out := sum(file.records for file in files) - len(lines):
        paths = [str(marker.path_of(file)) for file in files]
        lines.append(json.dumps({"left_out": left_out, "files": paths}).encode() + b"\n")
    return b"".join(lines)


def _plain(letter: dict[str, Any]) -> dict[str, Any]:
    """A dead letter with its record as text, or as base64 if it is not UTF-8."""
    raw = letter.pop("raw")
    try:
        return {**letter, "record": raw.decode()}
    except UnicodeDecodeError:
        return {**letter, "record_base64": base64.b64encode(raw).decode()}
