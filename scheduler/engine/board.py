"""One device's live occupancy: what it holds, what still fits, what a unit on it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Protocol

from scheduler.engine.geometry import Geometry, geometry_of
from scheduler.engine.model import SHARED_MODES, DeviceInfo, GrantedSlot, Held, NodeInfo
from scheduler.engine.shape import Shape, ShapeKind

WHOLE_MILLI = 1000
SEVERAL = -1  # the team of a board in mps on which shares of several teams are


class Board:
    """A device with its occupancy. Changed only by ``put`` and ``drop``. ``memory_mib`` is what
    its shares may be promised together.

    ``mask`` has a bit per taken memory slice; ``use`` is "" on an idle board, else the one mode that
    lives there; ``team_id`` is the team a shared mode is kept for, in mps that of the shares themselves.
    """

    __slots__ = (
        "_ends", "blocked", "clients", "counts", "device", "full", "geometry", "held", "idle_memory_mib", "mask",
        "memory_mib", "memory_used", "node", "rank", "share_used", "team_id", "use",
    )  # fmt: skip

    def __init__(
        self, device: DeviceInfo, node: NodeInfo, rank: int, memory_factor_milli: int = 1000
    ) -> None:
        self.device = device
        self.idle_memory_mib = device.memory_mib * memory_factor_milli // 1000
        self.node = node
        self.rank = rank
        self.blocked = node.blocked or device.blocked
        self.geometry: Geometry = geometry_of(device)
        self.full = self.geometry.full
        self.held: list[Held] = []
        self.clients = 0
        self._ends: list[tuple[float, int]] | None = None
        self._clear()

    def _clear(self) -> None:
        self.counts: dict[str, int] = {}
        self.mask = 0
        self.use = ""
        self.team_id = 0
        self.share_used = 0
        self.memory_used = 0
        self.memory_mib = self.idle_memory_mib

    def twin(self) -> Board:
        """Another board of the same device on its own, which holds nothing yet."""
        other = object.__new__(Board)  # what the first look at a device finds out need not be found out again
        other.device, other.node, other.rank = self.device, self.node, self.rank
        other.geometry, other.full, other.blocked = self.geometry, self.full, self.blocked
        other.idle_memory_mib = self.idle_memory_mib
        other.refill(())
        return other

    def refill(self, held: Iterable[Held]) -> None:
        """Hold exactly these, host placements first."""
        self.held = []
        self.clients = 0
        self._ends = None
        self._clear()
        for one in sorted(held, key=lambda h: not h.is_host):
            self.put(one)

    @property
    def make(self) -> tuple[object, ...]:
        """What an idle board offers and costs: equal makes are the same to everybody."""
        one = self.device
        return (
            one.model, one.grid, one.memory_mib, one.weight_milli, one.modes, one.max_clients, one.layout,
            id(self.geometry), self.idle_memory_mib,
        )  # fmt: skip

    def serves(self, kind: ShapeKind) -> bool:
        """Whether this kind of board can serve the kind of shape at all, idle or not."""
        device = self.device
        return (
            kind.mode in device.modes
            and kind.suits(device, self.node)
            and (kind.mode != "mig" or self.geometry.offers(kind.profile))
        )

    def room(self, shape: Shape) -> int:
        """How many units of one claim fit now, see ``room_on``."""
        return room_on(self, shape, self.device.memory_mib, self.device.max_clients)

    def units(self, shape: Shape) -> int:
        """How many units of the shape fit now when each is a claim of its own."""
        room = self.room(shape)
        return self._share_units(shape) if room and shape.is_shared else room

    def idle_units(self, shape: Shape) -> int:
        """How many units of the shape would fit if the board held nothing."""
        kind = shape.kind
        if kind.mode == "mig":
            most = self.geometry.profiles[kind.profile].max_instances
            return min(self.geometry.units(kind.profile, 0), most)
        if not shape.is_shared:
            return 1
        if shape.memory_mib > self.device.memory_mib:
            return 0
        return _shares_within(shape, WHOLE_MILLI, self.idle_memory_mib, self.device.max_clients)

    def idle_room(self, shape: Shape) -> int:
        """How many units of one claim would fit if the board held nothing (see ``room``)."""
        units = self.idle_units(shape)
        return min(units, 1) if shape.is_shared else units

    def hosts_for(self, shape: Shape) -> bool:
        """Whether the board is open for shares of this mode and, where it matters, this team."""
        return self.use == shape.kind.mode and (not shape.team_id or self.team_id == shape.team_id)

    def _share_units(self, shape: Shape) -> int:
        device = self.device
        return _shares_within(
            shape,
            WHOLE_MILLI - self.share_used,
            self.memory_left_mib,
            device.max_clients - self.clients,
        )

    @property
    def memory_left_mib(self) -> int:
        """What may still be promised to shares; below zero where others were promised more than there is."""
        return self.memory_mib - self.memory_used

    @property
    def is_shared(self) -> bool:
        """Whether shares live on the board."""
        return self.use in SHARED_MODES

    @property
    def load(self) -> int:
        """How used the board is, in thousandths: slices of a MIG board, the fuller side of a shared one."""
        if self.is_shared:
            memory = self.memory_used * WHOLE_MILLI // max(self.memory_mib, 1)
            return max(self.share_used, memory)
        return self.mask.bit_count() * WHOLE_MILLI // self.device.grid

    @property
    def ends(self) -> list[tuple[float, int]]:
        """When its memory slices come free at the latest: (seconds since 1970, slices as bits), in order."""
        if self._ends is None:
            spans = ((h.until.timestamp(), ((1 << h.size) - 1) << h.start) for h in self.held)
            self._ends = sorted(spans)
        return self._ends

    def unit_cost(self, shape: Shape) -> int:
        """What one unit costs its quota here: share x weight of the device, rounded up."""
        share = shape.share_milli
        if shape.kind.mode == "mig":
            share = self.geometry.profiles[shape.kind.profile].share_milli
        return weighted(share, self.device.weight_milli)

    def slot(
        self, shape: Shape, start: int, max_memory_mib: int = 0, host: tuple[int, int] = (0, 0)
    ) -> GrantedSlot:
        """One unit of the shape at its place on this board; a share may use up to ``max_memory_mib`` of it.

        ``host`` is what its grant takes of the node with it: milli-CPU and MiB.
        """
        kind, device = shape.kind, self.device
        if kind.mode == "mig":
            profile = self.geometry.profiles[kind.profile]
            return GrantedSlot(
                device.id, "mig", start, profile.slices, profile.share_milli, profile.memory_mib, profile.name, *host
            )  # fmt: skip
        if shape.is_shared:
            return GrantedSlot(
                device.id,
                kind.mode,
                0,
                0,
                shape.share_milli,
                shape.memory_mib,
                cpu_milli=host[0],
                host_memory_mib=host[1],
                board_memory_mib=self.memory_mib,
                max_memory_mib=min(max(max_memory_mib, shape.memory_mib), device.memory_mib),
            )
        return GrantedSlot(device.id, kind.mode, 0, device.grid, WHOLE_MILLI, device.memory_mib, "", *host)

    def put(self, held: Held) -> None:
        """Take what is held. A share on a board without a host placement opens one for its team."""
        self.held.append(held)
        self._ends = None
        if held.mode in SHARED_MODES:
            self._host(held)
            return
        self.use = held.mode
        self.mask |= ((1 << held.size) - 1) << held.start
        for name in self._profiles_of(held):
            self.counts[name] = self.counts.get(name, 0) + 1

    def _host(self, held: Held) -> None:
        self.mask = self.full
        if held.is_host or not self.use:
            self.use = held.mode
            if held.mode != "mps" or not self.clients:
                self.team_id = held.team_id
        if held.is_host and held.memory_mib:
            self.memory_mib = held.memory_mib
        if not held.is_host:
            if held.mode == "mps" and held.team_id != self.team_id:
                # Older rules may have let strangers in: then nobody may join, not even the opener's team.
                self.team_id = SEVERAL if self.clients else held.team_id
            self.share_used += held.share_milli
            self.memory_used += held.memory_mib
            self.clients += 1

    def drop(self, held: Held) -> bool:
        """Give back what is held; False when it was not here. The last share closes its host placement."""
        if held not in self.held:
            return False
        self.held.remove(held)
        self._ends = None
        if held.mode in SHARED_MODES:
            self._unhost(held)
            return True
        for name in self._profiles_of(held):
            self.counts[name] -= 1
        # What is left says what is taken: after a fault two may be told of the same slices, a lease whose node is
        # silent and a partition that nobody knows.
        self.mask = 0
        for one in self.held:
            self.mask |= ((1 << one.size) - 1) << one.start
        if not self.held:
            self._clear()
        return True

    def _unhost(self, held: Held) -> None:
        if not held.is_host:
            self.share_used -= held.share_milli
            self.memory_used -= held.memory_mib
            self.clients -= 1
        if not self.clients:
            self.held.clear()
            self._clear()
        elif held.is_host:
            self.held.append(held)
        if self.clients and self.team_id == SEVERAL:
            teams = {one.team_id for one in self.held if not one.is_host}
            self.team_id = teams.pop() if len(teams) == 1 else SEVERAL

    def _profiles_of(self, held: Held) -> list[str]:
        if held.mode != "mig":
            return []
        if held.profile in self.geometry.profiles:
            return [held.profile]
        return [p.name for p in self.device.profiles if p.slices == held.size and held.start in p.starts]

    def cost_of(self, held: Held) -> int:
        """What a live placement costs its quota; host placements and foreign partitions cost nothing."""
        if held.is_host or held.lease_id is None:
            return 0
        share = held.share_milli
        if not share and held.mode == "exclusive":
            share = WHOLE_MILLI
        if not share and held.mode == "mig":
            shares = (self.geometry.profiles[n].share_milli for n in self._profiles_of(held))
            share = max(shares, default=0)
        return weighted(share, self.device.weight_milli)


class BoardContents(Protocol):
    """What a board holds, as far as it decides what else fits; see ``Board``."""

    @property
    def geometry(self) -> Geometry:
        """The slices that it can be cut into."""

    @property
    def use(self) -> str:
        """The mode that lives there, "" for idle."""

    @property
    def mask(self) -> int:
        """The slices taken, as bits."""

    @property
    def counts(self) -> Mapping[str, int]:
        """How many slices of each profile there are."""

    @property
    def share_used(self) -> int:
        """Thousandths that shares have."""

    @property
    def memory_left_mib(self) -> int:
        """What may still be promised to shares."""

    @property
    def clients(self) -> int:
        """How many shares there are."""

    @property
    def team_id(self) -> int:
        """Whose shares may join."""


def room_on(board: BoardContents, shape: Shape, memory_mib: int, max_clients: int) -> int:
    """How many units of one claim fit on a board. One that is not idle serves its one mode only.

    Shares of one claim go to different boards: two shares of the same board are one bigger share. Memory and
    clients are the device's.
    """
    use = board.use
    if use and (use != shape.kind.mode or use == "exclusive"):
        return 0
    if not shape.is_shared:
        profile = shape.kind.profile
        room = board.geometry.units(profile, board.mask) if profile else 1
        return min(room, board.geometry.most(profile, board.counts)) if profile and room else room
    if use and shape.team_id and shape.team_id != board.team_id:
        return 0
    return int(
        board.share_used + shape.share_milli <= WHOLE_MILLI
        and shape.memory_mib <= min(board.memory_left_mib, memory_mib)
        and board.clients < max_clients
    )


def by_node(boards: Iterable[Board]) -> tuple[tuple[Board, ...], ...]:
    """Boards that come in node order, one tuple per node."""
    return tuple(tuple(group) for _, group in groupby(boards, key=lambda b: b.node.id))


def weighted(share_milli: int, weight_milli: int) -> int:
    """Thousandths of a device of this weight in quota units, rounded up."""
    return -(-share_milli * weight_milli // WHOLE_MILLI)


def _shares_within(shape: Shape, share_milli: int, memory_mib: int, clients: int) -> int:
    room = clients
    if shape.share_milli > 0:
        room = min(room, share_milli // shape.share_milli)
    if shape.memory_mib > 0:
        room = min(room, memory_mib // shape.memory_mib)
    # A share of nothing must not pass on a board whose other tenants already overflow it.
    return max(room, 0)
