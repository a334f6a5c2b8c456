"""The seed of the random tests: fresh each time unless SEMEL_SEED is set, and printed first."""

import os
import secrets

from hypothesis import HealthCheck, Phase, settings

# Set here, so that test processes started later (pytest-xdist's) have the same.
SEED = int(os.environ.setdefault("SEMEL_SEED", str(secrets.randbelow(10**9))))


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
