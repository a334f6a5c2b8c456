"""Reading the source again: each claimed range once more, by what its batch's markers declare.

A batch that was replayed is read by its first declaration, which its verdicts are of, and by the
newest one where that reads the source otherwise: what the rows must be is by that one. The records
of an admission are the dead letters that were left to it, in the ranges of the batch that they are
of.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np

from semel.audit import fast
from semel.audit.engine import Engine, Letters, SourceReader
from semel.audit.generations import Generations
from semel.audit.source import Finder, Lines, csv_of, header_of, lines
from semel.audit.verdict import Findings, Offender
from semel.batch import Claim
from semel.errors import CorruptionError, SourceError, TerminalError
from semel.reader import Marker
from semel.sources.files.claimed import ClaimedFile
from semel.spec.pipeline import Spec

_Places = dict[int, np.ndarray] | None
"""Offsets (int64) by source partition of the records that count; None: all do."""


class Reading:
    """Reads the records of all batches into the engine's tables `source` and `reread`.

    Afterwards `lost` are the batches that cannot be proven, `reread` those that were read by two
    declarations, `wrong_bytes` the dead letters that keep other bytes than the source has.
    """

    def __init__(
        self,
        spec: Spec,
        engine: Engine,
        markers: list[Marker],
        replaced: Generations,
        letters: Letters,
        findings: Findings,
    ) -> None:
        self._spec, self._markers, self._replaced = spec, markers, replaced
        self._letters, self._findings = letters, findings
        self._reader = SourceReader(engine, letters)
        self._again = SourceReader(engine, letters, "reread")
        self.lost: set[int] = set()
        self.reread: set[int] = set()

    @property
    def wrong_bytes(self) -> set[tuple[int, int, int]]:
        return self._reader.wrong_bytes

    def run(self) -> None:
        roots = {Path(c.name).parent for m in self._markers for c in m.claims}
        with suppress(TerminalError):  # A source that left the data roots is found by its claims.
            roots.add(self._spec.source_root())
        finder = Finder(roots)
        for marker in self._markers:
            first = self._replaced.first(marker)
            if first is None:  # Blamed before: nobody knows by what its records were judged.
                self.lost.add(marker.batch_id)
                continue
            try:
                places = self._left_to(marker)
            except SourceError as error:
                self._blame(marker, None, error)
                continue
            for claim in sorted(claims_of(marker, self._markers), key=attrgetter("ordinal")):
                if places is not None and claim.source_partition_id not in places:
                    continue
                self._findings.examine("source")
                try:
                    found = ClaimedFile.of(claim)
                    path = finder.find(found)
                    if path is None:
                        raise SourceError("neither it nor a renamed file has the claimed bytes")
                    dialect = self._read(self._reader, first, found, path, places)
                    if first is not marker and self._dialect(marker, path) != dialect:
                        self.reread.add(marker.batch_id)
                        self._read(self._again, marker, found, path, places)
                except (SourceError, CorruptionError, OSError) as error:
                    self._blame(marker, claim, error)
        self._reader.flush()
        self._again.flush()

    def _left_to(self, marker: Marker) -> _Places:
        """The dead letters that were left to an admission, None of another batch.

        SourceError: its markers do not tell which.
        """
        if marker.admits is None:
            return None
        root, number = marker.admits.batch_id, marker.admits.admission
        others = {
            m.admits.admission: m.batch_id
            for m in self._markers
            if m.admits and m.admits.batch_id == root and m.commit_seq < marker.commit_seq
        }
        if number in others:
            raise SourceError(f"batch {others[number]} judged the same dead letters of {root}")
        if not any(m.batch_id == root and m.admits is None for m in self._markers):
            raise SourceError(f"batch {root}, whose dead letters it judged, has no marker")
        if number > 1 and number - 1 not in others:
            raise SourceError(f"no marker is of admission {number - 1} of batch {root}")
        before = others[number - 1] if number > 1 else root
        return {
            part: np.fromiter(found, np.int64, len(found))
            for (batch, part), found in self._letters.items()
            if batch == before
        }

    def _read(
        self, reader: SourceReader, marker: Marker, claim: ClaimedFile, path: str, places: _Places
    ) -> fast.Dialect:
        """Read a claim's records by a marker's declaration. Returns what that makes of them."""
        dialect = self._dialect(marker, path)
        for piece in _at(places, lines(marker.batch_id, claim, path, dialect.csv)):
            reader.read(piece, dialect)
        return dialect

    def _dialect(self, marker: Marker, path: str) -> fast.Dialect:
        csv = csv_of(marker.spec)
        header = header_of(path, csv) if csv else ()
        if csv and sorted(header) != sorted(marker.spec.source.columns):
            told = self._spec.limits.log_samples
            raise SourceError(
                f"its CSV header names {list(header) if told else f'{len(header)} columns'}"
            )
        return fast.dialect(marker.spec, header, marker.bucket_seconds, marker.parser_rules)

    def _blame(self, marker: Marker, claim: Claim | None, error: Exception) -> None:
        self.lost.add(marker.batch_id)
        offender = Offender(
            what=f"batch {marker.batch_id} cannot be proven: {error}",
            batch=marker.batch_id,
            file=claim.name if claim else str(marker.path),
            offset=claim.start if claim else None,
        )
        self._findings.blame("source", offender)


def claims_of(marker: Marker, markers: list[Marker]) -> tuple[Claim, ...]:
    """The ranges that a batch's records lie in: its own, or those of the batch that it admits."""
    if marker.admits is None:
        return marker.claims
    whose = (m for m in markers if m.batch_id == marker.admits.batch_id)
    return next((m.claims for m in whose), ())


def _at(places: _Places, pieces: Iterator[Lines]) -> Iterator[Lines]:
    """Of records those that count."""
    for piece in pieces:
        if places is not None:
            own = places.get(piece.claim.source_partition_id, ())
            piece = replace(piece, kept=piece.kept & np.isin(piece.positions, own))
        yield piece
