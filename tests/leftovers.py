"""Nothing is left behind, also after Ctrl-C or SIGTERM: processes that tests started end with the run.

Servers of tests (Postgres, Kafka, Airflow) leave their parents, so they are found by a variable of
their environment. Their folders lie in one that is removed last. So does Airflow's home, which it
makes as soon as it is imported: the user's own is neither read nor written.

Ctrl-C reaches each process of the terminal. The first one kills its workers, and they say nothing:
one that was interrupted, or ended its test when nobody listens any more, would tell that with a
traceback; and execnet waits for 15 seconds.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.process import current_process
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

VARIABLE = "PYTEST_SEMEL_FOLDER"
END_SECONDS = 10


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        # Not SIG_IGN, which what it starts would inherit.
        signal.signal(signal.SIGINT, lambda *_: None)
    elif VARIABLE not in os.environ:  # Else this pytest is a test of another.
        folder = Path(tempfile.mkdtemp(prefix="semel-tests-"))
        folder.chmod(0o1777)  # As the one above it: Postgres, for one, is another user.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # pytest's own stay.
        os.environ["TMPDIR"] = os.environ[VARIABLE] = str(folder)
        tempfile.tempdir = None
        # Its own would be looked for when this process exits, which is after our end.
        current_process()._config["tempdir"] = str(folder)
        config.add_cleanup(lambda: end(folder))
        _hear_sigterm()
        if config.getoption("numprocesses", None):
            config.pluginmanager.register(Interrupted())
    worker = getattr(config, "workerinput", {}).get("workerid", "main")
    os.environ["AIRFLOW_HOME"] = os.path.join(os.environ[VARIABLE], f"airflow-{worker}")


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart() -> Iterator[None]:
    """pytest-xdist starts its workers here; they ignore Ctrl-C from their first moment on."""
    told = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return (yield)
    finally:
        signal.signal(signal.SIGINT, told)


class Interrupted:
    """What happens at Ctrl-C where tests run in workers, which are all that was started here."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, self._heard)

    def _heard(self, *_: object) -> NoReturn:
        # A second one must not leave half of it running.
        _ignore_both()
        raise KeyboardInterrupt

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        for worker in psutil.Process().children():
            worker.kill()


def _hear_sigterm() -> None:
    """From now on SIGTERM ends this run as Ctrl-C does; a process that is forked from it just ends."""
    run = os.getpid()

    def heard(*_: object) -> NoReturn:
        if os.getpid() != run:
            os._exit(128 + signal.SIGTERM)
        _ignore_both()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, heard)


def _ignore_both() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def end(folder: Path) -> None:
    """End the processes of this run that are still there, and remove their folders."""
    left = [process for process in psutil.process_iter() if _is_of(process, folder)]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, stubborn = psutil.wait_procs(left, timeout=END_SECONDS)
    for process in stubborn:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stubborn, timeout=END_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)


def _is_of(process: psutil.Process, folder: Path) -> bool:
    with suppress(psutil.Error):
        return process.pid != os.getpid() and process.environ().get(VARIABLE) == str(folder)
    return False
