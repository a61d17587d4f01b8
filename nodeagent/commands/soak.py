"""Play random desired states on simulated hosts, with the agent dying at every kind of change, and count harm."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from typing import TextIO

from nodeagent.simulation.soak.proof import STAGES, Proof, soak

TELL_EVERY_S = 10.0


def add_options(known: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    known.add_argument(
        "--seed", type=int, default=1, help="which rounds (1); the same seed is the same rounds"
    )
    known.add_argument("--rounds", type=_count, default=500, help="how many (500)")
    known.add_argument("--on", choices=tuple(STAGES), default=next(iter(STAGES)), help="kind of host")
    known.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Soak and print what was counted; 1 when something happened that must never happen."""
    logging.disable(logging.ERROR)  # thousands of planned refusals are no news
    began = time.monotonic()
    proof = soak(options.seed, options.rounds, options.on, _Teller(began))
    took_s = time.monotonic() - began
    found = {**proof.as_dict(), "clean": proof.is_clean, "took_s": round(took_s, 1)}
    _print(json.dumps(found) if options.json else _in_words(proof, took_s))
    return 0 if proof.is_clean else 1


def _count(text: str) -> int:
    """Return a number of rounds: none at all would prove nothing."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of rounds: give 1 or more")
    return number


class _Teller:
    """Says now and then how far it is: a line on standard error."""

    def __init__(self, began: float) -> None:
        self._next = began + TELL_EVERY_S

    def __call__(self, proof: Proof) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + TELL_EVERY_S
            _print(f"{proof.rounds} rounds, {proof.crashes} crashes so far", sys.stderr)


def _in_words(proof: Proof, took_s: float) -> str:
    rows = [
        ("rounds", proof.rounds),
        ("changes made", proof.changes),
        ("crashes", proof.crashes),
        ("visits of somebody with root", proof.visits),
        ("overlaps", proof.overlaps),
        ("live leases disturbed", proof.disturbed),
        ("leaks after all leases ended", proof.leaks),
        ("leases charged beyond their end", proof.overcharged),
        ("rounds that ended differently than without crashes", proof.different),
        ("most steps to converge", proof.worst_steps),
        ("seconds", round(took_s, 1)),
    ]
    lines = [f"{name:<52}{value:>10}" for name, value in rows]
    return "\n".join([*lines, *proof.notes])


def _print(text: str, where: TextIO | None = None) -> None:
    print(text, file=where, flush=True)
