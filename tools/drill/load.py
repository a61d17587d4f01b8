"""People at work: every way to change something, over HTTP, as fast as asked and by a seed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from portal.demo.trace.calls import Answer, Body, Connection, Origin
from tools.drill.fleet import LOAD
from tools.drill.ledger import DrillLedger

PATIENCE_S = 8.0
TRIES = 8
RESEARCHERS = {"bob": "vision", "carol": "vision", "dana": "speech"}
# How often each thing is done, of all that is done.
WEIGHTS = {
    "submit": 36, "book": 5, "gang": 3, "grow": 1, "extend": 9, "release": 12, "withdraw": 6, "cancel": 3,
    "decide": 8, "quota": 2, "price": 1, "drain": 1, "token": 2, "close": 1,
}  # fmt: skip


class DrillConnection(Connection):
    """A connection that can also send headers of the drill's choice, and be cut before the answer comes."""

    def __init__(self, origin: Origin) -> None:
        super().__init__(origin)
        self.headers: dict[str, str] = {}

    def _request(self, method: str, path: str, token: str, body: Body | None, key: str) -> bytes:
        whole = super()._request(method, path, token, body, key)
        head, blank, data = whole.partition(b"\r\n\r\n")
        more = "".join(f"\r\n{name}: {value}" for name, value in self.headers.items())
        return head + more.encode() + blank + data

    async def cut(self, method: str, path: str, *, token: str, body: Body, key: str, after_s: float) -> None:
        """Send a call and hang up before anything can come back."""
        with contextlib.suppress(OSError):
            _reader, writer = await asyncio.open_connection(self._origin.host, self._origin.port)
            writer.write(self._request(method, path, token, body, key))
            await writer.drain()
            await asyncio.sleep(after_s)
            writer.transport.abort()


@dataclass
class DrillLoad:
    """Some people, each doing one thing at a time, in an event loop of a thread of its own."""

    url: str
    world: dict[str, Any]
    ledger: DrillLedger
    seed: int
    actors: int = 4
    pause_s: float = 0.8
    known: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.origin = Origin.of(self.url)
        self._stop = threading.Event()
        self._numbers = iter(range(1, 10**9))
        self._planned: dict[str, datetime] = {}
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.months = list(self.world["months"])
        self._draining = asyncio.Lock()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let everybody finish what they do; returns when they have."""
        self._stop.set()
        self._thread.join(60)

    async def _run(self) -> None:
        await asyncio.gather(*(self._person(n) for n in range(self.actors)))

    async def _person(self, number: int) -> None:
        dice, wire = random.Random(f"{self.seed}/{number}"), DrillConnection(self.origin)
        todo: dict[str, Callable[[random.Random, DrillConnection], Awaitable[None]]] = {
            name: getattr(self, f"_{name}") for name in WEIGHTS
        }
        while not self._stop.is_set():
            name = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            # The portal may be away; whatever was promised before is in the ledger.
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                await todo[name](dice, wire)
            await asyncio.sleep(dice.expovariate(1 / self.pause_s))
        wire.close()

    async def call(
        self, wire: DrillConnection, who: str, method: str, path: str, body: Body | None = None, key: str = ""
    ) -> Answer:
        """Make one call and count its answer; raises OSError, EOFError or TimeoutError when none came."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await wire.call(
                    method, f"/api/v1/{path}", token=self.world["tokens"][who], body=body, key=key
                )
        except (OSError, EOFError, TimeoutError):
            self.ledger.answer(0, f"{method} {path}", None)
            raise
        self.ledger.answer(answer.status, f"{method} {path}", answer.body)
        return answer

    async def patient(
        self, wire: DrillConnection, who: str, path: str, body: Body, key: str
    ) -> Answer | None:
        """POST with a key until there is an answer that is not "later"; None when there was none."""
        for attempt in range(TRIES):
            try:
                answer = await self.call(wire, who, "POST", path, body, key)
                if answer.status not in (409, 429) and answer.status < 500:
                    return answer
                if answer.status == 409 and answer.body.get("code") != "idempotency_running":
                    return answer
            except (OSError, EOFError, TimeoutError):
                pass
            await asyncio.sleep(min(2.0, 0.2 * 2**attempt))
        return None

    async def _ask(self, dice: random.Random, wire: DrillConnection, **more: Any) -> dict[str, Any] | None:
        """Ask for GPU time in one of the ways a client may: with or without a key, once or often, cut or not."""
        who = more.pop("who", None) or dice.choice(list(RESEARCHERS))
        body: Body = {
            "flavor": dice.choice(LOAD),
            "team": RESEARCHERS.get(who, "probes"),
            "duration_s": dice.randint(5, 30),
            "name": f"d{next(self._numbers)}",
            **more,
        }
        key = f"k-{body['name']}" if dice.random() < 0.6 else ""
        uids = await (self._keyed if key else self._plain)(dice, wire, who, body, key)
        for uid, state in uids:
            self.ledger.note("submit", who, uid=uid, name=body["name"], key=key, body=body, state=state)
        if not uids:
            return None
        found = {"uid": uids[0][0], "who": who, "at": time.monotonic(), **body}
        self.known = [*self.known[-60:], found]
        return found

    async def _keyed(
        self, dice: random.Random, wire: DrillConnection, who: str, body: Body, key: str
    ) -> list[tuple[str, str]]:
        token, name = self.world["tokens"][who], body["name"]
        if dice.random() < 0.2:
            self.ledger.send(name)
            await wire.cut("POST", "/api/v1/requests/", token=token, body=body, key=key,
                           after_s=dice.choice((0.0, 0.005, 0.02)))  # fmt: skip
        others = [DrillConnection(self.origin) for _ in range(dice.choice((0, 0, 0, 1, 2)))]
        self.ledger.send(name)
        answers = await asyncio.gather(
            *(self.patient(one, who, "requests/", body, key) for one in (wire, *others))
        )
        for one in others:
            one.close()
        return [(a.body["id"], a.body["state"]) for a in answers if a is not None and a.status == 201]

    async def _plain(
        self, dice: random.Random, wire: DrillConnection, who: str, body: Body, key: str
    ) -> list[tuple[str, str]]:
        found = []
        for _copy in range(dice.choice((1, 1, 1, 2))):
            self.ledger.send(body["name"])
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                answer = await self.call(wire, who, "POST", "requests/", body)
                if answer.status == 201:
                    found.append((answer.body["id"], answer.body["state"]))
        return found

    async def _submit(self, dice: random.Random, wire: DrillConnection) -> None:
        more: dict[str, Any] = {}
        if dice.random() < 0.2:
            more["is_preemptible"] = True
        if dice.random() < 0.2:
            more["least_duration_s"] = 5
        await self._ask(dice, wire, **more)

    async def _book(self, dice: random.Random, wire: DrillConnection) -> None:
        starts = datetime.now(UTC) + timedelta(seconds=dice.randint(6, 25))
        await self._ask(dice, wire, starts_at=starts.isoformat(), duration_s=dice.randint(5, 12))

    async def _gang(self, dice: random.Random, wire: DrillConnection) -> None:
        who = dice.choice(("bob", "carol"))
        nodes = dice.choice((0, 2))
        await self._ask(dice, wire, who=who, flavor="a100", nodes=nodes, count=2 if nodes == 0 else 1)

    async def _grow(self, dice: random.Random, wire: DrillConnection) -> None:
        """Ask for something that may grow, let it, and give it back soon."""
        found = await self._ask(
            dice, wire, who="bob", flavor="l40s-12gb", duration_s=900, most_count=2, count=1
        )
        if found is None:
            return
        await asyncio.sleep(dice.uniform(4, 10))
        answer = await self.call(
            wire, "bob", "POST", f"requests/{found['uid']}/growth/", {"most_count": dice.choice((1, 3))}
        )
        if answer.status == 200:
            self.ledger.note("growth", "bob", uid=found["uid"])
        await self._give_back(wire, found)

    async def _give_back(self, wire: DrillConnection, found: dict[str, Any]) -> None:
        """End what a request became: its leases released, or itself withdrawn."""
        for _attempt in range(4):
            answer = await self.call(wire, found["who"], "GET", f"requests/{found['uid']}/")
            if answer.status != 200:
                return
            if answer.body["state"] in ("queued", "awaiting_approval"):
                if await self._withdraw_one(wire, found):
                    return
            elif answer.body["state"] == "granted" and answer.body["leases"]:
                for lease in answer.body["leases"]:
                    await self._release_one(wire, found, lease)
                return
            else:
                return

    async def _release_one(self, wire: DrillConnection, found: dict[str, Any], lease: str) -> None:
        answer = await self.call(wire, found["who"], "POST", f"leases/{lease}/release/", {})
        if answer.status == 200:
            self.ledger.note(
                "release", found["who"], lease=lease, uid=found["uid"], state=answer.body["state"],
                ended_at=answer.body["ended_at"], end_reason=answer.body["end_reason"],
            )  # fmt: skip

    async def _withdraw_one(self, wire: DrillConnection, found: dict[str, Any]) -> bool:
        answer = await self.call(wire, found["who"], "POST", f"requests/{found['uid']}/withdraw/", {})
        if answer.status == 200:
            self.ledger.note("withdraw", found["who"], uid=found["uid"], state=answer.body["state"])
        return answer.status == 200

    def _recent(self, dice: random.Random, least_s: float, most_s: float) -> dict[str, Any] | None:
        now = time.monotonic()
        fitting = [one for one in self.known if least_s <= now - one["at"] <= most_s]
        return dice.choice(fitting) if fitting else None

    async def _lease_of(self, wire: DrillConnection, found: dict[str, Any]) -> str | None:
        answer = await self.call(wire, found["who"], "GET", f"requests/{found['uid']}/")
        return answer.body["leases"][0] if answer.status == 200 and answer.body["leases"] else None

    async def _release(self, dice: random.Random, wire: DrillConnection) -> None:
        found = self._recent(dice, 0.5, 40)
        lease = await self._lease_of(wire, found) if found else None
        if found and lease:
            for _repeat in range(dice.choice((1, 1, 2))):
                await self._release_one(wire, found, lease)

    async def _extend(self, dice: random.Random, wire: DrillConnection) -> None:
        found = self._recent(dice, 0.5, 25)
        lease = await self._lease_of(wire, found) if found else None
        if not found or not lease:
            return
        extra, key = dice.randint(2, 10), f"x-{lease}-{next(self._numbers)}"
        answer = await self.patient(wire, found["who"], f"leases/{lease}/extend/", {"extra_s": extra}, key)
        if answer is not None and answer.status == 200:
            again = await self.patient(wire, found["who"], f"leases/{lease}/extend/", {"extra_s": extra}, key)
            self.ledger.note(
                "extend", found["who"], lease=lease, key=key, extra_s=extra,
                not_after=answer.body["not_after"],
                again=again.body.get("not_after") if again is not None and again.status == 200 else None,
            )  # fmt: skip

    async def _withdraw(self, dice: random.Random, wire: DrillConnection) -> None:
        found = self._recent(dice, 0.0, 30)
        if found:
            await self._withdraw_one(wire, found)

    async def _cancel(self, dice: random.Random, wire: DrillConnection) -> None:
        bookings = [one for one in self.known if "starts_at" in one]
        if bookings:
            await self._withdraw_one(wire, dice.choice(bookings))

    async def _decide(self, dice: random.Random, wire: DrillConnection) -> None:
        answer = await self.call(wire, "erin", "GET", "requests/?awaiting_me=true")
        waiting = answer.body.get("results", []) if answer.status == 200 else []
        for row in waiting[:3]:
            what = "approve" if dice.random() < 0.75 else "reject"
            said = await self.call(
                wire, "erin", "POST", f"requests/{row['id']}/{what}/", {"note": "as the drill has it"}
            )
            if said.status == 200:
                self.ledger.note(what, "erin", uid=row["id"], state=said.body["state"])

    async def _quota(self, dice: random.Random, wire: DrillConnection) -> None:
        team = dice.choice(("vision", "speech"))
        read = await self.call(wire, "rhea", "GET", f"teams/{team}/quota/")
        if read.status != 200:
            return
        wire.headers = {"If-Match": read.headers.get("etag", "")}
        try:
            body = {"guaranteed_milli": 2_000, "ceiling_milli": dice.randint(5, 10) * 1000}
            answer = await self.call(wire, "rhea", "PUT", f"teams/{team}/quota/", body)
        finally:
            wire.headers = {}
        if answer.status == 200:
            self.ledger.note("quota", "rhea", team=team, etag=answer.headers.get("etag"), **body)

    async def _price(self, dice: random.Random, wire: DrillConnection) -> None:
        model = dice.choice(("a100-80gb", "h100-80gb", "l40s-48gb"))
        now = datetime.now(UTC)
        if self._planned.get(model, now) > now:
            return
        starts = (now + timedelta(seconds=dice.randint(6, 15))).replace(microsecond=0)
        price = f"{dice.randint(100, 900) / 100:.2f}"
        body = {"device_model": model, "price_per_hour": price, "starts_at": starts.isoformat()}
        answer = await self.call(wire, "fin", "POST", "rates/", body, f"p-{next(self._numbers)}")
        if answer.status == 201:
            self._planned[model] = starts
            self.ledger.note("price", "fin", model=model, price=price, starts_at=starts.isoformat())

    async def _drain(self, dice: random.Random, wire: DrillConnection) -> None:
        if self._draining.locked():
            return
        async with self._draining:
            node = "drill-03"
            by = datetime.now(UTC) + timedelta(seconds=dice.randint(1, 8))
            body = {"reason": "drill", "by": by.isoformat()}
            answer = await self.call(wire, "olga", "POST", f"nodes/{node}/drain/", body)
            if answer.status == 200:
                self.ledger.note("drain", "olga", node=node)
            await asyncio.sleep(dice.uniform(1, 6))
            for _attempt in range(20):
                with contextlib.suppress(OSError, EOFError, TimeoutError):
                    answer = await self.call(wire, "olga", "POST", f"nodes/{node}/undrain/", {})
                    if answer.status == 200:
                        self.ledger.note("undrain", "olga", node=node)
                        return
                await asyncio.sleep(1)

    async def _token(self, dice: random.Random, wire: DrillConnection) -> None:
        name = f"t{next(self._numbers)}"
        body = {"name": name, "scopes": ["read"], "days": 1}
        made = await self.call(wire, "carol", "POST", "tokens/", body)
        if made.status != 201:
            return
        entry = self.ledger.note("token", "carol", id=made.body["id"], name=name)
        for _attempt in range(TRIES):
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                ended = await self.call(wire, "carol", "DELETE", f"tokens/{made.body['id']}/")
                if ended.status == 204:
                    self.ledger.note("token_end", "carol", id=made.body["id"])
                    entry["secret"] = made.body["secret"]
                    return
            await asyncio.sleep(0.5)

    async def _close(self, dice: random.Random, wire: DrillConnection) -> None:
        """Close the oldest month that is open, now and then two at a time for the same one."""
        if not self.months:
            return
        month = self.months[0]
        others = [DrillConnection(self.origin) for _ in range(dice.choice((0, 1)))]
        answers = await asyncio.gather(
            *(self.call(one, "fin", "POST", f"periods/{month}/close/", {}) for one in (wire, *others)),
            return_exceptions=True,
        )
        for one in others:
            one.close()
        for answer in answers:
            if isinstance(answer, Answer) and answer.status == 200:
                self.ledger.note("close", "fin", month=month)
            if isinstance(answer, Answer) and (
                answer.status == 200 or answer.body.get("code") == "period_closed"
            ):
                self.months = [one for one in self.months if one != month]
