"""Nothing is left behind, also after Ctrl-C: processes that tests started end with the run.

Servers of tests (Postgres, Kafka, Airflow) leave their parents, so they are found by a variable of
their environment. Their folders lie in one that is removed last.
"""

import os
import shutil
import signal
import tempfile
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path

import psutil
import pytest

VARIABLE = "PYTEST_SEMEL_FOLDER"
END_SECONDS = 10


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        # Ctrl-C reaches each process of the terminal: the first one ends the others.
        signal.signal(signal.SIGINT, lambda *_: None)
    elif VARIABLE not in os.environ:  # Else this pytest is a test of another.
        folder = Path(tempfile.mkdtemp(prefix="semel-tests-"))
        folder.chmod(0o1777)  # As the one above it: Postgres, for one, is another user.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # pytest's own stay.
        os.environ["TMPDIR"] = os.environ[VARIABLE] = str(folder)
        tempfile.tempdir = None
        config.add_cleanup(lambda: end(folder))
        # As the interpreter exits: multiprocessing's own folder in it goes first (priority -100).
        Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-1000)


def end(folder: Path) -> None:
    """End the processes of this run that are still there."""
    left = [process for process in psutil.process_iter() if _is_of(process, folder)]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, stubborn = psutil.wait_procs(left, timeout=END_SECONDS)
    for process in stubborn:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stubborn, timeout=END_SECONDS)


def _is_of(process: psutil.Process, folder: Path) -> bool:
    with suppress(psutil.Error):
        return process.pid != os.getpid() and process.environ().get(VARIABLE) == str(folder)
    return False
