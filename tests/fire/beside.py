"""What the programs beside the fire share: each goes on until SIGTERM."""

import signal
from types import FrameType


class BrokenPromise(Exception):
    """What was published is not what a reader may rely on."""


class Going:
    """Whether a program is to go on."""

    def __init__(self) -> None:
        self._going = True
        signal.signal(signal.SIGTERM, self._stop)
        # Ctrl-C reaches the whole group; the program that started us says when to stop.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def __bool__(self) -> bool:
        return self._going

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._going = False
