"""semel: exactly-once microbatches. The five verbs are plan, stage, commit, finalize, collect."""

import sys

if sys.version_info < (3, 11):
    raise ImportError(
        f"semel needs Python 3.11 or newer, and this is Python {sys.version.split()[0]}: run it "
        "with a newer one"
    )

__version__ = "0.1.0"
