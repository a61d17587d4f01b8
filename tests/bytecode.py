"""Keep compiled modules between runs, also where the environment asks for no ``__pycache__`` beside the sources.

Images of containers set PYTHONDONTWRITEBYTECODE to stay small. Taken by the letter, each worker and each program
that a test starts compiles Django, SciPy and four hundred files of tests anew, ten seconds and more each time.
So they go into pytest's own cache folder. Loaded by ``-p tests.bytecode`` before anything large is imported.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

CACHE = Path(__file__).parent.parent / ".pytest_cache" / "bytecode"


def keep_apart() -> None:
    """Let this process and those that it starts keep their bytecode in a folder of its own."""
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(CACHE)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


if sys.dont_write_bytecode:
    keep_apart()
