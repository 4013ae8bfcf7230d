"""`python -m elflow` is the command `elflow`."""

import sys

from elflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
