"""A bench in a process and a database of its own, on the servers of an embedded stack without the demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any


def measured_apart(module: str, more: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what ``python -m module`` prints by ``print_measured``, with ``more`` in its environment."""
    from tools.bench import stack

    with stack.running(is_demo=False) as here:
        command, env = [sys.executable, "-m", module], here.environment() | dict(more or {})
        made = subprocess.run(command, cwd=stack.ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(made.stdout)
    return found


def print_measured(measure: Callable[[], dict[str, Any]]) -> None:
    """Print what is measured on an empty database that goes afterwards; wants DATABASE_URL and REDIS_URL of servers."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    import django

    django.setup()
    from django.test.runner import DiscoverRunner

    runner = DiscoverRunner(verbosity=0, interactive=False)
    old = runner.setup_databases()
    try:
        found = measure()
    finally:
        runner.teardown_databases(old)
    json.dump(found, sys.stdout)
