"""Play random desired states on simulated hosts, with the agent dying at every kind of change, and count harm."""

from __future__ import annotations

import argparse
import json
import logging
import time

from nodeagent.soak.proof import STAGES, Proof, soak

TELL_EVERY_S = 10.0


def add_options(known: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    known.add_argument(
        "--seed", type=int, default=1, help="which rounds (1); the same seed is the same rounds"
    )
    known.add_argument("--rounds", type=int, default=500, help="how many (500)")
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


class _Teller:
    """Says now and then how far it is, on standard error."""

    def __init__(self, began: float) -> None:
        self._next = began + TELL_EVERY_S

    def __call__(self, proof: Proof) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + TELL_EVERY_S
            logging.getLogger(__name__).critical("%d rounds, %d crashes", proof.rounds, proof.crashes)


def _in_words(proof: Proof, took_s: float) -> str:
    rows = [
        ("rounds", proof.rounds),
        ("changes made", proof.changes),
        ("crashes", proof.crashes),
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


def _print(text: str) -> None:
    print(text)  # noqa: T201 - the answer of the command
