"""Which week a demo has landed last: a call that failed is taken up again, or the next week comes.
"""

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
    """The week that was landed last, and whether its run has succeeded; of the demo `of`."""

    week: int = 0
    done: bool = True

    @classmethod
    def load(cls, of: str = "demo") -> "DemoProgress":
        """What an earlier demo has written, or that there was none."""
        try:
            return cls(**json.loads(_file(of).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return cls()

    def save(self, of: str = "demo") -> None:
        """Write it whole or not at all."""
        new = _file(of).with_suffix(".new")
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        new.replace(_file(of))


def next_week(
    pipelines: Iterable[Spec], folders: Sequence[Path], of: str = "demo", files: str = "*.jsonl"
) -> int:
    """The week to land: the next one, or the last one where its run has not succeeded.

    `folders`: where the demo leaves `files`, beside what its pipelines keep. TerminalError: the
    year is over, or there are files of a demo that nobody remembers.
    """
    kept = [layout.archive_folder(each) for each in pipelines]
    left = chain(*(folder.glob(files) for folder in folders),
                 *(layout.markers(each).glob("*.json") for each in kept))
    known = DemoProgress.load(of)
    week = known.week + known.done
    flights.days_of(week)
    found = next(left, None)
    if known.week == 0 and found is not None:
        raise TerminalError(
            f"{found} is of an earlier demo, whose state is gone from {settings.state_dir()}; "
            f"remove {', '.join(map(str, [*folders, *kept]))} (`make reset` does it), and run this "
            "again"
        )
    return week


def _file(of: str) -> Path:
    return settings.state_dir() / f"{of}.json"
