"""Run the command line: `python -m gnomon.cli`."""

import sys

from gnomon.cli.main import main

sys.exit(main())
