"""The coalescing hub of one web process: which local sockets look at what, one text per topic and tick.

Cost grows with sockets × ticks, not with nodes × sockets. Everything here runs in one event loop;
time is passed in. ``periodic`` calls it, ``consumers`` talk to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import weakref
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import DatabaseError
from django.utils.translation import gettext as _
from django.utils.translation import override

from portal.accounts.models import User
from portal.common.errors import NotFound
from portal.common.live import EVENTS, FRAMES, LOGS, hub
from portal.fleet import pauses
from portal.jobs.log_views import readable_job
from portal.leases.models import Lease
from portal.leases.states import LeaseState
from portal.notifications import announcements
from portal.teams.selectors import Rights
from portal.telemetry import payloads, viewers
from portal.telemetry.database import in_database
from portal.telemetry.frames import unpack
from portal.telemetry.ingest import intake
from portal.telemetry.node_view import NodeTexts, Scope, is_fresh
from portal.telemetry.ring import readings
from portal.telemetry.roster import TeamFacts
from portal.telemetry.send_queue import Mailbox
from portal.telemetry.viewers import Viewer

log = logging.getLogger(__name__)
MAX_TOPICS = 64
TO_EVERYBODY = (announcements.CHANGED, pauses.CHANGED)
MISSES_ALLOWED = 3
SIGN_IN, NOT_ALLOWED, LATER, RESTART = 4401, 4403, 1013, 1012
_TOPIC = re.compile(r"me|fleet|(?:lease|job):[a-z0-9-]{1,24}|node:[A-Za-z0-9_-]{1,60}")


@dataclass(frozen=True, slots=True)
class WatchedTopic:
    """A topic that a socket looks at; ``team_id`` of a lease or a job, ``memory_mib`` of a lease."""

    team_id: int | None = None
    memory_mib: int | None = None


@dataclass(eq=False, slots=True)
class HubSocket:
    """One local socket: who sits there, what they look at, what waits to be written, how it ends."""

    visitor: Viewer
    closing: asyncio.Future[int]
    mailbox: Mailbox = field(default_factory=Mailbox)
    topics: dict[str, WatchedTopic] = field(default_factory=dict)

    def close(self, code: int) -> None:
        """End the socket with a code; the first one counts."""
        if not self.closing.done():
            self.closing.set_result(code)

    def refuse(self, code: str, topic: str = "") -> None:
        """Tell the person why something was not done."""
        with override(self.visitor.language or None):
            self.mailbox.put(payloads.error_text(code, str(_SENTENCES[code]()), topic))


_SENTENCES = {
    "unknown_topic": lambda: _("There is no such topic for you. Check its name, or ask its team for access."),
    "too_many_topics": lambda: _("Watch at most %(n)d topics on one connection.") % {"n": MAX_TOPICS},
    "bad_message": lambda: _('Send JSON like {"op": "subscribe", "topics": ["me"]}.'),
    "unavailable": lambda: _("This could not be looked up now. Subscribe again in a few seconds."),
    "live_paused": lambda: _("Live figures pause; they come back by themselves."),
}


class Switchboard:
    """Seats, topics and the texts between them."""

    def __init__(self) -> None:
        self.keeper = intake().roster
        self.seats: set[HubSocket] = set()
        self.topics: dict[str, set[HubSocket]] = {}
        self.writes = 0
        self._seqs: dict[str, int] = {}
        self._dirty: set[str] = set()
        self._looks: dict[str, tuple[str, bool]] = {}
        self._ticked_at = 0.0
        self._nodes = NodeTexts(readings, self.keeper)
        self._audiences: dict[int, list[HubSocket]] = {}
        self._late: set[asyncio.Task[None]] = set()
        self._misses = 0
        self._is_paused = False

    def listen(self) -> None:
        """Begin to take frames and events from the hub. Safe to repeat."""
        news = hub()
        news.listen(FRAMES, self.on_frame)
        news.listen(EVENTS, self.on_event)
        news.listen(LOGS, self.on_log)
        news.watch(self.on_news)

    # --- seats ---------------------------------------------------------------------------------

    def join(self, visitor: Viewer) -> HubSocket:
        """Seat a visitor."""
        seat = HubSocket(visitor, asyncio.get_running_loop().create_future())
        self.seats.add(seat)
        return seat

    def leave(self, seat: HubSocket) -> None:
        """Forget a socket. Safe to repeat."""
        self.unsubscribe(seat, list(seat.topics))
        self.seats.discard(seat)

    async def subscribe(self, seat: HubSocket, topics: list[str], *, now: datetime) -> None:
        """Add topics and send a snapshot of each; one out of sight answers like one that does not exist."""
        try:
            known = await self._look_up(seat, topics, now)
        except DatabaseError as error:
            log.warning("a subscription could not be looked up: %s", error)
            seat.refuse("unavailable")
            return
        for topic in dict.fromkeys(topics):
            if topic not in known:
                seat.refuse("unknown_topic", topic[:80])
            elif topic not in seat.topics and len(seat.topics) >= MAX_TOPICS:
                seat.refuse("too_many_topics", topic)
            elif seat in self.seats:
                self._watch(seat, topic, known[topic])
                self._send_snapshot(seat, topic, now.timestamp())

    def _watch(self, seat: HubSocket, topic: str, watched: WatchedTopic) -> None:
        seat.topics[topic] = watched
        self.topics.setdefault(topic, set()).add(seat)
        if topic == "me":
            self._audiences.clear()

    def unsubscribe(self, seat: HubSocket, topics: list[str]) -> None:
        """Stop sending topics; others are ignored."""
        for topic in topics:
            if seat.topics.pop(topic, None) is None:
                continue
            seat.mailbox.forget(topic)
            self.topics[topic].discard(seat)
            if not self.topics[topic]:
                del self.topics[topic]
                self._seqs.pop(topic, None)
            if topic == "me":
                self._audiences.clear()

    async def _look_up(self, seat: HubSocket, topics: list[str], now: datetime) -> dict[str, WatchedTopic]:
        """Return the topics that this person may watch. Rights are read afresh where an object is named."""
        found = {topic: WatchedTopic() for topic in topics if topic in ("me", "fleet")}
        await self.keeper.ready()
        named = {topic for topic in topics if topic not in found and _TOPIC.fullmatch(topic)}
        if not named:
            return found
        uids = [topic.removeprefix("lease:") for topic in named if topic.startswith("lease:")]
        jobs = [topic.removeprefix("job:") for topic in named if topic.startswith("job:")]
        visitor, rows, readable = await in_database(lambda: _read(seat.visitor, uids, jobs, now))
        if visitor is None:
            seat.close(SIGN_IN)
            return {}
        self._reseat(seat, visitor)
        await self._learn({row[1] for row in rows}, named)
        roster = self.keeper.roster
        for uid, team_id, memory_mib in rows:
            if roster.sees(visitor.held, team_id):
                found[f"lease:{uid}"] = WatchedTopic(team_id, memory_mib)
        found |= {f"job:{uid}": WatchedTopic(team_id) for uid, team_id in readable.items()}
        found |= {topic: WatchedTopic() for topic in named if topic.removeprefix("node:") in roster.nodes}
        return found

    async def _learn(self, team_ids: set[int], named: set[str]) -> None:
        """Read the roster again when a team or node is missing in it, at most every half second."""
        roster = self.keeper.roster
        nodes = {topic.removeprefix("node:") for topic in named if topic.startswith("node:")}
        if team_ids <= roster.teams.keys() and nodes <= roster.nodes.keys():
            return
        self.keeper.want()
        if self.keeper.is_due():
            await self.keeper.refresh()

    def _reseat(self, seat: HubSocket, visitor: Viewer) -> None:
        if seat.visitor.held != visitor.held:
            self._audiences.clear()
        seat.visitor = visitor

    # --- frames ----------------------------------------------------------------------------------

    def on_frame(self, _channel: str, message: Any) -> None:
        """Keep a frame that arrived and note which topics have something new."""
        frame = unpack(message)
        touched = readings.take(frame)
        if touched is None or not self.topics:
            return
        self._dirty |= {"fleet", f"node:{frame.node}"}
        self._dirty |= {f"lease:{lease}" for lease in touched}

    def tick(self, *, now: float) -> int:
        """Write what is new since the last tick, each text made once; returns how many were handed on."""
        self._ticked_at = now
        if not self.topics:
            self._dirty.clear()
            return 0
        self._notice_silence(now)
        due, self._dirty = self._dirty & self.topics.keys(), set()
        before = self.writes
        for topic in due:
            self._send_frame(topic, now)
        return self.writes - before

    def _notice_silence(self, now: float) -> None:
        looks = {name: self._nodes.look(name, now=now) for name in self.keeper.roster.nodes}
        for name, look in looks.items():
            if self._looks.get(name, look) != look:
                self._dirty |= {"fleet", f"node:{name}"}
                frame = readings.frames.get(name)
                self._dirty |= {f"lease:{slot.lease}" for slot in frame.slots} if frame else set()
        self._looks = looks

    def _send_frame(self, topic: str, now: float) -> None:
        seq = self._seqs[topic] = self._seqs.get(topic, 0) + 1
        made: dict[Scope, str] = {}
        for seat in self.topics[topic]:
            scope = frozenset() if topic.startswith("lease:") else seat.visitor.held
            if scope not in made:
                at, data = self._data(topic, scope, seat.topics[topic], now)
                made[scope] = payloads.envelope("frame", topic, seq, at, data)
            seat.mailbox.put_frame(topic, made[scope])
            self.writes += 1

    def _send_snapshot(self, seat: HubSocket, topic: str, now: float) -> None:
        seat.mailbox.forget(topic)
        # Its rights were looked up meanwhile; a silence that a tick has told the others counts for it too.
        now = max(now, self._ticked_at)
        at, data = self._data(topic, seat.visitor.held, seat.topics[topic], now, is_snapshot=True)
        seat.mailbox.put(payloads.envelope("snapshot", topic, self._seqs.get(topic, 0), at, data))

    def _data(
        self, topic: str, scope: Scope, watched: WatchedTopic, now: float, *, is_snapshot: bool = False
    ) -> tuple[float, str]:
        kind, _sep, name = topic.partition(":")
        if kind == "lease":
            return self._lease_data(name, watched, now, is_snapshot=is_snapshot)
        if kind in ("me", "job"):
            return now, "{}"
        names = [name] if kind == "node" else list(self.keeper.roster.nodes)
        texts = {name: self._nodes.text(name, scope, now=now) for name in names}
        return now, payloads.nodes_data({name: text for name, text in texts.items() if text is not None})

    def _lease_data(
        self, uid: str, watched: WatchedTopic, now: float, *, is_snapshot: bool
    ) -> tuple[float, str]:
        seen = readings.leases.get(uid)
        fresh = seen is not None and is_fresh(seen.at, now=now)
        facts = self.keeper.roster.leases.get(uid)
        places = list(facts.places.values()) if facts else []
        data = payloads.lease_data(seen, places, memory_mib=watched.memory_mib, is_fresh=fresh)
        if is_snapshot:
            data = payloads.with_history(data, readings.history("lease", uid, now=now))
        return seen.at if seen is not None and fresh else now, payloads.dumps(data)

    # --- events ----------------------------------------------------------------------------------

    def on_event(self, _channel: str, event: Any) -> None:
        """Hand a change of state at once to those who may see its team."""
        team_id = event.get("team") if isinstance(event, dict) else None
        if isinstance(event, dict) and event.get("event") in TO_EVERYBODY:
            # It holds no text: what one may read of it the page asks for itself.
            for seat in self.topics.get("me", ()):
                seat.mailbox.put(payloads.event_text(event, ""))
            return
        if not isinstance(team_id, int):
            return
        if event.get("state") == LeaseState.PREPARING:
            self.keeper.want()  # its first samples come within a second: know its places by then
        if not self.topics.get("me"):
            return
        team = self.keeper.roster.teams.get(team_id)
        if team is not None:
            self._tell(event, team_id, team)
            return
        task = asyncio.get_running_loop().create_task(self._tell_late(event, team_id))
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _tell_late(self, event: dict[str, Any], team_id: int) -> None:
        if team_id not in self.keeper.roster.teams:
            await self.keeper.refresh()
        team = self.keeper.roster.teams.get(team_id)
        if team is not None:
            self._tell(event, team_id, team)

    def _tell(self, event: dict[str, Any], team_id: int, team: TeamFacts) -> None:
        audience = self._audience(team_id, team)
        if not audience:
            return
        text = payloads.event_text(event, team.slug)
        for seat in audience:
            seat.mailbox.put(text)

    def _audience(self, team_id: int, team: TeamFacts) -> list[HubSocket]:
        if team_id not in self._audiences:
            self._audiences[team_id] = [
                seat for seat in self.topics.get("me", ()) if not seat.visitor.held.isdisjoint(team.lineage)
            ]
        return self._audiences[team_id]

    def on_log(self, _channel: str, grown: Any) -> None:
        """Tell those who read a job's output that there is more of it; one who is slow hears of the newest alone."""
        topic = f"job:{grown.get('job')}" if isinstance(grown, dict) else ""
        if topic not in self.topics:
            return
        seq = self._seqs[topic] = self._seqs.get(topic, 0) + 1
        data = payloads.dumps({"attempt": grown.get("attempt"), "size": grown.get("size")})
        text = payloads.envelope("frame", topic, seq, grown["at"], data)
        for seat in self.topics[topic]:
            seat.mailbox.put_frame(topic, text)

    def on_news(self, is_open: bool) -> None:
        """Say that live news pauses; when it is back, let everybody come again and read the rows."""
        if not is_open:
            self._is_paused = True
            for seat in self.seats:
                seat.refuse("live_paused")
        elif self._is_paused:
            self._is_paused = False
            for seat in self.seats:
                seat.close(RESTART)

    # --- rights ----------------------------------------------------------------------------------

    async def review(self, *, now: datetime) -> None:
        """Ask again who may stay: 4401 for whoever signed out, 4403 where a right was lost.

        When the database cannot be asked three times running, everybody must come again.
        """
        asked = {seat.visitor.key: seat.visitor for seat in self.seats}
        if not asked:
            return
        try:
            alive = await in_database(lambda: viewers.review(list(asked.values()), now=now))
            self._misses = 0
        except DatabaseError as error:
            self._misses += 1
            log.warning("rights of %d sockets not checked: %s", len(self.seats), error)
            if self._misses >= MISSES_ALLOWED:
                for seat in self.seats:
                    seat.close(LATER)
            return
        if self.keeper.is_due():
            await self.keeper.refresh()
        self._audiences.clear()
        self._nodes.forget()
        for seat in self.seats:
            if seat.visitor.key in asked:
                self._judge(seat, alive.get(seat.visitor.key))

    def _judge(self, seat: HubSocket, visitor: Viewer | None) -> None:
        if visitor is None:
            seat.close(SIGN_IN)
            return
        seat.visitor = visitor
        teams = {watched.team_id for watched in seat.topics.values() if watched.team_id is not None}
        if not visitor.held or not all(self.keeper.roster.sees(visitor.held, team) for team in teams):
            seat.close(NOT_ALLOWED)


def _read(
    visitor: Viewer, uids: list[str], jobs: list[str], now: datetime
) -> tuple[Viewer | None, list[tuple[str, int, int]], dict[str, int]]:
    """Return the visitor as they are now, (uid, team, MiB) of leases, whoever may see them, and the team of each job
    whose output they may read.
    """
    rows = Lease.objects.filter(uid__in=uids).values_list("uid", "team_id", "count", "flavor__memory_mib")
    leases = [(uid, team_id, count * mib) for uid, team_id, count, mib in rows] if uids else []
    readable = {}
    for person in User.objects.filter(pk=visitor.user_id) if jobs else ():
        rights = Rights(person)
        for uid in jobs:
            with contextlib.suppress(NotFound):
                readable[uid] = readable_job(rights, uid).team_id
    return viewers.review([visitor], now=now).get(visitor.key), leases, readable


_boards: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Switchboard] = weakref.WeakKeyDictionary()


def switchboard() -> Switchboard:
    """Return the switchboard of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _boards:
        _boards[loop] = Switchboard()
    return _boards[loop]
