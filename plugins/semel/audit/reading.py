"""Reading the source again: each claimed range once more, by what its batch's markers declare.

A batch that was replayed is read by its first declaration, which its verdicts are of, and by the
newest one where that reads the source otherwise: what the rows must be is by that one. The records
of an admission are the dead letters that were left to it, in the ranges of the batch that they are
of.
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
"""Offsets (int64) by source partition of the records that count; None: all do."""


class Reading:
    """Reads the records of all batches into the engine's tables `source` and `reread`.

    Afterwards `lost` are the batches that cannot be proven, `gone` those of them whose records the
    source has deleted as it was to, `reread` those that were read by two declarations,
    `wrong_bytes` the dead letters that keep other bytes than the source has.
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
        self._again = SourceReader(engine, letters, "reread")
        self._open = ExitStack()
        self._auditors: dict[str, Auditor] = {}
        self._seen: dict[int, _Seen] = {}
        self.lost: set[int] = set()
        self.gone: set[int] = set()
        self.reread: set[int] = set()

    @property
    def wrong_bytes(self) -> set[tuple[int, int, int]]:
        return self._reader.wrong_bytes

    def run(self) -> None:
        with self._open:
            for marker in self._markers:
                first = self._replaced.judged(marker)
                if first is None:  # Blamed before: nobody knows by what its records were judged.
                    self.lost.add(marker.batch_id)
                    continue
                # Keeps ER3.
                if any(one.records for one in marker.erased):
                    self._forget(marker)
                    continue
                try:
                    places = self._left_to(marker)
                except SourceError as error:
                    self._blame(marker, None, error)
                    continue
                claims = sorted(claims_of(marker, self._markers), key=attrgetter("ordinal"))
                for claim in claims:
                    if places is None or claim.source_partition_id in places:
                        self._findings.examine("source")
                        self._read_claim(marker, first, claim, places)
                if self._compacted(marker, claims):
                    self._forget(marker)
            self._reader.flush()
            self._again.flush()

    def bytes_read(self, marker: Marker) -> int:
        """The bytes of the source that a batch was the first to read."""
        if marker.spec.source.counts_bytes:
            return sum(claim.end - claim.start for claim in marker.claims)
        seen = self._seen.get(marker.batch_id)
        return seen.bytes if seen and marker.admits is None else 0

    def _read_claim(self, marker: Marker, first: Marker, claim: Claim, places: _Places) -> None:
        seen = self._seen.setdefault(marker.batch_id, _Seen())
        try:
            then = self._read(self._reader, first, claim, places, seen)
            if first is not marker:
                now = self._read(self._again, marker, claim, places, _Seen(), unless=then)
                self.reread |= {marker.batch_id} if now != then else set()
        except RecordsLostError:
            self._forget(marker)
        except (SourceError, CorruptionError, OSError) as error:
            self._blame(marker, claim, error)

    def _read(
        self,
        reader: SourceReader,
        marker: Marker,
        claim: Claim,
        places: _Places,
        seen: "_Seen",
        unless: fast.LineDialect | None = None,
    ) -> fast.LineDialect:
        """Read a claim's records by a marker's declaration. Returns what that makes of them; where
        this is `unless`, they are not read.
        """
        source = marker.spec.source
        auditor, record_id = self._auditor(source), marker.spec.record_id
        header, pieces = auditor.read(claim, marker.batch_id, source, record_id)
        seen.gaps += claim.end - claim.start
        dialect = self._dialect(marker, header)
        for piece in _at(places, pieces) if dialect != unless else ():
            seen.add(piece)
            self._check_schemas(marker, piece)
            reader.read(piece, dialect)
        return dialect

    def _forget(self, marker: Marker) -> None:
        self.lost.add(marker.batch_id)
        self.gone.add(marker.batch_id)

    def _compacted(self, marker: Marker, claims: list[Claim]) -> bool:
        """Whether compaction has taken records of a batch: as many as are missing, or more."""
        seen = self._seen.get(marker.batch_id)
        if seen is None or marker.batch_id in self.lost:
            return False
        missing = marker.counts.records_read - seen.records
        compacted = self._auditor(marker.spec.source).is_compacted
        return 0 < missing <= seen.gaps and any(map(compacted, claims))

    def _auditor(self, then: SourceSpec) -> Auditor:
        """What reads claims of a kind of source, where the pipeline declares it to be now."""
        if then.type not in self._auditors:
            now = self._spec.source
            declared = now if now.type == then.type else then
            markers = (m for m in self._markers if m.spec.source.type == then.type)
            claims = (claim for marker in markers for claim in marker.claims)
            self._auditors[then.type] = self._open.enter_context(open_auditor(declared, claims))
        return self._auditors[then.type]

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

    # Keeps KS8.
    def _check_schemas(self, marker: Marker, piece: ClaimedRecords) -> None:
        """SourceError: a value was read by a schema that nobody has any more."""
        letters = self._letters.get((marker.batch_id, piece.claim.source_partition_id), {})
        for at, why in piece.unreadable.items():
            told = letters.get(int(piece.positions[at]), ())
            if piece.is_record[at] and not any(reason == Reason.unknown_schema for reason, _ in told):
                raise SourceError(why)

    # Keeps R3.
    def _dialect(self, marker: Marker, header: tuple[str, ...]) -> fast.LineDialect:
        if marker.parser_rules != PARSER_RULES:
            raise SourceError(
                f"its records were judged by rules {marker.parser_rules} of semel's parser, and this "
                f"semel has rules {PARSER_RULES}; audit it with the semel that wrote it"
            )
        source = marker.spec.source
        own = source.columns.keys() - source.unparsed_columns.keys()
        other = {n: column for column, rule in source.column_rules.items() for n in rule.names}
        columns = tuple(other.get(name, name) for name in header)
        lacking = {name for name in own - {*columns} if not _may_lack(source, name)}
        if lacking or {*columns} - own or len({*columns}) < len(columns):
            told = self._spec.limits.log_samples
            raise SourceError(
                f"its CSV header names {list(header) if told else f'{len(header)} columns'}"
            )
        return fast.dialect(marker.spec, columns, marker.bucket_seconds)

    def _blame(self, marker: Marker, claim: Claim | None, error: Exception) -> None:
        if marker.erased and isinstance(error, SourceError):  # Its source was erased, too.
            self._forget(marker)
            return
        self.lost.add(marker.batch_id)
        offender = Offender(
            what=f"batch {marker.batch_id} cannot be proven: {error}",
            batch=marker.batch_id,
            file=claim.name if claim else str(marker.path),
            offset=claim.start if claim else None,
        )
        self._findings.blame("source", offender)


def _may_lack(source: SourceSpec, column: str) -> bool:
    """Whether a file need not have a column."""
    rule = source.column_rules.get(column)
    return rule is not None and rule.optional


@dataclass
class _Seen:
    """What was read of a batch's claims. `gaps`: positions without anything, where they count
    records."""

    records: int = 0
    bytes: int = 0
    gaps: int = 0

    def add(self, piece: ClaimedRecords) -> None:
        self.records += int(np.count_nonzero(piece.is_record))
        self.bytes += piece.bytes_read
        self.gaps -= len(piece.is_record)


def claims_of(marker: Marker, markers: list[Marker]) -> tuple[Claim, ...]:
    """The ranges that a batch's records lie in: its own, or those of the batch that it admits."""
    if marker.admits is None:
        return marker.claims
    whose = (m for m in markers if m.batch_id == marker.admits.batch_id)
    return next((m.claims for m in whose), ())


def _at(places: _Places, pieces: Iterator[ClaimedRecords]) -> Iterator[ClaimedRecords]:
    """Keep only the records at `places`. None: keep all."""
    for piece in pieces:
        if places is not None:
            own = places.get(piece.claim.source_partition_id, ())
            piece = replace(piece, is_record=piece.is_record & np.isin(piece.positions, own))
        yield piece
