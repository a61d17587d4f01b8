"""Options that several commands share; defaults come from the environment."""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nodeagent import host
from nodeagent.drivers import registry
from nodeagent.fleet import demo_spec, read_spec
from nodeagent.host import HostFacts
from nodeagent.patience import USUAL_S, Patience
from nodeagent.processes import POLICIES
from nodeagent.protocol.limits import MODES
from nodeagent.runtimes.doors import RUNTIMES

MOST_HOST: Final = 1_000_000
MOST_PLACE: Final = 60
MOST_PATIENCE_S: Final = 3600
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")


class UsageError(Exception):
    """An option is missing or wrong; the sentence says what to give."""


def add_node(known: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Add the name of the node and the folder of its state."""
    name = socket.gethostname().partition(".")[0]
    known.add_argument("--node", default=environ.get("BERTH_NODE", name), help="name of this node")
    known.add_argument(
        "--state", default=environ.get("BERTH_STATE_DIR", ""), help="folder for key and journal"
    )


def add_driver(known: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Add which driver serves the devices, what it may offer, and how holders get in."""
    known.add_argument("--driver", choices=registry.NAMES, default=environ.get("BERTH_DRIVER", "auto"))
    known.add_argument(
        "--offer",
        default=environ.get("BERTH_OFFER", ""),
        metavar="MODES",
        help=f"sharing modes that real cards may be used in, of {', '.join(MODES)} (exclusive,mig)",
    )
    known.add_argument(
        "--runtime",
        choices=RUNTIMES,
        default=environ.get("BERTH_RUNTIME", "auto"),
        help="how holders get in: by a unit, a container device, or the environment alone",
    )
    known.add_argument(
        "--run-dir",
        default=environ.get("BERTH_RUN_DIR", ""),
        help="folder for what a reboot may lose (/run/berth-agent for root)",
    )
    known.add_argument(
        "--patience",
        type=float,
        default=environ.get("BERTH_PATIENCE_S", USUAL_S),
        metavar="S",
        help=f"seconds that a start waits for cards whose driver does not answer yet ({USUAL_S:g})",
    )
    known.add_argument(
        "--power-saving",
        action="store_true",
        default=environ.get("BERTH_POWER_SAVING", "") == "1",
        help="let the portal lower the power limits of real cards while the node sleeps (needs root)",
    )
    known.add_argument(
        "--layout",
        default=environ.get("BERTH_LAYOUT", ""),
        help="how AMD boards are cut, such as cpx or cpx.nps4 (as they stand)",
    )
    known.add_argument(
        "--orphans",
        choices=POLICIES,
        default=environ.get("BERTH_ORPHANS", POLICIES[0]),
        help="what to do with processes on a card that belong to no lease (report)",
    )
    known.add_argument(
        "--system-process",
        action="append",
        default=[],
        metavar="NAME",
        help="a service that may use cards without a lease; may be given several times",
    )
    known.add_argument(
        "--dcgm",
        default=environ.get("BERTH_DCGM_URL", ""),
        metavar="URL",
        help="a DCGM exporter to ask as well",
    )


def require_node(options: argparse.Namespace) -> None:
    """Raise UsageError for a name that no node can have."""
    if not NODE_NAME.fullmatch(options.node):
        raise UsageError(f"{options.node!r} is not a node name; use letters, digits and dashes with --node")


def offered(options: argparse.Namespace) -> frozenset[str] | None:
    """Return the modes that the operator offers, None for the usual ones; raises UsageError."""
    modes = {mode.strip() for mode in options.offer.split(",") if mode.strip()}
    if unknown := modes - set(MODES):
        raise UsageError(f"--offer: {min(unknown)!r} is not a mode; known: {', '.join(MODES)}")
    return frozenset(modes) or None


def patience_of(options: argparse.Namespace) -> Patience:
    """Return how long a start waits for its cards; raises UsageError."""
    if not 0 <= options.patience <= MOST_PATIENCE_S:  # not a number is refused as well
        raise UsageError(f"--patience is a number of seconds from 0 to {MOST_PATIENCE_S}")
    return Patience(first_s=options.patience)


def add_host(known: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Add what leases may take of the host, and where it stands."""
    group = known.add_argument_group("the host beside its devices")
    group.add_argument("--cpu-cores", type=float, help="CPU that leases may take (all of a real host)")
    group.add_argument("--memory-gib", type=float, help="memory that leases may take (all of a real host)")
    group.add_argument("--site", default=environ.get("BERTH_SITE", ""), help="room or zone it stands in")
    group.add_argument("--rack", default=environ.get("BERTH_RACK", ""), help="rack it stands in")


def host_facts(options: argparse.Namespace) -> HostFacts:
    """Return what the host offers: as measured, unless an option says less; unknown for simulated devices."""
    for name in ("cpu_cores", "memory_gib"):
        value = getattr(options, name)
        if value is not None and not 0 <= value <= MOST_HOST:
            raise UsageError(f"--{name.replace('_', '-')} is a number from 0 to {MOST_HOST}")
    for name in ("site", "rack"):
        if len(getattr(options, name)) > MOST_PLACE:
            raise UsageError(f"--{name} has at most {MOST_PLACE} characters")
    is_real = not options.driver.startswith("simulated")
    cpu, memory = (host.cpu_milli(), host.memory_mib()) if is_real else (None, None)
    return HostFacts(
        cpu_milli=cpu if options.cpu_cores is None else int(options.cpu_cores * 1000),
        memory_mib=memory if options.memory_gib is None else int(options.memory_gib * 1024),
        site=options.site,
        rack=options.rack,
    )


def add_simulation(known: argparse.ArgumentParser) -> None:
    """Add what simulated devices are made of."""
    group = known.add_argument_group("simulated devices (--driver simulated or simulated-nvml)")
    group.add_argument("--board", help="kind of board, such as h100-80gb")
    group.add_argument("--count", type=int, default=8, help="how many (8)")
    group.add_argument("--modes", default="", help="sharing modes, separated by commas (all of the board)")
    group.add_argument("--spec", type=Path, help="JSON file that describes the node")
    group.add_argument("--fleet", choices=("demo",), help="be the node of this name in a known fleet")
    group.add_argument("--seed", type=int, default=0, help="seed of load and faults (0)")
    group.add_argument("--latency", action="append", default=[], metavar="VERB=S", help="slow a verb down")
    group.add_argument("--fault-rate", type=float, default=0.0, help="chance that a change answers IN_USE")
    group.add_argument(
        "--health", action="append", default=[], metavar="INDEX:CODE:SEVERITY:TEXT", help="a health event"
    )
    group.add_argument(
        "--script", type=Path, help="JSON list of what happens to the host (simulated-nvml; docs/agent.md)"
    )
    group.add_argument("--reboot", action="store_true", help="start as if the host had rebooted")


def spec_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the description of the simulated node; options add to a file's or the fleet's."""
    if options.spec is not None:
        spec = dict(read_spec(options.spec))
    elif options.fleet is not None:
        spec = dict(demo_spec(options.node))
    elif options.board:
        modes = [mode.strip() for mode in options.modes.split(",") if mode.strip()]
        spec = {"boards": [{"board": options.board, "count": options.count, "modes": modes}]}
    else:
        raise UsageError("say what to simulate with --board, --spec or --fleet demo")
    if options.latency:
        spec["latency_s"] = dict(map(_latency, options.latency))
    if options.fault_rate:
        spec["fault_rate"] = options.fault_rate
    if options.health:
        spec["health"] = [_health(text) for text in options.health]
    return spec


def _latency(text: str) -> tuple[str, float]:
    verb, _, seconds = text.partition("=")
    try:
        return verb, float(seconds)
    except ValueError:
        raise UsageError(f"--latency {text!r}: give a verb and seconds, such as create=0.5") from None


def _health(text: str) -> dict[str, str]:
    parts = text.split(":", 3)
    if len(parts) != 4:
        raise UsageError(f"--health {text!r}: give INDEX:CODE:SEVERITY:TEXT, such as 6:63:warning:row remap")
    return dict(zip(("index", "code", "severity", "detail"), parts, strict=True))
