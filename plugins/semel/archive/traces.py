"""Find traces of earlier batches in a sink and its archive, by file names alone, without a ledger.

A trace is
- any file in the archive's `markers/`, even a hidden one, which a crash left;
- a decisions, dead letters or ids file with a name `b<batch>-<part>.parquet`;
- a marker in `replaced/`, `b<batch>-g<generation>.json`, even a hidden one;
- an attempt's folder in `staging/`;
- an output file in any folder, if `sink.file_name` gives its name for a batch and part.

Empty folders and a user's own files are not traces.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from semel.archive import layout
from semel.model.manifest import Kind
from semel.pipeline.spec import Spec
from semel.sinks.names import NUMBER, OutputNames

_MARKER = re.compile(rf"b({NUMBER})\.json")
_LEFT_MARKER = re.compile(rf"\.b({NUMBER})\.json\..*")
_REPLACED = re.compile(rf"b({NUMBER})-g{NUMBER}\.json|\.b({NUMBER})-g{NUMBER}\.json\..*")
_KEPT = re.compile(rf"b({NUMBER})-{NUMBER}\.parquet")
_STAGED = re.compile(rf"b({NUMBER})")


@dataclass(frozen=True, kw_only=True)
class Traces:
    """All traces, each path with its batch number. Output paths are relative to the sink, staging
    folders to `staging/`, all others to the archive."""

    markers: dict[str, int] = field(default_factory=dict)
    batch_files: dict[str, int] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)
    output: dict[str, int] = field(default_factory=dict)
    staging: dict[str, int] = field(default_factory=dict)

    @property
    def batch_max(self) -> int:
        """The highest batch number in any name. Returns 0 without traces."""
        every = (self.markers, self.batch_files, self.replaced, self.output, self.staging)
        return max((number for part in every for number in part.values()), default=0)


def find_traces(sink: Path | None, archive: Path, specs: Iterable[Spec]) -> Traces:
    """All traces in a sink and its archive. The templates in `specs` identify output files."""
    traces = Traces()
    for part, path, batch in _walk(sink, archive, list(specs)):
        getattr(traces, part)[path] = batch
    return traces


def marker_numbers(archive: Path) -> set[int]:
    """The numbers of the batches with markers in an archive, by file name."""
    matches = (_MARKER.fullmatch(name) for name in _listed(layout.markers(archive)))
    return {int(match[1]) for match in matches if match}


def describe_trace(sink: Path | None, archive: Path, spec: Spec) -> str | None:
    """Describe the first trace. Stops there, because a folder may be large.

    Returns None without traces.
    """
    for part, path, _ in _walk(sink, archive, [spec]):
        nouns = {"markers": "a marker", "staging": "staged files", "output": "an output file"}
        return f"{nouns.get(part, 'a file')} of semel ({path})"
    return None


def _walk(sink: Path | None, archive: Path, specs: list[Spec]) -> Iterator[tuple[str, str, int]]:
    for path in _names(layout.markers(archive)):
        name = os.path.basename(path)
        match = _MARKER.fullmatch(name) or _LEFT_MARKER.fullmatch(name)
        yield "markers", os.path.relpath(path, archive), int(match[1]) if match else 0
    for kind in Kind:
        for path in _names(archive / kind):
            if match := _KEPT.fullmatch(os.path.basename(path)):
                yield "batch_files", os.path.relpath(path, archive), int(match[1])
    for path in _names(layout.replaced_marker(archive, 0, 0).parent):
        if match := _REPLACED.fullmatch(os.path.basename(path)):
            yield "replaced", os.path.relpath(path, archive), int(match[1] or match[2])
    staging = layout.staging(archive)
    for path in _names(staging):
        if match := _STAGED.fullmatch(os.path.basename(path)):
            for attempt in _names(path):
                yield "staging", os.path.relpath(attempt, staging), int(match[1])
    templates = [OutputNames(spec.sink, spec.name) for spec in specs]
    for folder, folders, names in os.walk(sink) if sink else ():
        folders[:] = [name for name in folders if os.path.join(folder, name) != str(archive)]
        for name in sorted(names):
            if batch := next(filter(None, (each.batch_of(name) for each in templates)), None):
                yield "output", os.path.relpath(os.path.join(folder, name), sink), batch


def _names(folder: str | os.PathLike) -> list[str]:
    return sorted(os.path.join(folder, name) for name in _listed(folder))


def _listed(folder: str | os.PathLike) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
