"""The messages between portal and agent, version 1: frozen values, standard library only.

One JSON object per WebSocket text frame: ``{"v": 1, "type": <name>, ...fields}``.
``decode`` is strict: unknown type, version, field, wrong JSON type or a figure out of range
raise ``ProtocolError`` with a stable code. Unknown measurements are None, never zero.

The order on a connection: portal sends Challenge; agent answers Hello (its signature over the
challenge, or a one-time enrolment token with a fresh public key); portal answers Welcome or
Refused; then Desired goes down, and Report, Samples and Heartbeat come up. Ack tells the agent
which report was stored, so that it may forget leases that are gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nodeagent.protocol.cluster_usage import ClusterUsage

VERSION = 1
MAX_FRAME_BYTES = 4 * 1024 * 1024
HEALTH_SLICES = "health_slices"
FEATURES = ("host_limits", "rotate", "maintenance", HEALTH_SLICES)
# Named by agents that serve streams (streams.py) as well: not all of them may.
STREAMS = "streams"
# Named by agents that would send larger pieces of a stream, and by gateways that take them.
LARGE_PIECES = "pieces_128k"  # "large_pieces" were of 64 KiB
# Named by agents that run batch jobs in leases: where programs can be started in them at all.
JOBS = "jobs"
# Named by agents that collect what their jobs leave.
ARTIFACTS = "artifacts"
# Named by agents that run jobs in containers as well.
CONTAINERS = "containers"
# Named by agents that tell which images they keep, and by portals that want to know.
IMAGES = "images"
# Named by agents whose node is a pool of a cluster: its devices are interchangeable, hosts are the cluster's affair.
POOL = "pool"
# Named by agents that run one job after another in a lease.
JOBS_FOLLOW = "jobs_follow"


@dataclass(frozen=True, slots=True)
class ProfileFact:
    """One MIG profile as the device reports it (``profile_id`` is the driver's own number)."""

    name: str
    profile_id: int
    slices: int
    starts: tuple[int, ...]
    memory_mib: int
    sm_count: int | None
    max_instances: int


@dataclass(frozen=True, slots=True)
class DeviceFact:
    """One accelerator as its driver sees it. ``grid`` counts memory slices (1 without slices).

    Devices of a node with the same ``link_domain`` reach each other over fast links, those with the
    same ``pcie_switch`` under one switch; "" is unknown. ``refusals`` says, per mode that the board could
    have and this node cannot offer, what to install or allow.
    """

    uuid: str
    index: int
    vendor: str
    model: str
    memory_mib: int
    grid: int
    modes: tuple[str, ...]
    sm_count: int | None = None
    pci_bus_id: str = ""
    serial: str = ""
    numa_node: int | None = None
    link_domain: str = ""
    mig_enabled: bool | None = None
    max_clients: int = 48
    profiles: tuple[ProfileFact, ...] = ()
    pcie_switch: str = ""
    refusals: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Challenge:
    """First frame of the portal: 32 random bytes in hex, signed as ``berth-agent-v1:<nonce>:<node>``."""

    nonce: str


@dataclass(frozen=True, slots=True)
class Hello:
    """Who the agent is and what it has.

    Either ``signature`` (hex Ed25519, by the key made at enrolment) or ``enrol_token`` with
    ``public_key`` (hex, 32 bytes) and a signature by that key is given. ``cpu_milli`` and
    ``memory_mib`` are what leases may take of the host, ``site`` and ``rack`` where it stands. ``runtime`` is
    how holders get in ("" where the driver plays them), ``features`` the optional fields and messages that this
    agent understands (``FEATURES``). ``nonce`` (hex, 32 bytes) asks the portal for its proof, ``portal_key`` is the
    key that the agent expects of it ("": it knows none yet). A portal older than these fields refuses an agent that
    sends them: bring the portal up to date first.
    """

    node: str
    signature: str
    boot_id: str
    agent_version: str
    driver: str
    driver_version: str
    devices: tuple[DeviceFact, ...]
    public_key: str = ""
    enrol_token: str = ""
    last_epoch: int = 0
    last_revision: int = 0
    cpu_milli: int | None = None
    memory_mib: int | None = None
    site: str = ""
    rack: str = ""
    runtime: str = ""
    features: tuple[str, ...] = ()
    nonce: str = ""
    portal_key: str = ""


@dataclass(frozen=True, slots=True)
class StreamHello:
    """Which agent opens a socket for streams: its answer to a gateway's Challenge, which answers with a Welcome.

    ``signature`` is by the key in force over ``signing.stream_text``, ``epoch`` that of the agent's last welcome.
    After the welcome the socket carries binary frames alone.
    """

    node: str
    epoch: int
    signature: str
    nonce: str
    portal_key: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The portal knows this agent: its epoch fences every later frame.

    ``features`` are those of the agent that the portal understands too in what the agent sends; it goes only to
    agents that name one of them, older ones refuse the field. ``portal_key`` is the portal's public key in force,
    ``proofs`` its signatures of this greeting by public key; sent to agents that gave a nonce. ``gateways`` are the
    addresses that the agent dials for streams, each a whole one or what differs from the portal's (``:8001``,
    ``/gateway``); sent to agents with the feature "streams".
    """

    node: str
    epoch: int
    heartbeat_s: int
    sample_s: int
    features: tuple[str, ...] = ()
    portal_key: str = ""
    proofs: dict[str, str] = field(default_factory=dict)
    gateways: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The portal will not talk: ``code`` is stable, ``detail`` says what to do next."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class DesiredSlot:
    """One unit of a lease at its exact place. ``size`` 0 is a share inside a host placement."""

    device: str
    mode: str
    start: int
    size: int
    share_milli: int
    memory_mib: int
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """A lease must go before its time, in ``in_s`` seconds from when the frame was made.

    ``why``: reclaim, priority or elastic (docs/preemption.md), or maintenance (docs/nodes.md), which is sent only to
    agents with the feature "maintenance".
    """

    why: str
    in_s: int


@dataclass(frozen=True, slots=True)
class DesiredLease:
    """A lease that must exist on the node. ``remaining_s`` counts from when the frame was made.

    ``notice`` is what its holder should know; sent only to agents whose reports name their own power state:
    older ones refuse the field. ``cpu_milli`` and ``host_memory_mib`` are what it may take of the host beside
    its devices, None is no limit; sent only to agents with the feature "host_limits".
    """

    lease: str
    generation: int
    team: str
    user: str
    remaining_s: int
    grace_s: int
    slots: tuple[DesiredSlot, ...]
    load_pattern: str = ""
    notice: Notice | None = None
    cpu_milli: int | None = None
    host_memory_mib: int | None = None
    job: str = ""


@dataclass(frozen=True, slots=True)
class Desired:
    """The node's whole desired state: what is not in it must be drained and removed.

    ``power`` is whether the node should be awake or asleep; a node with leases is awake, whatever it says.
    It is sent only to agents whose reports name their own power state: older ones refuse the field.
    """

    node: str
    epoch: int
    revision: int
    leases: tuple[DesiredLease, ...]
    power: str = "awake"


@dataclass(frozen=True, slots=True)
class SlotAccess:
    """How the holder reaches one slot: the partition's uuid, environment and device nodes."""

    device: str
    start: int
    partition: str
    env: dict[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobReport:
    """How the batch job of a lease goes.

    ``phase``: waiting, running, exited (``exit`` or ``signal`` says how), lost (nobody knows how it ended). ``why``
    is a stable word where it could not be started (``word`` names what could not), ``is_asked``: it had been asked
    to end, ``is_oom``: the kernel ended something in the lease for its memory. ``peak_mib`` is the most memory that
    the lease's unit had, or the largest process of the job where there is none. ``digest`` is that of the image it
    runs in. While that is fetched ``phase`` is waiting and ``why`` "pulling", with how far it is as ``word``.
    ``ordinal``: which of its lease's jobs it is, from 1; one that waits with ``why`` "beginning" may have begun.
    """

    phase: str
    exit: int | None = None
    signal: int | None = None
    why: str = ""
    word: str = ""
    peak_mib: int | None = None
    ran_ms: int | None = None
    is_asked: bool = False
    is_oom: bool = False
    digest: str = ""
    ordinal: int = 1


@dataclass(frozen=True, slots=True)
class LeaseReport:
    """What the agent observes of one lease.

    ``phase``: preparing, ready, draining, failed, gone. ``active_ms`` is the time between ready
    and the start of draining by the agent's monotonic clock, given with draining and gone. ``entrance`` says
    how its holder gets in: ``runtime``, ``unit``, ``cdi``, ``isolated`` (yes or no), as far as they exist.
    ``job_before`` is how the job before the present one ended, where one followed another.
    """

    lease: str
    generation: int
    phase: str
    access: tuple[SlotAccess, ...] = ()
    code: str = ""
    detail: str = ""
    active_ms: int | None = None
    reason: str = ""
    entrance: dict[str, str] = field(default_factory=dict)
    job: JobReport | None = None
    job_before: JobReport | None = None


@dataclass(frozen=True, slots=True)
class PartitionFact:
    """A partition that exists on a device now; ``lease`` is empty when it is not one of ours."""

    uuid: str
    device: str
    profile: str
    start: int
    size: int
    lease: str = ""


@dataclass(frozen=True, slots=True)
class HealthFact:
    """Something a device said about its health: XID number or a word, and how bad it is.

    ``device`` is "" for what concerns the whole node. ``action`` is what the table of health rules asks for
    ("": nothing): one of ``limits.ACTIONS``. ``starts`` says where the MIG slices begin that it hit, None where it
    concerns the whole device or nobody knows; sent only to portals that welcome the feature "health_slices".
    """

    device: str
    code: str
    severity: str
    detail: str
    action: str = ""
    starts: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What the agent re-read after its last round. ``seq`` rises per boot id.

    ``power`` is "awake" or "asleep" as read, "unsupported" where the node cannot sleep, "" when unknown;
    ``power_note`` says why it is not what was wanted. A portal older than these fields refuses an agent that
    sends them: bring the portal up to date first.
    """

    epoch: int
    boot_id: str
    seq: int
    revision: int
    leases: tuple[LeaseReport, ...]
    partitions: tuple[PartitionFact, ...]
    health: tuple[HealthFact, ...] = ()
    power: str = ""
    power_note: str = ""


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One device at one second; None is unknown. ``source`` names where the utilisation came from.

    ``sources`` names the source of each other value that has another one (by field). ``sm_percent`` is the part
    of SMs at work, ``tensor_percent`` of tensor cores, ``bandwidth_percent`` of the memory's bandwidth.
    """

    device: str
    util_percent: float | None
    memory_used_mib: int | None
    power_w: float | None
    temperature_c: float | None
    energy_mj: int | None = None
    source: str = ""
    power_limit_w: float | None = None
    sm_percent: float | None = None
    tensor_percent: float | None = None
    bandwidth_percent: float | None = None
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SlotSample:
    """One slot of a lease at one second; None is unknown. Percentages are of the slot, see DeviceSample.

    A slice has no power reading of its own: ``power_w`` is an estimate, and ``sources`` says so.
    """

    lease: str
    device: str
    start: int
    util_percent: float | None
    memory_used_mib: int | None
    memory_mib: int
    source: str = ""
    sm_percent: float | None = None
    tensor_percent: float | None = None
    bandwidth_percent: float | None = None
    power_w: float | None = None
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """A process that a device lists. ``state`` is one of ``limits.PROCESS_STATES``.

    ``held``: inside the unit of ``lease``. ``open``: on the slice of a live lease whose runtime keeps no unit.
    ``orphan``: of no live lease, or on a slice that is not its lease's. ``system``: on the operator's list.
    """

    pid: int
    device: str
    state: str
    lease: str = ""
    name: str = ""
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Samples:
    """One frame per node and second. ``seq`` rises per boot id. ``processes`` come every few frames, None between."""

    epoch: int
    boot_id: str
    seq: int
    devices: tuple[DeviceSample, ...]
    slots: tuple[SlotSample, ...]
    processes: tuple[ProcessSample, ...] | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Still here; ``revision`` is the last desired state carried out."""

    epoch: int
    boot_id: str
    revision: int


@dataclass(frozen=True, slots=True)
class ImageFact:
    """An image that jobs brought to the node: its name, the last of several, its digest ("" for none) and its size.

    ``holder`` is the account whose jobs find it there, "" for everybody's.
    """

    name: str
    digest: str
    size_mib: int
    holder: str


@dataclass(frozen=True, slots=True)
class NodeImages:
    """The images of a node, those used last first, and what all of them take together.

    ``limit_mib`` is what they may take, None is no limit. Sent after the welcome and whenever one has come, was used
    or went, only to portals that welcome the feature "images".
    """

    epoch: int
    images: tuple[ImageFact, ...]
    used_mib: int
    limit_mib: int | None


@dataclass(frozen=True, slots=True)
class Ack:
    """The report with this ``seq`` is stored; leases it called gone may be forgotten."""

    seq: int


@dataclass(frozen=True, slots=True)
class Rotate:
    """The portal asks for a new key; sent only to agents with the feature "rotate"."""

    nonce: str


@dataclass(frozen=True, slots=True)
class NewKey:
    """The agent's next public key (hex), with a signature of the nonce by that very key.

    The connection was opened with the key in force, so both are proven.
    """

    public_key: str
    signature: str


@dataclass(frozen=True, slots=True)
class KeyStored:
    """The portal has stored this public key: from the next connection on only it opens the door."""

    public_key: str


Message = (
    Challenge
    | Hello
    | Welcome
    | Refused
    | Desired
    | Report
    | Samples
    | Heartbeat
    | NodeImages
    | ClusterUsage
    | Ack
    | Rotate
    | NewKey
    | KeyStored
    | StreamHello
)
