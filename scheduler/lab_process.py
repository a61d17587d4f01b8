"""``python -m scheduler.lab_process UID ATTEMPT``: one run of the lab, at lowest priority, with bounded memory."""

from __future__ import annotations

import importlib
import os
import resource
import sys

import django

MOST_MEMORY = 3 * 2**30  # addresses, which are more than what is used


def main() -> None:
    """Carry out the run that the arguments name."""
    os.nice(19)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MOST_MEMORY if hard == resource.RLIM_INFINITY else min(MOST_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    django.setup()
    importlib.import_module("scheduler.lab").carry_out(sys.argv[1], int(sys.argv[2]))


if __name__ == "__main__":
    main()
