"""``python -m scheduler.replay NAME``: repeat one experiment and print what it measured, as JSON.

An experiment is a module with ``add_arguments(parser)`` and ``run(options) -> dict``; only the module
that is asked for is imported.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module

from scheduler.engine.errors import UnknownPolicy
from scheduler.replay.trace_files import BadTrace

EXPERIMENTS = {
    "openb": "scheduler.replay.openb",
    "mig": "scheduler.replay.mig",
    "gang": "scheduler.replay.gang",
    "queue": "scheduler.replay.queue",
    "forecast": "scheduler.replay.forecast",
    "predict": "scheduler.replay.predict",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment named first, print its answer, return the exit status.

    With ``--json`` the answer is one JSON object on one line, else indented JSON. Bad arguments end
    with argparse's message and status 2.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m scheduler.replay", description="Repeat one experiment.")
    parser.add_argument("experiment", choices=sorted(EXPERIMENTS))
    name = parser.parse_args(words[:1]).experiment
    module = import_module(EXPERIMENTS[name])
    own = argparse.ArgumentParser(prog=f"python -m scheduler.replay {name}", description=module.__doc__)
    own.add_argument("--json", action="store_true", help="print one line of JSON")
    module.add_arguments(own)
    options = own.parse_args(words[1:])
    try:
        answer = module.run(options)
    except (BadTrace, UnknownPolicy) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(answer, indent=None if options.json else 2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
