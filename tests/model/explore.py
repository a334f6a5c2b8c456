"""Search a model of the protocol by hand: `python tests/model/explore.py --help`."""

import argparse
import sys
import time
from collections.abc import Sequence

from model_guards import GUARDS, SCOPES
from model_search import search

_TEACHES = """
Without options every model is searched with all its guards: nothing may be wrong.
With --without the shortest interleaving that does damage is printed, step by step:

  python tests/model/explore.py --without "compare"
  python tests/model/explore.py --without "pipeline lock + exclusion constraint"
  python tests/model/explore.py --scope batch --without "pipeline lock"

Guards (each with its models, the damage without it, and the rules of docs/protocol.md):
"""


def parser() -> argparse.ArgumentParser:
    rows = [f"  {g.name}\n      {g.scope}: {g.damage} ({g.rules})" for g in GUARDS]
    made = argparse.ArgumentParser(
        prog="python tests/model/explore.py",
        description="Search every interleaving and crash of a small model of the protocol.",
        epilog=_TEACHES + "\n".join(rows),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--without", metavar="GUARD", help="guards to take out, joined by ' + '")
    scopes = ", ".join(SCOPES)
    made.add_argument("--scope", choices=SCOPES, metavar="SCOPE", help=f"only one of: {scopes}")
    made.add_argument("--soak", action="store_true", help="also the larger models (minutes)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 when a model with all its guards is wrong, or nothing is wrong without some."""
    asked = parser().parse_args(arguments)
    if asked.without:
        return _without(asked.without, asked.scope)
    wrong = 0
    for name, scope in SCOPES.items():
        if asked.scope not in (None, name) or (scope.soak and not (asked.soak or asked.scope)):
            continue
        started = time.monotonic()
        found = search(scope.without())
        seconds = time.monotonic() - started
        says = found.damage or "nothing is wrong"
        print(f"{name}: {found.states} states, {found.steps} steps, {seconds:.1f} s: {says}")
        if found.damage:
            wrong = 1
            print(found.told())
    return wrong


def _without(names: str, only: str | None) -> int:
    rows = [g for g in GUARDS if g.name == names and only in (None, g.scope)]
    if not rows:
        known = ", ".join(dict.fromkeys(f"'{g.name}'" for g in GUARDS))
        print(f"There is no row without '{names}' (scope {only or 'any'}); there are: {known}")
        return 2
    for number, guard in enumerate(rows):
        found = search(SCOPES[guard.scope].without(*guard.without), guard.damage)
        missing = SCOPES[guard.scope].model.GUARDS
        print("\n" * bool(number) + f"{guard.scope} ({guard.rules}), without:")
        print("\n".join(f"  {name}: {missing[name]}" for name in guard.without))
        print(found.told())
        print("Replayed on the real verbs by " + ", ".join(guard.tests))
    return 0


if __name__ == "__main__":
    sys.exit(main())
