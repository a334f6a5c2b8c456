"""Remembers the last week of a demo, so that the next call resumes it or lands the next week."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from semel import settings
from semel.archive import layout
from semel.errors import TerminalError
from semel.pipeline.spec import Spec
from semel_local.demo import flights


@dataclass(frozen=True, kw_only=True)
class DemoProgress:
    """The week that a demo landed last, and whether its run has succeeded."""

    week: int = 0
    done: bool = True

    @classmethod
    def load(cls, of: str = "demo") -> "DemoProgress":
        """The progress of the demo `of`; week 0 if it has never run."""
        try:
            return cls(**json.loads(_file(of).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return cls()

    def save(self, of: str = "demo") -> None:
        """Write the progress atomically."""
        new = _file(of).with_suffix(".new")
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        new.replace(_file(of))


def next_week(
    pipelines: Iterable[Spec], folders: Sequence[Path], of: str = "demo", files: str = "*.jsonl"
) -> int:
    """The week to land: the next one, or the last one if its run has not succeeded.

    `folders`: where the demo writes `files`, apart from the archives of its pipelines. Raises
    TerminalError if the year is over, or if there are files of a demo without progress.
    """
    archives = [layout.archive_folder(each) for each in pipelines]
    leftovers = chain(*(folder.glob(files) for folder in folders),
                      *(layout.markers(each).glob("*.json") for each in archives))
    progress = DemoProgress.load(of)
    week = progress.week + progress.done
    flights.days_of(week)
    leftover = next(leftovers, None)
    if progress.week == 0 and leftover is not None:
        raise TerminalError(
            f"{leftover} belongs to an earlier demo, but {settings.state_dir()} lacks its state. "
            f"Remove {', '.join(map(str, [*folders, *archives]))} (`make reset` does), "
            "then run this again"
        )
    return week


def _file(of: str) -> Path:
    return settings.state_dir() / f"{of}.json"
