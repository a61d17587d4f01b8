from __future__ import annotations

import os
import sys

from portal.embedded.stack import up

USAGE = "usage: python -m portal.embedded up\n"

if __name__ == "__main__":
    if sys.argv[1:] != ["up"]:
        sys.exit(USAGE)
    sys.exit(up(dict(os.environ)))
