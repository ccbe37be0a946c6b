"""``python -m neuronjax.cli`` is ``neuronjax``."""

import sys

from neuronjax.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
