"""How the state machines of this folder are run: by SEMEL_SEED, and so that one run can be seen
again.
"""

import os
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def explore(
    machine: Callable[[], RuleBasedStateMachine], number: int, examples: int, steps: int, again: str
) -> None:
    """Run so many examples of so many steps, which a seed decides. A failure says how to see it
    again: by `again`, a command without its seed.
    """
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        # Shrinking takes minutes: only for who looks at one seed.
        phases=[Phase.generate, *([Phase.shrink] if os.environ.get("SEMEL_SHRINK") else [])],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    try:
        run_state_machine_as_test(seed(number)(machine), settings=how)
    except BaseException as error:
        error.add_note(f"Seed {number}. Again, and shorter: SEMEL_SHRINK=1 {again}")
        raise
