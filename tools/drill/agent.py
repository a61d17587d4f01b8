"""The real agent program with a wall clock that is off: ``python -m tools.drill.agent SECONDS OPTIONS...``."""

from __future__ import annotations

import datetime as dates
import sys
import time


def shift(seconds: float) -> None:
    """Let everything in this process that reads the wall clock read it wrong by so many seconds."""
    real, real_ns, real_date = time.time, time.time_ns, dates.datetime

    class Shifted(real_date):
        @classmethod
        def now(cls, tz: dates.tzinfo | None = None) -> dates.datetime:  # type: ignore[override]
            return real_date.now(tz) + dates.timedelta(seconds=seconds)

    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + int(seconds * 1e9)
    dates.datetime = Shifted  # type: ignore[misc]


def main() -> int:
    offset = float(sys.argv[1])
    if offset:
        shift(offset)
        sys.stderr.write(
            f"the wall clock of this node is off by {time.time() - time.clock_gettime(0):+.0f} s\n"
        )
        sys.stderr.flush()
    from nodeagent.cli import main as run

    return run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
