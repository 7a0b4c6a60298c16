"""`python -m clew` is `clew`."""

import sys

from clew.cli.main import main

sys.exit(main())
