"""Options that several commands share; defaults come from the environment, and are checked like options."""

from __future__ import annotations

import argparse
import logging
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from nodeagent.drivers import registry
from nodeagent.drivers.amd.smi import LAYOUTS
from nodeagent.drivers.waiting import USUAL_S, Patience
from nodeagent.host import facts as host
from nodeagent.host.facts import HostFacts
from nodeagent.host.sandbox import HIDDEN, PLAIN_PATH
from nodeagent.processes.policy import POLICIES
from nodeagent.protocol.boards import UnknownBoardError, board
from nodeagent.protocol.limits import MODES
from nodeagent.runtimes.choice import RUNTIMES

log = logging.getLogger(__name__)

USUAL_COUNT: Final = 8
MOST_HOST: Final = 1_000_000
MOST_PLACE: Final = 60
USUAL_IMAGES_GIB: Final = 200
MOST_LIMIT_GIB: Final = 1_000_000
MOST_PATIENCE_S: Final = 3600
MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
# The variable that an option may come by.
VARIABLES: Final[Mapping[str, str]] = MappingProxyType({
    "portal": "BERTH_PORTAL_URL",
    "allow_plain": "BERTH_ALLOW_PLAIN",
    "node": "BERTH_NODE",
    "state": "BERTH_STATE_DIR",
    "run_dir": "BERTH_RUN_DIR",
    "enrol_token": "BERTH_ENROL_TOKEN",
    "enrol_token_file": "BERTH_ENROL_TOKEN_FILE",
    "driver": "BERTH_DRIVER",
    "offer": "BERTH_OFFER",
    "runtime": "BERTH_RUNTIME",
    "patience": "BERTH_PATIENCE_S",
    "layout": "BERTH_LAYOUT",
    "dcgm": "BERTH_DCGM_URL",
    "metrics": "BERTH_METRICS",
    "log_format": "BERTH_LOG_FORMAT",
    "orphans": "BERTH_ORPHANS",
    "power_saving": "BERTH_POWER_SAVING",
    "terminals": "BERTH_TERMINALS",
    "app_path": "BERTH_APP_PATH",
    "app_installer": "BERTH_APP_INSTALLER",
    "containers": "BERTH_CONTAINERS",
    "image_folder": "BERTH_IMAGE_FOLDER",
    "image_limit": "BERTH_IMAGE_LIMIT_GIB",
    "container_network": "BERTH_CONTAINER_NETWORK",
    "scratch": "BERTH_SCRATCH_DIR",
    "scratch_limit": "BERTH_SCRATCH_LIMIT_GIB",
    "data_sets": "BERTH_DATA_SETS_DIR",
    "site": "BERTH_SITE",
    "rack": "BERTH_RACK",
    "slurm_partition": "BERTH_SLURM_PARTITION",
    "slurm_gres": "BERTH_SLURM_GRES",
    "slurm_model": "BERTH_SLURM_MODEL",
    "slurm_memory": "BERTH_SLURM_MEMORY_GIB",
    "slurm_account": "BERTH_SLURM_ACCOUNT",
    "slurm_user": "BERTH_SLURM_USER",
    "slurm_bin": "BERTH_SLURM_BIN_DIR",
    "slurm_wait": "BERTH_SLURM_WAIT_S",
    "kube_config": "BERTH_KUBE_CONFIG",
    "kube_context": "BERTH_KUBE_CONTEXT",
    "kube_kind": "BERTH_KUBE_KIND",
    "kube_image": "BERTH_KUBE_IMAGE",
    "kube_namespace": "BERTH_KUBE_NAMESPACE",
    "kube_class": "BERTH_KUBE_CLASS",
    "kube_selector": "BERTH_KUBE_SELECTOR",
    "kube_profile": "BERTH_KUBE_PROFILE",
    "kube_resource": "BERTH_KUBE_RESOURCE",
    "kube_share": "BERTH_KUBE_SHARE_GIB",
    "kube_cores": "BERTH_KUBE_CORES",
    "kube_replicas": "BERTH_KUBE_REPLICAS",
    "kube_nodes": "BERTH_KUBE_NODES",
    "kube_units": "BERTH_KUBE_UNITS",
    "kube_fence": "BERTH_KUBE_FENCE",
    "kube_model": "BERTH_KUBE_MODEL",
    "kube_memory": "BERTH_KUBE_MEMORY_GIB",
    "kube_wait": "BERTH_KUBE_WAIT_S",
})  # fmt: skip
CHOICES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    "driver": registry.NAMES, "runtime": RUNTIMES, "orphans": tuple(POLICIES),
})  # fmt: skip
ON: Final = ("1", "true", "yes", "on")
OFF: Final = ("", "0", "false", "no", "off")

REAL: Final = frozenset({"auto", "nvml", *registry.VENDORS})
PLAYED: Final = frozenset({"simulated", "simulated-nvml"})
WITH_HOLDERS: Final = REAL | {"simulated-nvml"}
# Which drivers know an option, and what people of the others may want; what is not named here all of them know.
KNOWN_TO: Final[Mapping[str, tuple[frozenset[str], str]]] = MappingProxyType({
    "offer": (WITH_HOLDERS, "--driver simulated takes --modes"),
    "runtime": (WITH_HOLDERS, "--driver simulated plays its holders itself"),
    "orphans": (WITH_HOLDERS, "--driver simulated plays its holders itself"),
    "system_process": (WITH_HOLDERS, "--driver simulated plays its holders itself"),
    "layout": (frozenset({"auto", "amd"}), "it cuts AMD boards"),
    "dcgm": (frozenset({"auto", "nvml"}), "it asks about NVIDIA devices"),
    "power_saving": (
        frozenset({"auto", "nvml", "simulated-nvml"}),
        "devices of other vendors do not sleep, and simulated ones always may",
    ),
    **dict.fromkeys(
        ("board", "count", "modes", "spec", "fleet", "seed", "latency", "fault_rate", "reboot"),
        (PLAYED, "it describes simulated devices: add --driver simulated or simulated-nvml"),
    ),
    "health": (
        frozenset({"simulated"}),
        "with simulated-nvml let things happen by --script (xid, ecc, recovery, lose)",
    ),
    **dict.fromkeys(
        (
            "slurm_partition", "slurm_gres", "slurm_model", "slurm_memory", "slurm_account", "slurm_user",
            "slurm_bin", "slurm_wait",
        ),
        (frozenset({"slurm"}), "it describes a pool of a Slurm cluster: add --driver slurm"),
    ),
    **dict.fromkeys(
        (name for name in VARIABLES if name.startswith("kube_")),
        (frozenset({"kubernetes"}), "it describes a pool of a Kubernetes cluster: add --driver kubernetes"),
    ),
    "script": (frozenset({"simulated-nvml"}), "it happens to the host of --driver simulated-nvml"),
})  # fmt: skip


class UsageError(Exception):
    """An option is missing or wrong; the sentence says what to give."""


class OfVariable(str):
    """What a variable says of an option: several hosts may share a file of them."""

    __slots__ = ()


def usual(environ: Mapping[str, str], name: str, otherwise: str = "") -> str:
    """Return what an option is when nobody gives it; an empty variable counts as none."""
    return OfVariable(environ.get(VARIABLES[name], "")) or otherwise


def settle(options: argparse.Namespace) -> None:
    """Hold what came by variables against what options may be, and all of it against the driver.

    A variable that the driver does not know is passed over with a warning, an option is refused. Every command that
    has a driver does this before anything else; raises UsageError.
    """
    if not hasattr(options, "driver"):
        return
    for name, known in CHOICES.items():
        if getattr(options, name) not in known:
            raise UsageError(f"{VARIABLES[name]}={getattr(options, name)}: use one of {', '.join(known)}")
    for name, (drivers, hint) in KNOWN_TO.items():
        if options.driver not in drivers and _is_given(options, name):
            _pass_over(options, name, hint)
    options.power_saving = switch(options, "power_saving")
    options.patience = patience_of(options).first_s
    offered(options)
    layouts(options)
    _require_address(options.dcgm)


def _pass_over(options: argparse.Namespace, name: str, hint: str) -> None:
    """Go on without what the driver does not know; raises UsageError where somebody asked this command for it."""
    if not isinstance(getattr(options, name), OfVariable):
        raise UsageError(f"--{name.replace('_', '-')} is not known to --driver {options.driver}: {hint}")
    log.warning("%s is passed over, --driver %s does not know it: %s", VARIABLES[name], options.driver, hint)
    setattr(options, name, CHOICES.get(name, ("",))[0])


def _is_given(options: argparse.Namespace, name: str) -> bool:
    return bool(getattr(options, name)) and getattr(options, name) != CHOICES.get(name, ("",))[0]


def switch(options: argparse.Namespace, name: str) -> bool:
    """Return whether an option that is either on or off is on; raises UsageError."""
    word = str(getattr(options, name)).lower()
    if word not in ON + OFF:
        raise UsageError(f"{VARIABLES[name]}={getattr(options, name)}: say 1 or 0")
    return word in ON


def _require_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = not url or (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0)
    except ValueError:  # no number after the colon
        is_good = False
    if not is_good:
        raise UsageError(
            f"--dcgm: {url!r} is no address of a DCGM exporter; write http://localhost:9400/metrics"
        )


def layouts(options: argparse.Namespace) -> dict[str, str]:
    """Return how AMD boards are cut, by uuid or model in small letters, "*" for all others; raises UsageError."""
    found: dict[str, str] = {}
    for part in (one.strip() for one in options.layout.lower().split(",")):
        board, _, layout = part.rpartition("=")
        if part and (layout.partition(".")[0] not in LAYOUTS or (board or "*") in found):
            raise UsageError(
                f"--layout: {part!r} is no layout or its board is named twice; give one of {', '.join(LAYOUTS)}"
                " for all boards, such as cpx or cpx.nps4, or BOARD=LAYOUT by model or uuid, separated by commas"
            )
        if part:
            found[board or "*"] = layout
    return found


def add_node(known: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Add the name of the node and the folder of its state."""
    name = socket.gethostname().partition(".")[0]
    known.add_argument("--node", default=usual(environ, "node", name), help="name of this node")
    known.add_argument("--state", default=usual(environ, "state"), help="folder for key and journal")


def add_driver(known: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Add which driver serves the devices, what it may offer, and how holders get in."""
    known.add_argument("--driver", choices=registry.NAMES, default=usual(environ, "driver", "auto"))
    known.add_argument(
        "--offer",
        default=usual(environ, "offer"),
        metavar="MODES",
        help=f"sharing modes that real devices may be used in, of {', '.join(MODES)} (exclusive,mig)",
    )
    known.add_argument(
        "--runtime",
        choices=RUNTIMES,
        default=usual(environ, "runtime", RUNTIMES[0]),
        help="how holders get in: by a unit, a container device, or the environment alone",
    )
    known.add_argument(
        "--run-dir",
        default=usual(environ, "run_dir"),
        help="folder for what a reboot may lose (/run/berth-agent for root)",
    )
    known.add_argument(
        "--patience",
        default=usual(environ, "patience", str(USUAL_S)),
        metavar="S",
        help=f"seconds that a start waits for devices whose driver does not answer yet ({USUAL_S:g})",
    )
    known.add_argument(
        "--power-saving",
        action="store_true",
        default=usual(environ, "power_saving"),
        help="let the portal lower the power limits of real devices while the node sleeps (needs root)",
    )
    known.add_argument(
        "--layout",
        default=usual(environ, "layout"),
        help="how AMD boards are cut, such as cpx, cpx.nps4 or MODEL=cpx,*=spx (as they stand)",
    )
    known.add_argument(
        "--orphans",
        choices=POLICIES,
        default=usual(environ, "orphans", POLICIES[0]),
        help="what to do with processes on a device that belong to no lease (report)",
    )
    known.add_argument(
        "--system-process",
        action="append",
        default=[],
        metavar="NAME",
        help="a service that may use devices without a lease; may be given several times",
    )
    known.add_argument(
        "--dcgm",
        default=usual(environ, "dcgm"),
        metavar="URL",
        help="a DCGM exporter to ask as well",
    )
    add_slurm(known, environ)
    add_kubernetes(known, environ)


def _add_texts(
    group: argparse._ArgumentGroup,
    environ: Mapping[str, str],
    prefix: str,
    rows: Iterable[tuple[str, str, str]],
) -> None:
    """Add options ``--prefix-name`` that are texts; the variable of each is what it is without being given."""
    for name, metavar, text in rows:
        usually = usual(environ, f"{prefix}_{name}")
        group.add_argument(f"--{prefix}-{name}", default=usually, metavar=metavar, help=text)


def add_slurm(known: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Add what describes a pool of a Slurm cluster (docs/slurm.md)."""
    group = known.add_argument_group("a pool of a Slurm cluster (--driver slurm)")
    rows = (
        ("partition", "NAME", "the partition that is lent"),
        ("gres", "GRES", "what a unit is there, such as gpu:a100 or gpu"),
        ("model", "MODEL", "what a unit is called here, such as a100-80gb (the type of the GRES)"),
        ("memory", "GIB", "memory of a unit, where the model is none that Berth knows"),
        (
            "account",
            "NAME",
            "account that jobs are charged to; {team} stands for the team (the cluster's own choice)",
        ),
        ("user", "NAME", "account of the system that all jobs run as (each holder's own; needs root)"),
        ("bin", "FOLDER", "where sbatch and the others are (the PATH)"),
        ("wait", "S", "how long a job may wait in the cluster's queue before its request queues again (240)"),
    )
    _add_texts(group, environ, "slurm", rows)


def add_kubernetes(known: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Add what describes a pool of a Kubernetes cluster (docs/kubernetes.md)."""
    group = known.add_argument_group("a pool of a Kubernetes cluster (--driver kubernetes)")
    rows = (
        ("config", "FILE", "kubeconfig to log in with (the service account of the agent's own pod)"),
        ("context", "NAME", "context of it (its current one)"),
        ("kind", "KIND", "how units are asked for: dra, plugin or hami (dra)"),
        ("image", "IMAGE", "what leases run in; needs /bin/sh, kill and sleep"),
        ("namespace", "NAME", "namespace of leases; {team} stands for the team (berth-{team})"),
        ("class", "NAMES", "device classes, separated by commas; the first that can serve does (dra)"),
        ("selector", "CEL", "what a device must be beyond its class (dra)"),
        ("profile", "SIZE", "size of MIG that is lent, such as 1g.10gb"),
        ("resource", "NAME", "what containers ask for, such as nvidia.com/gpu (plugin, hami)"),
        ("share", "GIB", "memory of a unit, where units share a device (dra, hami)"),
        ("cores", "PERCENT", "compute of a unit (hami)"),
        ("replicas", "N", "units of each GPU, where it is shared in time or by hami (1)"),
        ("nodes", "LABELS", "hosts of the pool: NAME=VALUE, separated by commas (all)"),
        ("units", "N", "how many units are lent, where they cannot be counted"),
        (
            "fence",
            "N",
            "most units that a namespace may hold in the cluster, 0 for no quota (all of the pool)",
        ),
        ("model", "MODEL", "what a unit is called here, such as a100-80gb"),
        ("memory", "GIB", "memory of a unit, where the model is none that Berth knows"),
        ("wait", "S", "how long a pod may wait in the cluster before its request queues again (240)"),
    )
    _add_texts(group, environ, "kube", rows)


def described(options: argparse.Namespace, prefix: str, otherwise: str) -> tuple[str, str, int]:
    """Return model, vendor and MiB of a pool's unit; raises UsageError where its memory is not known."""
    model, vendor, memory_mib = getattr(options, f"{prefix}_model") or otherwise, "nvidia", None
    try:
        known = board(model)
        model, vendor, memory_mib = known.id, known.vendor, known.memory_mib
    except UnknownBoardError:
        if not MODEL.fullmatch(model):
            raise UsageError(f"--{prefix}-model has letters, digits, dots and dashes") from None
    given = getattr(options, f"{prefix}_memory") or getattr(options, f"{prefix}_share", "")
    if given:
        memory_mib = whole(given, f"--{prefix}-memory", MOST_HOST) * 1024
    if not memory_mib:
        raise UsageError(
            f"how much memory {model} has is not known here: give it with --{prefix}-memory in GiB"
        )
    return model, vendor, memory_mib


def whole(text: str, option: str, most: int) -> int:
    """Return a whole number from 1 on; raises UsageError."""
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= most:
        raise UsageError(f"{option} is a whole number from 1 to {most}, not {text[:40]!r}")
    return int(text)


def add_simulation(known: argparse.ArgumentParser) -> None:
    """Add what simulated devices are made of."""
    group = known.add_argument_group("simulated devices (--driver simulated or simulated-nvml)")
    group.add_argument("--board", help="kind of board, such as h100-80gb")
    group.add_argument("--count", type=int, help=f"how many ({USUAL_COUNT})")
    group.add_argument("--modes", default="", help="sharing modes, separated by commas (all of the board)")
    group.add_argument("--spec", type=Path, help="JSON file that describes the node")
    group.add_argument("--fleet", choices=("demo",), help="be the node of this name in a known fleet")
    group.add_argument("--seed", type=int, default=0, help="seed of load and faults (0)")
    group.add_argument(
        "--latency",
        action="append",
        default=[],
        metavar="VERB=S",
        help="slow a verb, or a call of NVML, down",
    )
    group.add_argument("--fault-rate", type=float, default=0.0, help="chance that a change answers IN_USE")
    group.add_argument(
        "--health", action="append", default=[], metavar="INDEX:CODE:SEVERITY:TEXT", help="a health event"
    )
    group.add_argument(
        "--script", type=Path, help="JSON list of what happens to the host (simulated-nvml; docs/agent.md)"
    )
    group.add_argument("--reboot", action="store_true", help="start as if the host had rebooted")


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


def limit_gib_of(options: argparse.Namespace, name: str) -> int:
    """Return what an option allows in GiB, 0 for no limit; raises UsageError."""
    text = str(getattr(options, name))
    if not (text.isascii() and text.isdecimal()) or int(text) > MOST_LIMIT_GIB:
        option = f"--{name.replace('_', '-')}"
        raise UsageError(f"{option} is a whole number of GiB up to {MOST_LIMIT_GIB}, not {text[:40]}")
    return int(text)


def folder_of(options: argparse.Namespace, name: str) -> Path | None:
    """Return the folder that an option names for leases, None for none; raises UsageError.

    Its path becomes part of units and commands, so it has only letters that mean nothing there.
    """
    text, option = str(getattr(options, name)), f"--{name.replace('_', '-')}"
    if not text:
        return None
    folder = Path(text)
    if not PLAIN_PATH.fullmatch(text) or ".." in folder.parts or folder == Path("/"):
        raise UsageError(f"{option} is an absolute path of letters, digits and ._+-, not {text[:80]!r}")
    hidden = next((home for home in HIDDEN if folder.is_relative_to(home)), "")
    if hidden and not options.driver.startswith("simulated"):
        raise UsageError(
            f"{option} {text}: {hidden} is hidden from the agent's unit (ProtectHome=yes); name another"
        )
    return folder


def patience_of(options: argparse.Namespace) -> Patience:
    """Return how long a start waits for its devices; raises UsageError."""
    try:
        seconds = float(options.patience)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MOST_PATIENCE_S:  # not a number is refused as well
        raise UsageError(
            f"--patience is a number of seconds from 0 to {MOST_PATIENCE_S}, not {options.patience}"
        )
    return Patience(first_s=seconds)


def add_host(known: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """Add what leases may take of the host, and where it stands."""
    group = known.add_argument_group("the host beside its devices")
    group.add_argument("--cpu-cores", type=float, help="CPU that leases may take (all of a real host)")
    group.add_argument("--memory-gib", type=float, help="memory that leases may take (all of a real host)")
    group.add_argument("--site", default=usual(environ, "site"), help="room or zone it stands in")
    group.add_argument("--rack", default=usual(environ, "rack"), help="rack it stands in")


def host_facts(options: argparse.Namespace) -> HostFacts:
    """Return what the host offers: as measured, unless an option says less; unknown for simulated devices."""
    for name in ("cpu_cores", "memory_gib"):
        value = getattr(options, name)
        if value is not None and not 0 <= value <= MOST_HOST:
            raise UsageError(f"--{name.replace('_', '-')} is a number from 0 to {MOST_HOST}")
    for name in ("site", "rack"):
        if len(getattr(options, name)) > MOST_PLACE:
            raise UsageError(f"--{name} has at most {MOST_PLACE} characters")
    # What the host of a pool's agent has is no part of the pool.
    is_real = not options.driver.startswith("simulated") and options.driver not in registry.BACKENDS
    cpu, memory = (host.cpu_milli(), host.memory_mib()) if is_real else (None, None)
    return HostFacts(
        cpu_milli=cpu if options.cpu_cores is None else int(options.cpu_cores * 1000),
        memory_mib=memory if options.memory_gib is None else int(options.memory_gib * 1024),
        site=options.site,
        rack=options.rack,
    )
