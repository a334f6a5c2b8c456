"""A pytest plugin that takes one guard out of semel: SEMEL_TEST_WITHOUT names it."""

import os

from hypothesis import Phase, settings

from removals import REMOVALS

# At once, before a test or a conftest imports what it changes.
REMOVALS[os.environ["SEMEL_TEST_WITHOUT"]]()

# That a test is red is all that is asked. Looking for a short example of it can take Hypothesis
# five minutes, which is a control's whole time.
settings.register_profile("red", phases=[Phase.explicit, Phase.generate], database=None)
settings.load_profile("red")
