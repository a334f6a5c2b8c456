"""Reads each claimed range of the source a second time, by the declarations in the markers.

For a replayed batch it uses the first declaration, which has judged its records. If the newest one
reads the source differently, it reads by that one too, because it determines the rows. The records
of an admission are dead letters, in the claims of the batch that they come from.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from semel.archive.marker import Marker
from semel.audit import fast
from semel.audit.generations import Generations
from semel.audit.source_reader import Letters, SourceReader
from semel.audit.verdict import Findings, Offender
from semel.clients.duck import DuckEngine
from semel.declare.ddl import PARSER_RULES
from semel.errors import CorruptionError, SourceError
from semel.model.batch import Claim
from semel.model.reasons import Reason
from semel.pipeline.spec import Spec
from semel.sources.reread import Auditor, ClaimedRecords, RecordsLostError, open_auditor
from semel.sources.spec import SourceSpec

_Places = dict[int, np.ndarray] | None
"""The offsets (int64) to read, by source partition. None: all."""


class Reading:
    """Reads the records of all batches into the engine's tables `source` and `reread`.

    The results are sets. `unproven`: batches that cannot be proven; `expired`: those whose records
    the source has deleted, as it may; `read_twice`: batches read by two declarations;
    `wrong_bytes`: dead letters whose bytes differ from the source's.
    """

    def __init__(
        self,
        spec: Spec,
        engine: DuckEngine,
        markers: list[Marker],
        replaced: Generations,
        letters: Letters,
        findings: Findings,
    ) -> None:
        self._spec, self._markers, self._replaced = spec, markers, replaced
        self._letters, self._findings = letters, findings
        self._reader = SourceReader(engine, letters)
        self._second_reader = SourceReader(engine, letters, "reread")
        self._open = ExitStack()
        self._auditors: dict[str, Auditor] = {}
        self._tallies: dict[int, ReadTally] = {}
        self.unproven: set[int] = set()
        self.expired: set[int] = set()
        self.read_twice: set[int] = set()

    @property
    def wrong_bytes(self) -> set[tuple[int, int, int]]:
        return self._reader.wrong_bytes

    def run(self) -> None:
        with self._open:
            for marker in self._markers:
                first = self._replaced.judging_marker(marker)
                if first is None:  # `generations` has blamed the missing declaration.
                    self.unproven.add(marker.batch_id)
                    continue
                # Keeps ER3.
                if any(one.records for one in marker.erased):
                    self._mark_expired(marker)
                    continue
                try:
                    places = self._admitted_offsets(marker)
                except SourceError as error:
                    self._blame(marker, None, error)
                    continue
                claims = sorted(claims_of(marker, self._markers), key=attrgetter("ordinal"))
                for claim in claims:
                    if places is None or claim.source_partition_id in places:
                        self._findings.examine("source")
                        self._read_claim(marker, first, claim, places)
                if self._is_compacted(marker, claims):
                    self._mark_expired(marker)
            self._reader.flush()
            self._second_reader.flush()

    def bytes_read(self, marker: Marker) -> int:
        """The bytes that a batch has read from the source. 0 for an admission."""
        if marker.spec.source.counts_bytes:
            return sum(claim.end - claim.start for claim in marker.claims)
        tally = self._tallies.get(marker.batch_id)
        return tally.bytes if tally and marker.admits is None else 0

    def _read_claim(self, marker: Marker, first: Marker, claim: Claim, places: _Places) -> None:
        tally = self._tallies.setdefault(marker.batch_id, ReadTally())
        try:
            then = self._read(self._reader, first, claim, places, tally)
            if first is not marker:
                reader = self._second_reader
                now = self._read(reader, marker, claim, places, ReadTally(), unless=then)
                self.read_twice |= {marker.batch_id} if now != then else set()
        except RecordsLostError:
            self._mark_expired(marker)
        except (SourceError, CorruptionError, OSError) as error:
            self._blame(marker, claim, error)

    def _read(
        self,
        reader: SourceReader,
        marker: Marker,
        claim: Claim,
        places: _Places,
        tally: "ReadTally",
        unless: fast.LineDialect | None = None,
    ) -> fast.LineDialect:
        """Read a claim's records by a marker's declaration, unless their dialect is `unless`.

        Returns the dialect.
        """
        source = marker.spec.source
        auditor, record_id = self._auditor(source), marker.spec.record_id
        header, pieces = auditor.read(claim, marker.batch_id, source, record_id)
        tally.gaps += claim.end - claim.start
        dialect = self._dialect(marker, header)
        for piece in _at_places(places, pieces) if dialect != unless else ():
            tally.add(piece)
            self._check_schemas(marker, piece)
            reader.read(piece, dialect)
        return dialect

    def _mark_expired(self, marker: Marker) -> None:
        self.unproven.add(marker.batch_id)
        self.expired.add(marker.batch_id)

    def _is_compacted(self, marker: Marker, claims: list[Claim]) -> bool:
        """True if log compaction removed at least as many records as the batch is missing."""
        tally = self._tallies.get(marker.batch_id)
        if tally is None or marker.batch_id in self.unproven:
            return False
        missing = marker.counts.records_read - tally.records
        compacted = self._auditor(marker.spec.source).is_compacted
        return 0 < missing <= tally.gaps and any(map(compacted, claims))

    def _auditor(self, then: SourceSpec) -> Auditor:
        """The second reader for claims of this kind of source. Uses the current declaration, if it
        has the same kind.
        """
        if then.type not in self._auditors:
            now = self._spec.source
            declared = now if now.type == then.type else then
            markers = (m for m in self._markers if m.spec.source.type == then.type)
            claims = (claim for marker in markers for claim in marker.claims)
            self._auditors[then.type] = self._open.enter_context(open_auditor(declared, claims))
        return self._auditors[then.type]

    def _admitted_offsets(self, marker: Marker) -> _Places:
        """The offsets of the dead letters that an admission judged. None for other batches.

        Raises SourceError if the markers do not determine them.
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
            raise SourceError(
                f"batch {others[number]} judged the same dead letters of batch {root}"
            )
        if not any(m.batch_id == root and m.admits is None for m in self._markers):
            raise SourceError(f"it judged dead letters of batch {root}, which has no marker")
        if number > 1 and number - 1 not in others:
            raise SourceError(f"admission {number - 1} of batch {root} has no marker")
        previous = others[number - 1] if number > 1 else root
        return {
            part: np.fromiter(letters, np.int64, len(letters))
            for (batch, part), letters in self._letters.items()
            if batch == previous
        }

    # Keeps KS8.
    def _check_schemas(self, marker: Marker, piece: ClaimedRecords) -> None:
        """Raises SourceError if a record needs a schema that no longer exists, and is not a dead
        letter for that reason.
        """
        letters = self._letters.get((marker.batch_id, piece.claim.source_partition_id), {})
        for at, why in piece.unreadable.items():
            reasons = [reason for reason, _ in letters.get(int(piece.positions[at]), ())]
            if piece.is_record[at] and Reason.unknown_schema not in reasons:
                raise SourceError(why)

    # Keeps R3.
    def _dialect(self, marker: Marker, header: tuple[str, ...]) -> fast.LineDialect:
        if marker.parser_rules != PARSER_RULES:
            raise SourceError(
                f"it used rules {marker.parser_rules} of semel's parser, and this version of semel "
                f"has rules {PARSER_RULES}. Audit it with the version that wrote it"
            )
        source = marker.spec.source
        in_text = source.columns.keys() - source.unparsed_columns.keys()
        other = {n: column for column, rule in source.column_rules.items() for n in rule.names}
        columns = tuple(other.get(name, name) for name in header)
        lacking = {name for name in in_text - {*columns} if not _is_optional(source, name)}
        if lacking or {*columns} - in_text or len({*columns}) < len(columns):
            names = list(header) if self._spec.limits.log_samples else f"{len(header)} columns"
            raise SourceError(f"its CSV header does not fit the declaration: it names {names}")
        return fast.dialect(marker.spec, columns, marker.bucket_seconds)

    def _blame(self, marker: Marker, claim: Claim | None, error: Exception) -> None:
        if marker.erased and isinstance(error, SourceError):  # The erasure included its source.
            self._mark_expired(marker)
            return
        self.unproven.add(marker.batch_id)
        offender = Offender(
            what=f"batch {marker.batch_id} cannot be proven: {error}",
            batch=marker.batch_id,
            file=claim.name if claim else str(marker.path),
            offset=claim.start if claim else None,
        )
        self._findings.blame("source", offender)


def _is_optional(source: SourceSpec, column: str) -> bool:
    """True if files may lack this column."""
    rule = source.column_rules.get(column)
    return rule is not None and rule.optional


@dataclass
class ReadTally:
    """The amount that the audit read of a batch's claims. `gaps`: positions without a record, if
    positions count records."""

    records: int = 0
    bytes: int = 0
    gaps: int = 0

    def add(self, piece: ClaimedRecords) -> None:
        self.records += int(np.count_nonzero(piece.is_record))
        self.bytes += piece.bytes_read
        self.gaps -= len(piece.is_record)


def claims_of(marker: Marker, markers: list[Marker]) -> tuple[Claim, ...]:
    """The ranges with a batch's records. An admission has those of its root."""
    if marker.admits is None:
        return marker.claims
    roots = (m for m in markers if m.batch_id == marker.admits.batch_id)
    return next((m.claims for m in roots), ())


def _at_places(places: _Places, pieces: Iterator[ClaimedRecords]) -> Iterator[ClaimedRecords]:
    """Drop records outside of `places`, if it is not None."""
    for piece in pieces:
        if places is not None:
            offsets = places.get(piece.claim.source_partition_id, ())
            piece = replace(piece, is_record=piece.is_record & np.isin(piece.positions, offsets))
        yield piece
