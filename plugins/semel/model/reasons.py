"""The reasons for dead letters, each with the input that it depends on."""

from enum import StrEnum


class DecidedBy(StrEnum):
    """The input that a reason depends on."""

    TEXT = "text"
    """The record's text and the schema."""
    ID = "id"
    TIME = "time"
    """record_time, the ledger's clock and the ids that collect has forgotten."""
    SINK = "sink"
    REGISTRY = "registry"


class ExplainedEnum(StrEnum):
    """Words with a sentence that explains each: `says`."""

    def __new__(cls, word: str, says: str) -> "ExplainedEnum":
        member = str.__new__(cls, word)
        member._value_, member.says = word, says
        return member

    says: str


class Reason(StrEnum):
    """Why a record was rejected. Dead-letter files have these words, so they MUST NOT change.

    `says`: the sentence about the reason. Empty if the sentence depends on the record.
    """

    def __new__(cls, word: str, decided_by: DecidedBy, says: str = "") -> "Reason":
        member = str.__new__(cls, word)
        member._value_, member.decided_by, member.says = word, decided_by, says
        return member

    decided_by: DecidedBy
    says: str

    malformed = "malformed", DecidedBy.TEXT
    encoding = "encoding", DecidedBy.TEXT
    duplicate_key = "duplicate_key", DecidedBy.TEXT
    field_count = "field_count", DecidedBy.TEXT
    type_mismatch = "type_mismatch", DecidedBy.TEXT
    unknown_key = "unknown_key", DecidedBy.TEXT
    too_long = "too_long", DecidedBy.TEXT
    unknown_schema = "unknown_schema", DecidedBy.REGISTRY
    late = (
        "late", DecidedBy.TIME,
        "too late: the ids of its bucket of record_time are forgotten",
    )  # fmt: skip
    record_time_ahead = (
        "record_time_ahead", DecidedBy.TIME, "record_time is more than a day in the future"
    )  # fmt: skip
    record_time_missing = (
        "record_time_missing", DecidedBy.TIME,
        "expected a time, as it is record_time; found nothing",
    )  # fmt: skip
    record_time_outside = (
        "record_time_outside", DecidedBy.TIME,
        "its year is outside of 100 to 9899, and no window has it",
    )  # fmt: skip
    id_missing = (
        "id_missing", DecidedBy.ID, "expected a value, as it is part of record_id; found nothing"
    )  # fmt: skip
    sink_refuses = "sink_refuses", DecidedBy.SINK

    @property
    def varies(self) -> bool:
        """True if another attempt may decide differently about the same record."""
        if self in (Reason.record_time_missing, Reason.record_time_outside):
            return False
        return self.decided_by in (DecidedBy.TIME, DecidedBy.SINK, DecidedBy.REGISTRY)
