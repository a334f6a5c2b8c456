"""Find traces of earlier batches in a sink and its archive, by file names alone, without a ledger.

A trace is
- any file in the archive's `markers/`, even a hidden one, which a crash left;
- a decisions, dead letters or ids file with a name `b<batch>-<part>.parquet`;
- a marker in `replaced/`, `b<batch>-g<generation>.json`, even a hidden one;
- an attempt's folder in `staging/`;
- a pack of old markers in `packs/`;
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
from semel.storage import ArchivePath, names, nested_names, packs

_MARKER = re.compile(rf"b({NUMBER})\.json")
_LEFT_MARKER = re.compile(rf"\.b({NUMBER})\.json\..*")
_REPLACED = re.compile(rf"b({NUMBER})-g{NUMBER}\.json|\.b({NUMBER})-g{NUMBER}\.json\..*")
_KEPT = re.compile(rf"b({NUMBER})-{NUMBER}\.parquet")
_STAGED = re.compile(rf"b({NUMBER})")

_SORTED_MAX = 10_000_000
"""Up to this number, names of markers with greater numbers sort after its own."""


@dataclass(frozen=True, kw_only=True)
class Traces:
    """All traces, each path with its batch number, that of a pack with its last one. Output paths
    are relative to the sink, staging folders to `staging/`, all others to the archive."""

    markers: dict[str, int] = field(default_factory=dict)
    batch_files: dict[str, int] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)
    packs: dict[str, int] = field(default_factory=dict)
    output: dict[str, int] = field(default_factory=dict)
    staging: dict[str, int] = field(default_factory=dict)

    @property
    def batch_max(self) -> int:
        """The highest batch number in any name. Returns 0 without traces."""
        parts = vars(self).values()
        return max((number for part in parts for number in part.values()), default=0)


def find_traces(sink: Path | None, archive: ArchivePath, specs: Iterable[Spec]) -> Traces:
    """All traces in a sink and its archive. The templates in `specs` identify output files."""
    traces = Traces()
    for part, path, batch in _walk(sink, archive, list(specs)):
        getattr(traces, part)[path] = batch
    return traces


def marker_numbers(archive: ArchivePath, first: int = 0) -> set[int]:
    """The numbers of the batches with markers in the folder of markers, by file name, from `first`
    on.
    """
    # Longer numbers, which have another digit in front than 0, sort after this name.
    after = layout.marker(archive, first - 1).name if 0 < first <= _SORTED_MAX else ""
    matches = (_MARKER.fullmatch(name) for name in names(layout.markers(archive), after))
    return {int(match[1]) for match in matches if match}


def describe_trace(sink: Path | None, archive: ArchivePath, spec: Spec) -> str | None:
    """Describe the first trace. Stops there, because a folder may be large.

    Returns None without traces.
    """
    for part, path, _ in _walk(sink, archive, [spec]):
        nouns = {"markers": "a marker", "staging": "staged files", "output": "an output file"}
        return f"{nouns.get(part, 'a file')} of semel ({path})"
    return None


def _walk(
    sink: Path | None, archive: ArchivePath, specs: list[Spec]
) -> Iterator[tuple[str, str, int]]:
    for path, name in _files(archive, layout.markers(archive)):
        match = _MARKER.fullmatch(name) or _LEFT_MARKER.fullmatch(name)
        yield "markers", path, int(match[1]) if match else 0
    for kind in Kind:
        for path, name in _files(archive, archive / kind):
            if match := _KEPT.fullmatch(name):
                yield "batch_files", path, int(match[1])
    for path, name in _files(archive, layout.replaced_marker(archive, 0, 0).parent):
        if match := _REPLACED.fullmatch(name):
            yield "replaced", path, int(match[1] or match[2])
    for path, name in _files(archive, layout.packs(archive)):
        if between := packs.batches_named(name):
            yield "packs", path, between[1]
    for name in sorted(nested_names(layout.staging(archive))):
        if match := _STAGED.fullmatch(name.partition("/")[0]):
            yield "staging", name, int(match[1])
    templates = [OutputNames(spec.sink, spec.name) for spec in specs]
    for folder, folders, files in os.walk(sink) if sink else ():
        folders[:] = [name for name in folders if os.path.join(folder, name) != str(archive)]
        for name in sorted(files):
            if batch := next(filter(None, (each.batch_of(name) for each in templates)), None):
                yield "output", os.path.relpath(os.path.join(folder, name), sink), batch


def _files(archive: ArchivePath, folder: ArchivePath) -> Iterator[tuple[str, str]]:
    """The path below the archive and the name of all in a folder, in the order of names."""
    for name in sorted(names(folder)):
        yield str((folder / name).relative_to(archive)), name
