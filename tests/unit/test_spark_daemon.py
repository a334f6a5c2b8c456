"""Spark's Python daemon as semel starts it."""

import sys
import zipfile
from importlib import import_module, invalidate_caches
from pathlib import Path
from zipimport import zipimporter

import pytest

from semel.spark import daemon


def test_an_archive_is_not_read_again_for_each_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark before 4.2 invalidates the caches of importers in each task. No importer of an archive
    is among them, and a worker imports from an archive as before.
    """
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("of_archive_one.py", "")
        file.writestr("of_archive_two.py", "")
    monkeypatch.syspath_prepend(str(archive))
    import_module("of_archive_one")
    assert isinstance(sys.path_importer_cache[str(archive)], zipimporter)
    daemon._forget_archives()
    found = [path for path, it in sys.path_importer_cache.items() if isinstance(it, zipimporter)]
    assert found == []
    invalidate_caches()
    assert import_module("of_archive_two").__file__ == str(archive / "of_archive_two.py")
