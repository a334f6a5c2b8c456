"""Transforms from spark_jobs/: pure functions from DataFrame to DataFrame, and SQL queries."""

import importlib.util
import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import ModuleType

from pyspark import cloudpickle
from pyspark.sql import DataFrame

from semel import settings
from semel.errors import TerminalError
from semel.pipeline.transforms import VIEW, file_of, flaws, is_sql, text_of

_VIEW_LOCK = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Transform:
    """A transform for the engine. `query`: the text of an SQL file; None for a Python function."""

    name: str
    apply: Callable[[DataFrame], DataFrame]
    query: str | None = None

    @property
    def path(self) -> str:
        """The transform's file, as traces print it."""
        return str(file_of(self.name))


def load_transforms(names: tuple[str, ...], code: dict[str, bytes]) -> list[Transform]:
    """Load transforms, in order. `code`: the text of each file, by file name.

    Raises TerminalError if a file has an error or lacks the function.
    """
    return [
        _sql(name, code[name]) if is_sql(name) else _python(name, code[file_of(name).name])
        for name in names
    ]


def _python(name: str, text: bytes) -> Transform:
    module_name, _, function = name.partition(":")
    transform = getattr(_module(module_name, text), function, None)
    if not callable(transform):
        raise TerminalError(
            f"transform {name}: {module_name}.py in {settings.transforms_dir()} does not define "
            f"a function {function!r}"
        )
    return Transform(name=name, apply=transform)


# Keeps S25.
def _sql(name: str, data: bytes) -> Transform:
    path = file_of(name)
    if faults := "; ".join(f"{path}:{flaw}" for flaw in flaws(data)):
        raise TerminalError(f"transform {name}: {faults}. Fix it, then run stage again")
    text = text_of(data)

    def apply(records: DataFrame) -> DataFrame:
        session, result = records.sparkSession, f"semel_{uuid.uuid4().hex}"
        # Connect analyses a query again at each use, with the view `records` of that moment. If a
        # later transform replaced that view, the query would read the wrong input. A view of the
        # result keeps its input. The lock is for threads that share a classic session.
        with _VIEW_LOCK:
            records.createOrReplaceTempView(VIEW)
            try:
                session.sql(text).createOrReplaceTempView(result)
            finally:
                session.catalog.dropTempView(VIEW)
        return session.table(result)

    return Transform(name=name, apply=apply, query=text)


def _module(name: str, text: bytes) -> ModuleType:
    path = file_of(f"{name}:")
    loader = SourceFileLoader(f"semel_transform_{name}", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    try:
        # Not `exec_module`: its cache returns older code if a file's size and time are the same.
        exec(loader.source_to_code(text, path), vars(module))
    except Exception as error:
        raise TerminalError(f"transforms: {path} raised {type(error).__name__}: {error}") from error
    # Executors cannot import this module, so a transform's functions go to them by value.
    cloudpickle.register_pickle_by_value(module)
    return module
