"""``python -m profiler``: measure a model and write or post its profile."""

import sys

from profiler.cli import main

sys.exit(main(sys.argv[1:]))
