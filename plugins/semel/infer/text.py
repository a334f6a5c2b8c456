"""Write a draft as YAML with comments."""

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


def yaml_of(draft: PipelineDraft, trial: Trial, samples: Samples) -> str:
    """The file's text. Raises SpecError if it is larger than a pipeline's file may be."""
    text = _text(draft, trial, samples, _comment)
    if len(text.encode()) > SPEC_BYTES_MAX:
        # Leave the comments out. YAML quotes a name that begins with #, so it is not lost here.
        lines = _text(draft, trial, samples, lambda _: "").splitlines()
        text = "\n".join(line for line in lines if not line.lstrip().startswith("#")) + "\n"
    if (size := len(text.encode())) > SPEC_BYTES_MAX:
        raise SpecError(
            f"{len(draft.guesses):,} columns make a declaration of {size >> 10} KiB, and a "
            f"pipeline's file has {SPEC_BYTES_MAX >> 10} KiB at most. Leave columns out of "
            "the files, or put them into one JSON object"
        )
    return text


def _text(
    draft: PipelineDraft, trial: Trial, samples: Samples, comment: Callable[[Guess], str]
) -> str:
    document = draft.document()
    source = document["source"]
    lines = [
        f"# Drafted by `semel new` from {samples}.",
        f"# Of these, semel read {trial.records:,} records and quarantined {trial.quarantined:,}.",
        "# docs/pipelines.md explains every key.",
        "# The DAG has this name too. The catalog of record ids depends on it: never change it.",
        f"name: {scalar(draft.name)}",
    ]
    if "schedule" in document:
        lines += [
            "# In UTC. In Airflow, a DAG with a schedule arrives paused.",
            f"schedule: {scalar(document['schedule'])}",
        ]
    lines += [
        "source:",
        "  type: files",
        "  # Relative to the data folder.",
        f"  path: {scalar(draft.path)}",
        f"  format: {draft.dialect.format}",
    ]
    if "csv" in source:
        shown_csv = ", ".join(f"{key}: {scalar(value)}" for key, value in source["csv"].items())
        lines.append(f"  csv: {{{shown_csv}}}")
    lines += _selection(draft)
    lines += _waiting(draft)
    lines += _unknown(draft)
    lines += [
        "  # A value that does not fit its type sends its record to the dead letters. A batch with",
        "  # more of them than limits.quarantine_ratio_max (0.05) stops.",
        "  schema:",
        *(f"    {scalar(name)}: {scalar(guess.type)}{comment(guess)}"
          for name, guess in draft.guesses.items()),
        *_optional(draft),
        *_identity(draft),
        *_time(draft),
        "sink:",
        "  type: files",
        f"  path: {scalar(draft.sink)}  # no other pipeline may write here",
        "  format: parquet",
        "",
    ]
    return "\n".join(lines)


def _selection(draft: PipelineDraft) -> list[str]:
    if draft.dates is None:
        return [
            "  # Each run takes all files that it has not read. For backfills over dates:",
            "  # select: interval",
            '  # interval_from: mtime  # or a pattern of the names, such as "x-%Y-%m-%d.csv"',
        ]
    return [
        "  # Each run takes the files of its interval, so that you can backfill dates.",
        "  select: interval",
        f"  interval_from: {scalar(draft.dates.pattern)}",
    ]


def _waiting(draft: PipelineDraft) -> list[str]:
    if not draft.waits:
        return []
    if draft.dialect.csv.multiline:
        why = "Fields contain line ends, so semel reads a file once, completely, at this age."
    else:
        name = ascii(printable_path(draft.open_ends[0].name))
        why = f"{name} lacks a line end after its last record."
    return [
        f"  # {why}",
        "  # It must be longer than any pause of the program that writes the files.",
        "  closed_after: 1 minute",
    ]


def _unknown(draft: PipelineDraft) -> list[str]:
    if draft.dialect.format != "jsonl":
        return []
    if not draft.other_keys:
        return ["  # `unknown: keep` would keep keys that the schema does not name, in one column."]
    frequent = sorted(draft.other_keys, key=lambda key: -draft.other_keys[key])[:_LEFT_OUT_NAMED]
    named = ", ".join(f"{example(key)} in {draft.other_keys[key]:,}" for key in frequent)
    count = len(draft.other_keys) - len(frequent)
    more = f" and {count:,} more" if count else ""
    return [
        f"  # One column, _semel_rest, keeps the other keys: {named} records{more}.",
        "  unknown: keep",
    ]


def _optional(draft: PipelineDraft) -> list[str]:
    if not draft.optional:
        return []
    return [
        "  # Some samples lack these columns: their records get null there.",
        "  columns:",
        *(f"    {scalar(name)}: {{optional: true}}" for name in draft.optional),
    ]


def _comment(guess: Guess) -> str:
    notes = []
    if guess.exceptions:
        values = ", ".join(map(example, guess.examples))
        notes.append(f"{guess.exceptions:,} of {guess.records:,} do not fit: {values}")
    notes += guess.notes
    notes += [guess.foreign] if guess.foreign else []
    return f"  # {'; '.join(notes)}" if notes else ""


def _identity(draft: PipelineDraft) -> list[str]:
    proposed = draft.identity
    lines = []
    if draft.record_id:
        lines.append("# Records with equal values in these columns are one: semel drops repeats.")
        if proposed.counts_from_one and draft.record_id == proposed.record_id:
            lines += [
                "# Its values count from the beginning. If each file counts by itself, remove it:",
                "# semel would drop the records of all later files as repeats.",
            ]
        lines.append(f"record_id: {_list(draft.record_id)}")
    else:
        lines += [
            "# In the sample, no column with an id's name is unique and never null. So each",
            "# position in a file is a record of its own, and semel does not recognise repeats.",
        ]
    if proposed.repeats:
        lines.append(f"# {proposed.repeats:,} records of the sample repeat another one exactly.")
    others = [columns for columns in proposed.others if columns != draft.record_id]
    if others:
        lines.append("# Also unique and never null in the sample:")
        lines += [f"# record_id: {_list(columns)}" for columns in others]
    return lines


def _time(draft: PipelineDraft) -> list[str]:
    if draft.record_time is None:
        return []
    return [
        "# The record's own time, the same on every delivery.",
        f"record_time: {scalar(draft.record_time)}",
    ]


def _list(names: tuple[str, ...]) -> str:
    return f"[{', '.join(map(scalar, names))}]"


def scalar(value: object) -> str:
    """A value in YAML, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)


def example(text: str) -> str:
    """A text of the samples for a comment: printable ASCII, short, on one line."""
    shown_text = json.dumps(text[:_EXAMPLE_CHARS])
    return f"{shown_text[:-1]}..." + '"' if len(text) > _EXAMPLE_CHARS else shown_text
