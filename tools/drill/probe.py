"""Does this node work again? Asks for a lease on a device that nobody else uses, and waits until it is active."""

from __future__ import annotations

import http.client
import itertools
import json
import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import psycopg

from tools.drill.fleet import PROBES
from tools.drill.ledger import DrillLedger
from tools.drill.stack import DrillStack

WITHIN_S = 90.0
ANSWER_S = 2.0
QUERY = (
    "SELECT l.uid FROM leases_lease l JOIN leases_leaserequest r ON r.id = l.request_id"
    " WHERE r.uid = %s AND l.activated_at IS NOT NULL"
)


class Prober:
    """Pia, who asks for one lease at a time."""

    def __init__(self, stack: DrillStack, ledger: DrillLedger) -> None:
        self._stack, self._ledger = stack, ledger
        self._numbers = itertools.count(1)
        self._session: psycopg.Connection[Any] | None = None
        self._left: dict[str, list[str]] = {}

    def recovered(
        self, node: str, since: float, *, within_s: float = WITHIN_S, clears: bool = False
    ) -> float | None:
        """Return seconds from an instant to the next lease that is asked for and becomes active; None: not in time.

        With ``clears`` an operator lets devices work again that rest because a start on them failed.
        """
        self._clear(node)
        end = since + within_s
        name = f"p{next(self._numbers)}"
        body = {"flavor": PROBES[node], "team": "probes", "duration_s": 60, "name": name}
        uid = self._ask(body, name, end)
        lease = None
        while uid and lease is None and time.monotonic() < end:
            lease = self._active(uid)
            if lease is None and self._left.get(node):
                self._clear(node)
            if lease is None and clears:
                self.clear_devices()
            time.sleep(0.01)
        took = time.monotonic() - since
        if uid is None or lease is None:
            if uid is not None:
                self._left.setdefault(node, []).append(uid)
            return None
        self._give_back(uid, lease)
        return took

    def _clear(self, node: str) -> None:
        """Take back what was asked for on a node and did not come in time: it would hold the device now."""
        for uid in self._left.pop(node, []):
            status, _answer = self._call("POST", f"requests/{uid}/withdraw/", {}, "")
            if status == 200:
                self._ledger.note("withdraw", "pia", uid=uid, state="withdrawn")
            elif status and (lease := self._active(uid)):
                self._give_back(uid, lease)
            else:
                self._left.setdefault(node, []).append(uid)

    def _ask(self, body: dict[str, Any], name: str, end: float) -> str | None:
        self._ledger.send(name)
        while time.monotonic() < end:
            status, answer = self._call("POST", "requests/", body, f"k-{name}")
            if status == 201:
                entry = {"uid": answer["id"], "name": name, "key": f"k-{name}", "body": body}
                self._ledger.note("submit", "pia", **entry, state=answer["state"])
                return str(answer["id"])
            time.sleep(0.05)
        return None

    def _give_back(self, uid: str, lease: str) -> None:
        """Release it and wait until its device is clean, so that the next one finds it free."""
        end = time.monotonic() + 30
        is_released = False
        while time.monotonic() < end:
            if not is_released:
                status, answer = self._call("POST", f"leases/{lease}/release/", {}, "")
                if status == 200:
                    is_released = True
                    self._ledger.note(
                        "release", "pia", lease=lease, uid=uid, state=answer["state"],
                        ended_at=answer["ended_at"], end_reason=answer["end_reason"],
                    )  # fmt: skip
            elif self._one("SELECT 1 FROM leases_lease WHERE uid = %s AND state = 'ended'", lease):
                return
            time.sleep(0.05)

    def _active(self, uid: str) -> str | None:
        return self._one(QUERY, uid)

    def _one(self, query: str, value: str) -> str | None:
        try:
            if self._session is None or self._session.closed:
                self._session = self._stack.database(options="-c statement_timeout=2000")
            row = self._session.execute(query, [value]).fetchone()
            return str(row[0]) if row else None
        except psycopg.Error:
            with suppress(psycopg.Error):
                if self._session is not None:
                    self._session.close()
            self._session = None
            return None

    def close(self, month: str) -> bool:
        """Close a month; says whether it is closed now."""
        status, answer = self._call("POST", f"periods/{month}/close/", {}, "", who="fin")
        if status == 200:
            self._ledger.note("close", "fin", month=month)
        return status == 200 or (status == 409 and (answer or {}).get("code") == "period_closed")

    def clear_devices(self) -> None:
        """Let devices that rest after a failed start take work again, as an operator would who knows why."""
        found = self._one("SELECT uuid FROM fleet_device WHERE health <> 'ok' AND %s <> '' LIMIT 1", "any")
        if found:
            self.as_operator(f"devices/{found}/clear-health/")

    def as_operator(self, path: str) -> int:
        """Let the root team's admin and operator end something; returns the answer's status."""
        for who in ("olga", "rhea"):
            status, _answer = self._call("POST", path, {}, "", who=who)
            if status in (200, 409):
                return status
        return status

    def _call(
        self, method: str, path: str, body: dict[str, Any], key: str, who: str = "pia"
    ) -> tuple[int, Any]:
        parts = urlsplit(self._stack.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_S)
        headers = {
            "Authorization": f"Bearer {self._stack.world['tokens'][who]}",
            "Content-Type": "application/json",
        } | ({"Idempotency-Key": key} if key else {})
        try:
            connection.request(method, f"/api/v1/{path}", json.dumps(body), headers)
            answer = connection.getresponse()
            found = json.loads(answer.read() or b"{}")
            self._ledger.answer(answer.status, f"{method} {path}", found)
            return answer.status, found
        except (OSError, http.client.HTTPException, ValueError):
            self._ledger.answer(0, f"{method} {path}", None)
            return 0, None
        finally:
            connection.close()

    def let_go(self) -> None:
        if self._session is not None:
            self._session.close()
