"""The command line: options and environment in, exit codes and sentences for people out."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nodeagent import __version__, host
from nodeagent.agent import Agent, boot_clock
from nodeagent.drivers import registry
from nodeagent.drivers.base import Driver
from nodeagent.drivers.errors import DriverUnavailableError
from nodeagent.fleet import SpecError, build, demo_spec, read_spec
from nodeagent.host import HostFacts
from nodeagent.identity import Identity, StateError, lock_state
from nodeagent.journal import Journal, JournalError
from nodeagent.link import AddressError, Enrolment, RefusedError, address_of, token_source
from nodeagent.reconcile import Reconciler
from nodeagent.worker import Worker

log = logging.getLogger("nodeagent")

OK: Final = 0
USAGE: Final = 2
NO_DRIVER: Final = 3
REFUSED: Final = 4
STATE: Final = 5
MOST_HOST: Final = 1_000_000
MOST_PLACE: Final = 60
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
EPILOG = """\
Environment: BERTH_PORTAL_URL, BERTH_NODE, BERTH_STATE_DIR, BERTH_ENROL_TOKEN, BERTH_ENROL_TOKEN_FILE,
BERTH_POWER_SAVING (1).
Exit codes: 0 stopped, 2 wrong options, 3 no driver, 4 refused by the portal, 5 state folder unusable."""


class UsageError(Exception):
    """An option is missing or wrong; the sentence says what to give."""


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run the agent until a signal stops it; returns the exit code."""
    options = parser(environ).parse_args(argv)
    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("websockets").setLevel(logging.WARNING)
    try:
        return _run(options)
    except (UsageError, AddressError, SpecError) as no:
        return _say(USAGE, no)
    except DriverUnavailableError as no:
        return _say(NO_DRIVER, f"{no}. Simulate devices with --driver simulated --board h100-80gb.")
    except RefusedError as no:
        return _say(REFUSED, f"the portal refused this node ({no.code}): {no.detail}")
    except (StateError, JournalError) as no:
        return _say(STATE, no)


def parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser; defaults come from the environment."""
    known = argparse.ArgumentParser(
        prog="python -m nodeagent",
        description="Berth's agent for one GPU host: makes leases real and reports what it observes.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known.add_argument("--portal", default=environ.get("BERTH_PORTAL_URL", ""), help="ws://host:port")
    name = socket.gethostname().partition(".")[0]
    known.add_argument("--node", default=environ.get("BERTH_NODE", name), help="name of this node")
    known.add_argument(
        "--state", default=environ.get("BERTH_STATE_DIR", ""), help="folder for key and journal"
    )
    known.add_argument("--enrol-token", default=environ.get("BERTH_ENROL_TOKEN", ""), help="one-time token")
    known.add_argument(
        "--enrol-token-file", default=environ.get("BERTH_ENROL_TOKEN_FILE", ""), help="file with the token"
    )
    known.add_argument("--driver", choices=registry.NAMES, default="auto")
    known.add_argument(
        "--power-saving",
        action="store_true",
        default=environ.get("BERTH_POWER_SAVING", "") == "1",
        help="let the portal lower the power limits of real cards while the node sleeps (needs root)",
    )
    _add_host(known, environ)
    known.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    known.add_argument("--version", action="version", version=__version__)
    _add_simulation(known)
    return known


def _add_host(known: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
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
    is_real = options.driver != "simulated"
    cpu, memory = (host.cpu_milli(), host.memory_mib()) if is_real else (None, None)
    return HostFacts(
        cpu_milli=cpu if options.cpu_cores is None else int(options.cpu_cores * 1000),
        memory_mib=memory if options.memory_gib is None else int(options.memory_gib * 1024),
        site=options.site,
        rack=options.rack,
    )


def _add_simulation(known: argparse.ArgumentParser) -> None:
    group = known.add_argument_group("simulated devices (--driver simulated)")
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
    group.add_argument("--reboot", action="store_true", help="start as if the host had rebooted")


def _run(options: argparse.Namespace) -> int:
    if not options.portal:
        raise UsageError("give the portal's address with --portal or BERTH_PORTAL_URL")
    if not options.state:
        raise UsageError("give a folder for key and journal with --state or BERTH_STATE_DIR")
    if not NODE_NAME.fullmatch(options.node):
        raise UsageError(f"{options.node!r} is not a node name; use letters, digits and dashes with --node")
    facts = host_facts(options)
    address, state = address_of(options.portal), Path(options.state)
    lock = lock_state(state)
    try:
        driver = _driver(options, state)
        enrolment = _enrolment(options, state)
        reconciler = Reconciler(options.node, driver, Journal(state / "journal.jsonl"), boot_clock())
        worker = Worker(reconciler, driver, boot_clock)
        log.info("%s: %d device(s), driver %s", options.node, len(reconciler.devices), driver.name)
        asyncio.run(_until_stopped(Agent(address, enrolment, driver, worker, host=facts)))
        worker.close()
    except OSError as no:
        raise StateError(f"cannot use the state folder {state}: {no}") from no
    finally:
        os.close(lock)
    log.info("stopped; leases go on")
    return OK


async def _until_stopped(agent: Agent) -> None:
    """Run the agent until it ends by itself or a signal asks it to."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(agent.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _driver(options: argparse.Namespace, state: Path) -> Driver:
    if options.driver != "simulated":
        return registry.open_nvml(may_limit_power=options.power_saving)
    spec = build(options.node, _spec(options), seed=options.seed, reboots=_reboots(options, state))
    return registry.open_simulated(options.node, state, spec, boot_clock, options.seed)


def _spec(options: argparse.Namespace) -> dict[str, Any]:
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


def _reboots(options: argparse.Namespace, state: Path) -> int:
    """Return how often this simulated host was rebooted, this time included."""
    path = state / "reboots"
    try:
        count = int(path.read_text(encoding="ascii")) if path.exists() else 0
    except ValueError:
        count = 0
    if options.reboot:
        count += 1
        path.write_text(str(count), encoding="ascii")
    return count


def _enrolment(options: argparse.Namespace, state: Path) -> Enrolment:
    file = Path(options.enrol_token_file) if options.enrol_token_file else None
    return Enrolment(Identity(options.node, state), token_source(options.enrol_token, file))


def _say(code: int, sentence: object) -> int:
    print(f"nodeagent: {sentence}", file=sys.stderr)  # noqa: T201 - the answer to whoever started it
    return code
