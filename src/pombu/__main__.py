"""`python -m pombu` is the `pombu` command."""

import sys

from pombu.cli import main

sys.exit(main())
