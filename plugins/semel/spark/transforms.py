"""Transforms: pure functions from DataFrame to DataFrame, imported from spark_jobs/ alone."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from pyspark import cloudpickle

from semel import settings
from semel.errors import TerminalError


def load_transforms(names: tuple[str, ...]) -> list[tuple[str, Callable]]:
    """The functions named `module:function`, in order. TerminalError when one cannot be had."""
    found = []
    for name in names:
        module_name, _, function = name.partition(":")
        transform = getattr(_module(module_name), function, None)
        if not callable(transform):
            raise TerminalError(
                f"transform {name}: {module_name}.py in {settings.transforms_dir()} defines no "
                f"function {function!r}"
            )
        found.append((name, transform))
    return found


def module_path(name: str) -> Path:
    """The file that the transform `module:function` comes from."""
    return settings.transforms_dir() / f"{name.partition(':')[0]}.py"


def _module(name: str) -> ModuleType:
    path = module_path(name)
    spec = importlib.util.spec_from_file_location(f"semel_transform_{name}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise TerminalError(f"transforms: there is no file {path}; put the module there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise TerminalError(f"transforms: {path} raised {type(error).__name__}: {error}") from error
    # Executors have no such module: what a transform ships to them goes by value.
    cloudpickle.register_pickle_by_value(module)
    return module
