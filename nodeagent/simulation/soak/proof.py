"""Many rounds: each a story played once in peace and once with crashes; both must end alike.

Some are played once more with crashes and a visitor: then leases fail, but nothing of anybody's may be touched.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from nodeagent.protocol.messages import DeviceFact
from nodeagent.simulation.soak.hardware import HardwareStage
from nodeagent.simulation.soak.player import Player, SoakClock, SoakTally
from nodeagent.simulation.soak.script import SoakAct, story
from nodeagent.simulation.soak.stage import Clock, SimulatedStage, Stage, Trace
from nodeagent.simulation.soak.visitor import SoakVisitor

ACTS: Final = 4
VISITED: Final = 0.3  # of all rounds
MOST_NOTES: Final = 20
BOARDS: Final = (("h100-80gb", 2), ("a100-80gb", 1), ("a30-24gb", 1), ("l40s-48gb", 1))

MakeStage = Callable[[Path, str, int, Clock], Stage]
STAGES: Final[dict[str, MakeStage]] = {"nvml": HardwareStage, "simulated": SimulatedStage}


@dataclass(slots=True)
class Proof:
    """The sum of many rounds. Everything but rounds, crashes, changes, visits and steps must be 0."""

    seed: int
    driver: str
    rounds: int = 0
    changes: int = 0
    crashes: int = 0
    overlaps: int = 0
    disturbed: int = 0
    leaks: int = 0
    different: int = 0
    overcharged: int = 0
    visits: int = 0
    worst_steps: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Say whether nothing happened that must never happen."""
        return not (self.overlaps or self.disturbed or self.leaks or self.different or self.overcharged)

    def as_dict(self) -> dict[str, Any]:
        """Return all figures by name."""
        return asdict(self)

    def add(self, seed: int, tally: SoakTally) -> None:
        """Count one play."""
        self.changes += tally.changes
        self.crashes += tally.crashes
        self.overlaps += tally.overlaps
        self.disturbed += tally.disturbed
        self.leaks += tally.leaks
        self.overcharged += tally.overcharged
        self.visits += tally.visits
        self.worst_steps = max(self.worst_steps, tally.worst_steps)
        self.note(seed, tally.notes)

    def note(self, seed: int, notes: list[str]) -> None:
        """Keep the first words about what went wrong, with the seed that repeats it."""
        room = MOST_NOTES - len(self.notes)
        self.notes += [f"round {seed}: {text}" for text in notes[: max(0, room)]]


def soak(seed: int, rounds: int, driver: str, tell: Callable[[Proof], None] | None = None) -> Proof:
    """Play ``rounds`` rounds; round n of seed s is the same wherever it runs."""
    proof = Proof(seed, driver)
    for number in range(rounds):
        play_round(proof, seed * 1_000_003 + number)
        proof.rounds += 1
        if tell is not None:
            tell(proof)
    return proof


def play_round(proof: Proof, seed: int) -> None:
    """Play one story in peace, with one to three crashes at changes chosen by the dice, at times with a visitor."""
    dice = random.Random(seed)  # noqa: S311 - repeatable on purpose
    board, count = dice.choice(BOARDS)
    make = STAGES[proof.driver]
    facts = _facts(proof.driver, board, count)
    acts = story(dice, facts, ACTS)
    peaceful, changes = _play(proof, seed, make, board, count, acts)
    number = dice.choice((1, 1, 2, 3))
    die_at = sorted(dice.sample(range(1, changes + 1), min(number, changes)))
    crashed, _ = _play(proof, seed, make, board, count, acts, die_at)
    if peaceful != crashed:
        proof.different += 1
        proof.note(seed, [f"ends differently with crashes at {die_at}: {sorted(peaceful ^ crashed)[:4]}"])
    if dice.random() < VISITED:
        visitor = SoakVisitor(random.Random(seed + 2), facts)  # noqa: S311
        _play(proof, seed, make, board, count, acts, die_at, visitor)


def _play(
    proof: Proof,
    seed: int,
    make: MakeStage,
    board: str,
    count: int,
    acts: list[SoakAct],
    die_at: Sequence[int] = (),
    visitor: SoakVisitor | None = None,
) -> tuple[frozenset[Trace], int]:
    with tempfile.TemporaryDirectory(prefix="berth-soak-") as folder:
        clock = SoakClock()
        stage = make(Path(folder), board, count, clock)
        player = Player(stage, Path(folder), clock, random.Random(seed + 1), die_at, visitor)  # noqa: S311
        traces = player.play(acts)
        changes = player.tally.changes
        player.finish()
        player.close()
        proof.add(seed, player.tally)
        return traces, changes


@cache
def _facts(driver: str, board: str, count: int) -> tuple[DeviceFact, ...]:
    """Return what stands on every fresh host of a kind: asked once, since each round begins with one."""
    with tempfile.TemporaryDirectory(prefix="berth-soak-") as folder:
        stage = STAGES[driver](Path(folder), board, count, SoakClock())
        facts = stage.facts
        stage.close()
        return facts
