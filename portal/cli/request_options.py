"""What can be asked for beside flavor, count and time: the same options for ``request`` and ``quote``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import zones

Work = Annotated[str, typer.Option(help="Kind of work: interactive, training or inference.")]
Preemptible = Annotated[
    bool, typer.Option("--preemptible", help="It may be preempted after a warning, and costs less.")
]
Least = Annotated[
    int, typer.Option(min=0, max=527_040, help="Minutes it may be cut to, to start sooner (0: not at all).")
]
Start = Annotated[
    str, typer.Option(help="Book a start, e.g. 2026-03-01T14:00 (your time zone unless it names one).")
]
Nodes = Annotated[
    int, typer.Option(min=0, max=1000, help="So many nodes with --count each; 0: as few nodes as possible.")
]
Grow = Annotated[int, typer.Option(min=0, max=1000, help="May grow to so many while devices idle.")]
Open = Annotated[
    str,
    typer.Option(
        "--open",
        help="What to open once it is active: notebook, terminal, ssh or device (nothing but the device).",
    ),
]
# How each is opened from a shell; {lease} is the lease.
OPENED_BY = {
    "notebook": "berth app open {lease} jupyterlab",
    "terminal": "berth terminal {lease}",
    "ssh": "berth ssh {lease}",
}


def wishes(*, work: str, preemptible: bool, least: int, start: str, nodes: int, grow: int) -> dict[str, Any]:
    """Return the fields of the call that were asked for, or stop with what to give."""
    asked: dict[str, Any] = {
        "work": work,
        "is_preemptible": preemptible,
        "least_duration_s": least * 60,
        "starts_at": zones.instant(start, "--start") if start else None,
        "nodes": nodes,
        "most_count": grow,
    }
    usual = {
        "work": "interactive", "is_preemptible": False, "least_duration_s": 0, "starts_at": None, "nodes": 1,
        "most_count": 0,
    }  # fmt: skip
    return {name: value for name, value in asked.items() if value != usual[name]}
