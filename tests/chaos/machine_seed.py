"""How the random steps of this folder are drawn: by SEMEL_SEED."""

import os

from hypothesis import HealthCheck, Phase, settings


def steps(examples: int, count: int) -> settings:
    """How a state machine runs: so many examples of so many steps, drawn by a seed of ours."""
    return settings(
        max_examples=examples,
        stateful_step_count=count,
        deadline=None,
        database=None,
        # Shrinking takes minutes: only for who looks at one seed.
        phases=[Phase.generate, *([Phase.shrink] if os.environ.get("SEMEL_SHRINK") else [])],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
