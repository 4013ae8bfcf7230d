"""`python -m experiments`."""

import sys

from experiments.command import main

if __name__ == "__main__":  # worker processes import this module, too
    sys.exit(main(sys.argv[1:]))
