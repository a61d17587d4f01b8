"""``berth-agent dial LEASE FD``: open sockets in a lease for the agent, which starts this itself."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from nodeagent.commands import enter
from nodeagent.commands.enter import Caller, EnterError
from nodeagent.host.shell import HostShell
from nodeagent.runtimes.systemd import SystemdRuntime
from nodeagent.workloads import dialer

FAILED: Final = 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("lease", help="the lease's id")
    parser.add_argument("descriptor", type=int, help="the agent's socket")


def run(options: argparse.Namespace) -> int:
    """Go into the lease as its holder, and serve there until the agent goes away."""

    def serve(_words: Sequence[str], _env: Mapping[str, str]) -> None:
        # This process stays what it is: a program of the holder's would be theirs to trace.
        with socket.socket(fileno=options.descriptor) as control:
            dialer.serve(control)

    caller = Caller(os.geteuid(), os.getpid(), os.environ, enter.become, serve)
    shell = HostShell({"PATH": enter.SAFE_PATH})
    try:
        enter.enter(options.lease, ["dial"], caller=caller, runtime=SystemdRuntime(shell), shell=shell)
    except (EnterError, OSError) as no:
        print(f"berth-agent: {no}", file=sys.stderr)  # noqa: T201 - the answer to whoever started it
        return FAILED
    return 0
