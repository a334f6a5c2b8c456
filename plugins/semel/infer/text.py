"""The commented YAML of a draft."""

import json
import re
from collections.abc import Callable

from semel.declare.yaml import SPEC_BYTES_MAX
from semel.errors import SpecError
from semel.infer.draft import PipelineDraft, Trial
from semel.infer.sample import Samples
from semel.infer.types import Guess
from semel.sources.files.listing import printable_path

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z0-9_.]+)*|(decimal\([0-9,]+\))")
_WORDS = {"yes", "no", "on", "off", "true", "false", "null"}
_EXAMPLE_CHARS = 40
_LEFT_OUT_NAMED = 5


def yaml_of(made: PipelineDraft, tried: Trial, samples: Samples) -> str:
    """The file's text. SpecError: it would be larger than a pipeline's file may be."""
    text = _text(made, tried, samples, _comment)
    if len(text.encode()) > SPEC_BYTES_MAX:
        # Of a thousand columns nobody reads the comments. A name that begins with # is quoted.
        lines = _text(made, tried, samples, lambda _: "").splitlines()
        text = "\n".join(line for line in lines if not line.lstrip().startswith("#")) + "\n"
    if (size := len(text.encode())) > SPEC_BYTES_MAX:
        raise SpecError(
            f"{len(made.guesses):,} columns make a declaration of {size >> 10} KiB, and a "
            f"pipeline's file has {SPEC_BYTES_MAX >> 10} KiB at most; leave columns out of "
            "the files, or put them into one JSON object"
        )
    return text


def _text(
    made: PipelineDraft, tried: Trial, samples: Samples, comment: Callable[[Guess], str]
) -> str:
    document = made.document()
    source = document["source"]
    lines = [
        f"# Drafted by `semel new` from {samples}.",
        f"# Of these, semel read {tried.records:,} records and quarantined {tried.quarantined:,}.",
        "# Every key is explained in docs/pipelines.md.",
        "# The DAG has this name too. The catalog of record ids depends on it: never change it.",
        f"name: {scalar(made.name)}",
    ]
    if "schedule" in document:
        lines += [
            "# In UTC. A DAG with a schedule arrives paused in Airflow.",
            f"schedule: {scalar(document['schedule'])}",
        ]
    lines += [
        "source:",
        "  type: files",
        "  # Relative to the data folder.",
        f"  path: {scalar(made.path)}",
        f"  format: {made.dialect.format}",
    ]
    if "csv" in source:
        shown_csv = ", ".join(f"{key}: {scalar(value)}" for key, value in source["csv"].items())
        lines.append(f"  csv: {{{shown_csv}}}")
    lines += _selection(made)
    lines += _waiting(made)
    lines += _unknown(made)
    lines += [
        "  # A value that does not fit its type sends its record to the dead letters. A batch with",
        "  # more of them than limits.quarantine_ratio_max (0.05) stops.",
        "  schema:",
        *(f"    {scalar(name)}: {scalar(guess.type)}{comment(guess)}"
          for name, guess in made.guesses.items()),
        *_optional(made),
        *_identity(made),
        *_time(made),
        "sink:",
        "  type: files",
        f"  path: {scalar(made.sink)}  # no other pipeline may write here",
        "  format: parquet",
        "",
    ]
    return "\n".join(lines)


def _selection(made: PipelineDraft) -> list[str]:
    if made.dates is None:
        return [
            "  # Each run takes what has arrived. For backfills over dates:",
            "  # select: interval",
            '  # interval_from: mtime  # or a pattern of the names, such as "x-%Y-%m-%d.csv"',
        ]
    return [
        "  # Each run takes the files of its interval, so that dates can be backfilled.",
        "  select: interval",
        f"  interval_from: {scalar(made.dates.pattern)}",
    ]


def _waiting(made: PipelineDraft) -> list[str]:
    if not made.waits:
        return []
    if made.dialect.csv.multiline:
        why = "Fields hold line ends, so a file is read once, whole, when it is this old."
    else:
        name = ascii(printable_path(made.open_ends[0].name))
        why = f"{name} has no line end behind its last record."
    return [
        f"  # {why}",
        "  # More than the longest pause of whoever writes the files.",
        "  closed_after: 1 minute",
    ]


def _unknown(made: PipelineDraft) -> list[str]:
    if made.dialect.format != "jsonl":
        return []
    if not made.left_out:
        return ["  # `unknown: keep` would keep keys that the schema does not name, in one column."]
    some = sorted(made.left_out, key=lambda key: -made.left_out[key])[:_LEFT_OUT_NAMED]
    named = ", ".join(f"{example(key)} in {made.left_out[key]:,}" for key in some)
    count = len(made.left_out) - len(some)
    more = f" and {count:,} more" if count else ""
    return [
        f"  # Keys that are no columns are kept as one, _semel_rest: {named} records{more}.",
        "  unknown: keep",
    ]


def _optional(made: PipelineDraft) -> list[str]:
    if not made.optional:
        return []
    return [
        "  # Some samples lack these columns: their records have null there.",
        "  columns:",
        *(f"    {scalar(name)}: {{optional: true}}" for name in made.optional),
    ]


def _comment(guess: Guess) -> str:
    said = []
    if guess.exceptions:
        some = ", ".join(map(example, guess.examples))
        said.append(f"{guess.exceptions:,} of {guess.records:,} do not fit: {some}")
    said += guess.notes
    said += [guess.foreign] if guess.foreign else []
    return f"  # {'; '.join(said)}" if said else ""


def _identity(made: PipelineDraft) -> list[str]:
    found = made.identity
    lines = []
    if made.record_id:
        lines.append("# Records that agree in these columns are one; repeats are dropped.")
        if found.counts_from_one and made.record_id == found.record_id:
            lines += [
                "# Its values count from the beginning. If each file counts by itself, take it",
                "# away: all files but the first would be dropped as repeats.",
            ]
        lines.append(f"record_id: {_list(made.record_id)}")
    else:
        lines += [
            "# No column that is named like an id is unique and never null in the sample. So each",
            "# position of a file is a record of its own, and a repeat is not recognised.",
        ]
    if found.repeats:
        lines.append(f"# {found.repeats:,} records of the sample repeat another one exactly.")
    others = [one for one in found.others if one != made.record_id]
    if others:
        lines.append("# Unique and never null in the sample as well:")
        lines += [f"# record_id: {_list(one)}" for one in others]
    return lines


def _time(made: PipelineDraft) -> list[str]:
    if made.record_time is None:
        return []
    return [
        "# The record's own time, the same on every delivery.",
        f"record_time: {scalar(made.record_time)}",
    ]


def _list(names: tuple[str, ...]) -> str:
    return f"[{', '.join(map(scalar, names))}]"


def scalar(value: object) -> str:
    """A value as YAML reads it back, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)


def example(text: str) -> str:
    """A text of the samples in a comment: printable ASCII, short, on one line."""
    shown_text = json.dumps(text[:_EXAMPLE_CHARS])
    return f"{shown_text[:-1]}..." + '"' if len(text) > _EXAMPLE_CHARS else shown_text
