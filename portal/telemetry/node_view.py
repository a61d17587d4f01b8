"""The state of nodes and their part of the map as text, made once per node, frame and circle of viewers."""

from __future__ import annotations

from django.conf import settings

from portal.fleet.selectors import OFFLINE, ONLINE, STALE
from portal.telemetry import payloads
from portal.telemetry.frames import Frame, blank
from portal.telemetry.ring import Readings
from portal.telemetry.roster import Roster, RosterKeeper

Scope = frozenset[int]


def is_fresh(at: float, *, now: float) -> bool:
    """Say whether a measurement is recent enough to be shown as the present."""
    return now - at <= settings.NODE_STALE_AFTER_S


class NodeTexts:
    """Texts of nodes per circle of viewers (``scope``: the teams they hold roles on)."""

    def __init__(self, readings: Readings, keeper: RosterKeeper) -> None:
        self._readings = readings
        self._keeper = keeper
        self._made: dict[tuple[str, Scope], tuple[Frame | Roster, str, bool, str]] = {}

    def state(self, name: str, *, now: float) -> str:
        """Return online, stale or offline, by the last frame or heartbeat."""
        node, frame = self._keeper.roster.nodes.get(name), self._readings.frames.get(name)
        heard = max(frame.at if frame else 0.0, (node.heard_at or 0.0) if node else 0.0)
        if is_fresh(heard, now=now):
            return ONLINE
        return STALE if now - heard <= settings.NODE_LOST_AFTER_S else OFFLINE

    def look(self, name: str, *, now: float) -> tuple[str, bool]:
        """Return a node's state and whether its figures are recent: what changes by itself in silence."""
        frame = self._readings.frames.get(name)
        return self.state(name, now=now), frame is not None and is_fresh(frame.at, now=now)

    def text(self, name: str, scope: Scope, *, now: float) -> str | None:
        """Return the node's JSON for these viewers; None when there is no such node."""
        roster = self._keeper.roster
        if name not in roster.nodes:
            return None
        source: Frame | Roster = self._readings.frames.get(name) or roster
        state, fresh = self.look(name, now=now)
        made = self._made.get((name, scope))
        if made and made[0] is source and made[1:3] == (state, fresh):
            return made[3]
        frame = roster.blank_frame(name) if isinstance(source, Roster) else source if fresh else blank(source)
        assert frame is not None
        text = payloads.node_data(
            frame, state, is_seen=lambda team_id: roster.sees(scope, team_id), secret=settings.SECRET_KEY
        )
        self._made[name, scope] = (source, state, fresh, text)
        return text

    def forget(self) -> None:
        """Drop all texts: teams or the circles of viewers may have changed."""
        self._made.clear()
