"""The program for spark-submit: stage one planned batch in this driver.

    spark-submit stage_batch.py PIPELINE BATCH [--answer FILE]

SEMEL_LEDGER_DSN names the ledger. It is never an argument, because other users could read that.
Exit codes: 0 staged; 75 (EX_TEMPFAIL) the same call may succeed later; 1 it fails until a person
changes something.
"""

import argparse
import json
import sys
from pathlib import Path

from semel import pipeline
from semel.errors import RetryableError, SemelError
from semel.ledger import Ledger
from semel.reports import summary
from semel.spark.session import SUBMITTED, open_engine
from semel.stage import stage

EXIT_RETRYABLE = 75
EXIT_TERMINAL = 1


def main(arguments: list[str] | None = None) -> int:
    """Stage, write or print the outcome, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pipeline")
    parser.add_argument("batch", type=int)
    parser.add_argument("--answer", type=Path, help="file for the outcome, as one JSON object")
    options = parser.parse_args(arguments)
    try:
        spec = pipeline.find(options.pipeline)
        with Ledger() as ledger, open_engine(SUBMITTED) as engine:
            staged = stage(ledger, spec, options.batch, engine)
            answer = {"error": None, "text": summary.stage(staged)}
    except SemelError as error:
        answer = {"error": type(error).__name__, "text": str(error), "next": error.next}
        code = EXIT_RETRYABLE if isinstance(error, RetryableError) else EXIT_TERMINAL
    else:
        code = 0
    if options.answer:
        options.answer.write_text(json.dumps(answer), encoding="utf-8")
    else:
        print(answer["text"], file=sys.stderr if code else sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main())
