"""Transforms: pure functions from DataFrame to DataFrame, and queries, from spark_jobs/ alone."""

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
    """A transform as the engine applies it. `query`: the text of a SQL file."""

    name: str
    apply: Callable[[DataFrame], DataFrame]
    query: str | None = None

    @property
    def path(self) -> str:
        """The file that it comes from, as traces show it."""
        return str(file_of(self.name))


def load_transforms(names: tuple[str, ...], code: dict[str, bytes]) -> list[Transform]:
    """The transforms by their names, in order, from the texts of their files by file name.

    TerminalError when one cannot be had.
    """
    return [
        _query(name, code[name]) if is_sql(name) else _function(name, code[file_of(name).name])
        for name in names
    ]


def _function(name: str, text: bytes) -> Transform:
    module_name, _, function = name.partition(":")
    transform = getattr(_module(module_name, text), function, None)
    if not callable(transform):
        raise TerminalError(
            f"transform {name}: {module_name}.py in {settings.transforms_dir()} defines no "
            f"function {function!r}"
        )
    return Transform(name=name, apply=transform)


# Keeps S25.
def _query(name: str, data: bytes) -> Transform:
    path = file_of(name)
    if found := flaws(data):
        shown = "; ".join(f"{path}:{flaw}" for flaw in found)
        raise TerminalError(f"transform {name}: {shown}. Fix it, then run stage again")
    text = text_of(data)

    def apply(records: DataFrame) -> DataFrame:
        session, own = records.sparkSession, f"semel_{uuid.uuid4().hex}"
        # Over Connect a query is analysed anew each time it is used, with what `records` is then:
        # a later transform that gives a view this name would be read in the place of our input.
        # So the result becomes a view of its own, which keeps what it was made of. A classic
        # session may be shared by threads.
        with _VIEW_LOCK:
            records.createOrReplaceTempView(VIEW)
            try:
                session.sql(text).createOrReplaceTempView(own)
            finally:
                session.catalog.dropTempView(VIEW)
        return session.table(own)

    return Transform(name=name, apply=apply, query=text)


def _module(name: str, text: bytes) -> ModuleType:
    path = file_of(f"{name}:")
    loader = SourceFileLoader(f"semel_transform_{name}", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    try:
        # Not `exec_module`: it takes what an older text of this size and time was compiled to.
        exec(loader.source_to_code(text, path), vars(module))
    except Exception as error:
        raise TerminalError(f"transforms: {path} raised {type(error).__name__}: {error}") from error
    # Executors have no such module: what a transform ships to them goes by value.
    cloudpickle.register_pickle_by_value(module)
    return module
