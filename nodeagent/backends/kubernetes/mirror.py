"""A copy of one kind of object, kept by list and watch.

A watch that breaks off goes on from the last version known. After 410, an ERROR event or ten minutes everything is
listed anew, and what is not in the list was deleted meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from nodeagent.backends.base import BackendAwayError, BackendRefusedError
from nodeagent.backends.kubernetes.client import ExpiredError, KubernetesClient, NotThereError, WatchStop
from nodeagent.backends.kubernetes.quantities import dig, listed

log = logging.getLogger(__name__)

Name = tuple[str, str]  # namespace and name
PAGE: Final = "500"
WATCH_S: Final = "300"
RELIST_S: Final = 600.0
SYNCED_WITHIN_S: Final = 20.0
REST_MOST_S: Final = 10.0
BRIEF_S: Final = 0.2
MOST_ENDED: Final = 5_000


class Mirror:
    """``kept`` makes of an object what is worth keeping. ``ended`` are the last words of those that were deleted."""

    def __init__(
        self, client: KubernetesClient, path: str, *, selector: str = "", fields: str = "",
        kept: Callable[[dict[str, Any]], dict[str, Any]] = lambda one: one,
    ) -> None:  # fmt: skip
        self.path = path
        self.ended: dict[Name, dict[str, Any]] = {}
        self.version = 0
        self.relists = 0
        self._client, self._kept = client, kept
        self._query = {"labelSelector": selector} if selector else {}
        self._query |= {"fieldSelector": fields} if fields else {}
        self._objects: dict[Name, dict[str, Any]] = {}
        self._error = ""
        self._is_synced = False
        self._begun = self._failed = 0  # tries to list everything
        self._news = threading.Condition()
        self._hurry = threading.Event()
        self._stop = WatchStop()
        self._thread: threading.Thread | None = None

    def objects(self) -> dict[Name, dict[str, Any]]:
        """Return all objects as they are known; the caller changes nothing in them.

        Raises BackendAwayError while they cannot be known, after one more try.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"watch {self.path}", daemon=True)
            self._thread.start()
        with self._news:
            if not self._is_synced:
                fresh = self._begun + 1  # one that is under way may have begun before the server was back
                self._hurry.set()
                self._news.wait_for(lambda: self._is_synced or self._failed >= fresh, SYNCED_WITHIN_S)
            if not self._is_synced:
                raise BackendAwayError(
                    self._error or f"{self.path} could not be listed in {SYNCED_WITHIN_S:g} s"
                )
            return dict(self._objects)

    def put(self, one: dict[str, Any]) -> None:
        """Take in what the server just answered to a change, so that it is known before the watch brings it."""
        with self._news:
            known = self._objects.get(_name(one))
            if known is None or _version(known) < _version(one):
                self._objects[_name(one)] = self._kept(one)

    def wait_for(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something holds of this copy; says whether it does."""
        with self._news:
            return self._news.wait_for(is_so, timeout_s)

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._hurry.set()

    def _run(self) -> None:
        rest_s = 0.25
        while not self._stop.is_set:
            try:
                self._list()
                rest_s = 0.25
                self._follow()
            except ExpiredError:
                continue
            except (BackendAwayError, BackendRefusedError, NotThereError) as no:
                self._tell(str(no))
                self._hurry.wait(rest_s)
                self._hurry.clear()
                rest_s = min(rest_s * 2, REST_MOST_S)
            except Exception as no:
                log.exception("watching %s failed", self.path)
                self._tell(f"{type(no).__name__}: {no}")
                self._hurry.wait(REST_MOST_S)
                self._hurry.clear()

    def _list(self) -> None:
        """List everything. What was put meanwhile is newer than the list and stays."""
        with self._news:
            self._begun += 1
        found: dict[Name, dict[str, Any]] = {}
        query, version = {**self._query, "limit": PAGE}, 0
        while True:
            answer = self._client.get(self.path, **query)
            found |= {_name(one): self._kept(one) for one in listed(answer, "items")}
            version = version or _number(dig(answer, "metadata", "resourceVersion"))
            query["continue"] = str(dig(answer, "metadata", "continue", otherwise=""))
            if not query["continue"]:
                break
        with self._news:
            for name, one in self._objects.items():
                if name not in found and _version(one) > version:
                    found[name] = one
                elif name not in found:
                    self._end(name, one)
            self._objects, self.version, self._is_synced = found, version, True
            self.relists += 1
            self._news.notify_all()

    def _follow(self) -> None:
        """Watch from the version known, again and again, until it is time to list anew."""
        until = time.monotonic() + RELIST_S
        while time.monotonic() < until and not self._stop.is_set:
            query = {**self._query, "resourceVersion": str(self.version), "timeoutSeconds": WATCH_S}
            began = time.monotonic()
            for event in self._client.watch(self.path, self._stop, **query):
                self._take(str(event.get("type")), event.get("object"))
                if time.monotonic() >= until:
                    break
            if time.monotonic() - began < BRIEF_S:
                self._hurry.wait(
                    BRIEF_S
                )  # a server that ends each watch at once is not asked without a pause
                self._hurry.clear()

    def _take(self, kind: str, one: object) -> None:
        if kind == "ERROR" or not isinstance(one, dict):
            raise ExpiredError(str(dig(one, "message", otherwise="the watch ended with an error")))
        with self._news:
            if kind == "DELETED":
                self._objects.pop(_name(one), None)
                self._end(_name(one), self._kept(one))
            elif kind in ("ADDED", "MODIFIED"):
                self._objects[_name(one)] = self._kept(one)
            self.version = max(self.version, _version(one))
            self._news.notify_all()

    def _end(self, name: Name, one: dict[str, Any]) -> None:
        self.ended.pop(name, None)
        self.ended[name] = one
        while len(self.ended) > MOST_ENDED:
            self.ended.pop(next(iter(self.ended)))

    def _tell(self, error: str) -> None:
        with self._news:
            self._error, self._is_synced, self._failed = error, False, self._begun
            self._news.notify_all()


def _name(one: dict[str, Any]) -> Name:
    return str(dig(one, "metadata", "namespace", otherwise="")), str(
        dig(one, "metadata", "name", otherwise="")
    )


def _version(one: dict[str, Any]) -> int:
    return _number(dig(one, "metadata", "resourceVersion"))


def _number(text: object) -> int:
    return int(str(text)) if str(text).isdecimal() else 0
