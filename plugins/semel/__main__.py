"""`python -m semel`: the command line of this Python's semel."""

import sys

from semel.cli import main

sys.exit(main())
