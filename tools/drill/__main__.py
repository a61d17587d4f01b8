"""``make drill``: break a stack by a seed for some minutes and prove that it kept its promises."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.drill import recovery
from tools.drill.faults import schedule
from tools.drill.run import Drill, report, store
from tools.drill.stack import running

USUAL_MINUTES = 20.0


def main() -> int:
    known = argparse.ArgumentParser(prog="make drill", description=__doc__)
    known.add_argument("--seed", type=int, default=1, help="decides every fault and every call (1)")
    known.add_argument("--minutes", type=float, default=USUAL_MINUTES, help="how long in all (20)")
    known.add_argument("--actors", type=int, default=4, help="people at work (4)")
    known.add_argument("--pause", type=float, default=0.8, help="seconds each of them rests on average (0.8)")
    known.add_argument("--schedule", action="store_true", help="print the faults of the seed and end")
    known.add_argument("--folder", type=Path, help="keep the data and the ledger there")
    known.add_argument("--json", type=Path, help="write everything that was found there")
    known.add_argument("--recovery", type=int, nargs="?", const=5, metavar="TIMES",
                       help="only measure how long a killed process is missed, on a quiet machine (5)")  # fmt: skip
    known.add_argument("--no-walk", action="store_true", help="leave the failpoints out")
    known.add_argument("--walk-only", action="store_true", help="walk over every failpoint and end")
    known.add_argument("--months", type=int, default=6, help="months that can be closed (6)")
    options = known.parse_args()
    if options.schedule:
        for step in schedule(options.seed, steps=60, has_disk=True):
            print(step)
        return 0
    if options.recovery:
        with running(options.folder, months=1, wants_small_disk=False) as stack:
            recoveries = recovery.measure(stack, times=options.recovery)
        print(recovery.report(recoveries))
        if options.json:
            recovery.store(recoveries, options.json)
        return 0 if recoveries.is_good else 1
    whole_s = options.minutes * 60
    with running(options.folder, months=options.months, wants_small_disk=True) as stack:
        drill = Drill(stack, seed=options.seed, actors=options.actors, pause_s=options.pause)
        calm_s = min(60.0, whole_s * 0.2)
        result = drill.run(
            calm_s=calm_s,
            faults_s=(whole_s - calm_s) / (0.6 if options.walk_only else 1.0),
            is_short=options.minutes < 5 and not options.walk_only,
            walks=not options.no_walk,
            most_faults=0 if options.walk_only else 400,
        )
    print(report(result))
    if options.json:
        store(result, options.json)
    return 0 if result.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
