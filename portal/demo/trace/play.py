"""Plays wishes against a portal: submits in order, releases each lease at its time, follows all to the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from portal.demo.trace.calls import ApiRefusal, Body, TraceClient
from portal.demo.trace.live import Event, LiveNews
from portal.demo.trace.mapping import TraceRequest
from portal.demo.trace.runs import Run

log = logging.getLogger(__name__)
LOOK_EVERY_S = 30.0
MOST_ORPHANS = 50_000


@dataclass(frozen=True, slots=True)
class SubmitRate:
    """How fast to submit: arrivals per second (None: as fast as accepted) and how many at once."""

    rate: float | None
    parallel: int
    patience_s: float


class Play:
    """One play. ``run`` returns when every row has come to its end."""

    def __init__(
        self,
        api: TraceClient,
        wishes: Sequence[TraceRequest],
        tokens: Mapping[str, str],
        *,
        pace: SubmitRate,
        name: str,
        since: str,
        tell: Callable[[str], None],
    ) -> None:
        """Take who asks with which token; ``since`` is the portal's time before the first request."""
        self.runs = [Run(wish, position) for position, wish in enumerate(wishes)]
        self._api, self._tokens, self._pace = api, tokens, pace
        self._name, self._since, self._tell = name, since, tell
        self._by_request: dict[str, Run] = {}
        self._orphans: dict[str, list[Event]] = {}
        self._open = len(self.runs)
        self._done = asyncio.Event()
        self._gap = asyncio.Event()
        self._jobs: set[asyncio.Task[None]] = set()
        self._changed_at = self._now()

    async def run(self) -> float:
        """Play everything; returns the seconds from the first request to the last end."""
        people = sorted({run.wish.asker.person for run in self.runs})
        news = [LiveNews(self._api.origin, self._tokens[p], self.take, self._gap.set) for p in people]
        watch: asyncio.Task[None] | None = None
        try:
            await asyncio.gather(*(one.open() for one in news))
            self._gap.clear()
            began = self._changed_at = self._now()
            watch = asyncio.get_running_loop().create_task(self._look_after(people))
            await self._submit_all(began)
            await self._done.wait()
        finally:
            for task in (*self._jobs, *([watch] if watch else [])):
                task.cancel()
            await asyncio.gather(*(one.close() for one in news))
        return max((run.over_at or began for run in self.runs), default=began) - began

    # --- submitting ------------------------------------------------------------------------------

    async def _submit_all(self, began: float) -> None:
        rows = iter(self.runs)
        await asyncio.gather(*(self._submit_from(rows, began) for _ in range(self._pace.parallel)))
        self._orphans.clear()
        self._tell(f"{len(self._by_request)} submitted after {self._now() - began:.1f} s")

    async def _submit_from(self, rows: Iterator[Run], began: float) -> None:
        """Take rows in order; several of these share one iterator."""
        for run in rows:
            if self._pace.rate:
                await asyncio.sleep(began + run.position / self._pace.rate - self._now())
            await self._submit(run)

    async def _submit(self, run: Run) -> None:
        run.posted_at = self._now()
        try:
            made = await self._api.call(
                "POST",
                "/api/v1/requests/",
                token=self._token(run),
                body=run.wish.body(),
                key=f"{self._name}-{run.position}",
            )
        except ApiRefusal as refusal:
            self._end(run, "refused", refusal.code)
            return
        run.request, run.state = made["id"], made["state"]
        self._by_request[run.request] = run
        for event in self._orphans.pop(run.request, ()):
            self.take(event)

    # --- news --------------------------------------------------------------------------------------

    def take(self, event: Event) -> None:
        """Take one change of state; what concerns nobody here is left alone. Safe to repeat."""
        run = self._by_request.get(event["request"])
        if run is None:
            if len(self._orphans) < MOST_ORPHANS:
                self._orphans.setdefault(event["request"], []).append(event)
            return
        if run.is_over:
            return
        self._changed_at = self._now()
        kind, _dot, state = event["event"].partition(".")
        if kind == "request":
            self._move_request(run, state)
        elif state == "active":
            self._activate(run, event["lease"])

    def _move_request(self, run: Run, state: str) -> None:
        run.state = state
        if state == "queued":
            run.lease, run.is_released = "", False
        elif state == "impossible":
            self._spawn(self._learn_reason(run))
        elif state in ("fulfilled", "rejected", "withdrawn", "expired"):
            self._end(run, state, run.reason)

    def _activate(self, run: Run, lease: str) -> None:
        if run.lease == lease:
            return
        run.lease = lease
        run.active_at = run.active_at if run.active_at is not None else self._now()
        self._spawn(self._release_later(run, lease))

    async def _release_later(self, run: Run, lease: str) -> None:
        await asyncio.sleep(run.wish.lifetime_s)
        try:
            await self._api.call("POST", f"/api/v1/leases/{lease}/release/", token=self._token(run), body={})
            run.is_released = True
        except ApiRefusal as refusal:
            log.warning("%s: release refused: %s", lease, refusal)

    async def _learn_reason(self, run: Run) -> None:
        found = await self._api.get(f"/api/v1/requests/{run.request}/", token=self._token(run))
        self._end(run, "impossible", _first_reason(found))

    def _end(self, run: Run, state: str, reason: str) -> None:
        if run.over_at is not None:
            return
        run.state, run.reason, run.over_at = state, reason, self._now()
        self._changed_at = run.over_at
        self._open -= 1
        if self._open == 0:
            self._done.set()

    # --- what news may have missed -----------------------------------------------------------------

    async def _look_after(self, people: Sequence[str]) -> None:
        """Read the lists now and then, at once after a gap in the news; give up on rows that cannot start."""
        while True:
            try:
                # Not wait_for: before Python 3.12 that loses a cancellation that comes together with a gap.
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._gap.wait()
            except TimeoutError:
                self._tell(f"{len(self.runs) - self._open} of {len(self.runs)} over")
            self._gap.clear()
            try:
                for person in people:
                    await self._catch_up(person)
                if self._now() - self._changed_at > self._pace.patience_s:
                    await self._give_up()
            except ApiRefusal as refusal:
                log.warning("lists not read: %s", refusal)

    async def _catch_up(self, person: str) -> None:
        path = (
            f"/api/v1/requests/?author={quote(person)}&submitted_after={quote(self._since)}&page_size=200"
            "&ordering=id"
        )
        async for row in self._api.pages(path, token=self._tokens[person]):
            run = self._by_request.get(row["id"])
            if run is None or run.is_over:
                continue
            if row["state"] == "granted":
                await self._catch_up_lease(run)
            elif row["state"] != "queued":
                self._move_request(run, row["state"])

    async def _catch_up_lease(self, run: Run) -> None:
        """Look at the lease of a granted request of which no activation, or no end, was heard."""
        is_due = run.active_at is None or self._now() > run.active_at + run.wish.lifetime_s + 5
        if not is_due:
            return
        found = await self._api.get(f"/api/v1/requests/{run.request}/", token=self._token(run))
        if not found["leases"]:
            return
        lease = await self._api.get(f"/api/v1/leases/{found['leases'][0]}/", token=self._token(run))
        if lease["state"] != "active":
            return
        if run.lease != lease["id"]:
            self._activate(run, lease["id"])
        elif not run.is_released:
            self._spawn(self._release_later(run, run.lease))

    async def _give_up(self) -> None:
        """Nothing has moved for long: take back what waits, under the reason it waits for."""
        for run in [r for r in self.runs if r.state == "queued" and r.request]:
            found = await self._api.get(f"/api/v1/requests/{run.request}/", token=self._token(run))
            run.reason = "waits: " + _first_reason(found)
            await self._api.call(
                "POST", f"/api/v1/requests/{run.request}/withdraw/", token=self._token(run), body={}
            )

    # --- small things ------------------------------------------------------------------------------

    def _token(self, run: Run) -> str:
        return self._tokens[run.wish.asker.person]

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _first_reason(request: Body) -> str:
    reasons = request.get("reasons") or [{}]
    return str(reasons[0].get("code") or "unknown")
