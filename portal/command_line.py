"""What ``manage.py`` runs: Django's commands, beside the stack on this machine where one runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from portal.embedded.attach import attach


def main(argv: Sequence[str]) -> None:
    """Carry out a command of Django; one that cannot reach its database ends with a sentence and status 1."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    attach(os.environ)  # before the settings are read

    from django.core.management import execute_from_command_line
    from django.db import OperationalError

    from portal.common.retry import is_unreachable

    try:
        execute_from_command_line(list(argv))
    except OperationalError as no:
        if not is_unreachable(no):
            raise
        sys.exit(_sentence())


def run() -> None:
    """Carry out what was typed after ``berth-manage``, which an installed wheel has instead of ``manage.py``."""
    main(sys.argv)


def _sentence() -> str:
    from django.db import connection

    told = connection.settings_dict
    where = told["HOST"] or told.get("OPTIONS", {}).get("host") or "this machine"
    return (
        f"The database {told['NAME']} on {where} does not answer. Start Berth with `make up` "
        "(with the same BERTH_DATA, where it was set there), or name another database with DATABASE_URL."
    )
