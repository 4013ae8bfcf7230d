"""`python -m elflow` runs the command line."""

import sys

from elflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
