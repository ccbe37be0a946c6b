"""`python -m neuronjax`: the command, where it is not on the path."""

import sys

from neuronjax.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
