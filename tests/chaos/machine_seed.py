"""The seed of the random tests: fresh each time unless SEMEL_SEED is set, and printed first."""

import os
import secrets

# Set here, so that test processes started later (pytest-xdist's) have the same.
SEED = int(os.environ.setdefault("SEMEL_SEED", str(secrets.randbelow(10**9))))
