"""A pytest plugin that takes one guard out of semel: SEMEL_TEST_WITHOUT names it."""

import os

from guards import GUARDS

# At once, before a test or a conftest imports what it changes.
GUARDS[os.environ["SEMEL_TEST_WITHOUT"]].remove()
