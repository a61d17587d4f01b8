"""Requests to a Kubernetes API server: JSON in and out, what its refusals mean, and streams of a watch.

By the standard library alone (docs/adr/0050-a-kubernetes-api-by-hand.md).
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlencode

from nodeagent.backends.base import BackendAwayError, BackendRefusedError
from nodeagent.backends.kubernetes.kubeconfig import KubeconfigError, Login

ANSWER_WITHIN_S: Final = 15.0
# The server sends a bookmark about every minute; a stream that is silent for longer is opened anew.
SILENT_S: Final = 75.0
IDLE_S: Final = 20.0
MOST_BYTES: Final = 256 * 1024 * 1024
MOST_LINE: Final = 8 * 1024 * 1024
MERGE: Final = "application/merge-patch+json"


class NotThereError(Exception):
    """There is no such object (404)."""


class NameTakenError(Exception):
    """The name is taken, or the object changed meanwhile (409); the message is the server's."""


class ExpiredError(Exception):
    """The version that a list or watch began from is too old (410): list anew."""


class KubernetesClient:
    """One per agent, for any thread; each thread has a connection of its own."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self._own = threading.local()
        self._token = ""

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return an object or a list. Raises NotThereError, ExpiredError and those of a back end."""
        return self.call("GET", path, query=query)[0]

    def create(self, path: str, manifest: dict[str, Any]) -> dict[str, Any]:
        """Create an object and return it as it is kept; unknown fields are refused. Raises NameTakenError too."""
        return self.call("POST", path, manifest, query={"fieldValidation": "Strict"})[0]

    def patch(self, path: str, change: dict[str, Any]) -> dict[str, Any]:
        """Merge a change into an object."""
        return self.call("PATCH", path, change, query={"fieldValidation": "Strict"})[0]

    def delete(self, path: str, *, grace_s: int | None = None) -> None:
        """Delete an object, what it owns afterwards; one that is not there is success."""
        words: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
        }
        if grace_s is not None:
            words["gracePeriodSeconds"] = grace_s
        try:
            self.call("DELETE", path, words)
        except NotThereError:
            return

    def call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        query: dict[str, str] | None = None,
    ) -> tuple[dict[str, Any], http.client.HTTPMessage]:
        """Return the answer and its headers. Only reading is tried twice: the answer to a change may have been lost."""
        for again in (method == "GET", False):
            is_fresh, connection = self._connection()
            try:
                self._send(connection, method, path, body, query)
                response = connection.getresponse()
                text = response.read(MOST_BYTES + 1)
            except (OSError, http.client.HTTPException) as no:
                self._drop()
                if again and not is_fresh:
                    continue  # the server had closed a connection that was idle
                raise BackendAwayError(
                    f"{self.login.host} does not answer {method} {path}: {_why(no)}"
                ) from no
            self._own.used_at = time.monotonic()
            if response.status == 401 and self._renewed():
                continue
            return _read(method, path, response.status, text), response.headers
        raise BackendAwayError(
            "the API server refuses the agent's token (401): renew it (docs/kubernetes.md)"
        )

    def watch(self, path: str, stop: WatchStop, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a watch until the server ends it, or ``stop`` does. Raises as ``get``.

        A stream that breaks off just ends: what its last line was to say comes again from the version known.
        """
        connection = self._opened(SILENT_S)
        stop.connection = connection
        try:
            self._send(
                connection, "GET", path, None, {"watch": "true", "allowWatchBookmarks": "true", **query}
            )
            response = connection.getresponse()
            if response.status != 200:
                _read("GET", path, response.status, response.read(MOST_LINE))
            while not stop.is_set:
                line = response.readline(MOST_LINE)
                if not line.endswith(b"\n"):
                    return
                event = json.loads(line)
                if isinstance(event, dict):
                    yield event
        except TimeoutError:
            return
        except (OSError, http.client.HTTPException, ValueError) as no:
            if stop.is_set:
                return
            raise BackendAwayError(f"{self.login.host} broke off a watch of {path}: {_why(no)}") from no
        finally:
            stop.connection = None
            connection.close()

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: dict[str, Any] | None,
        query: dict[str, str] | None,
    ) -> None:  # fmt: skip
        target = self.login.path + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "User-Agent": "berth-agent"}
        try:
            self._token = self.login.bearer()
        except KubeconfigError as no:
            raise BackendAwayError(str(no)) from no
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = MERGE if method == "PATCH" else "application/json"
        connection.request(method, target, None if body is None else json.dumps(body), headers)

    def _renewed(self) -> bool:
        """Say whether the token is another one by now than that which was refused."""
        try:
            return self.login.bearer() != self._token
        except KubeconfigError:
            return False

    def _connection(self) -> tuple[bool, http.client.HTTPConnection]:
        """Return this thread's connection, and whether it is new."""
        known: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if known is not None and time.monotonic() - self._own.used_at < IDLE_S:
            return False, known
        self._drop()
        self._own.connection, self._own.used_at = self._opened(ANSWER_WITHIN_S), time.monotonic()
        return True, self._own.connection

    def _drop(self) -> None:
        known: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if known is not None:
            known.close()
        self._own.connection = None

    def _opened(self, timeout_s: float) -> http.client.HTTPConnection:
        login = self.login
        if login.tls is None:
            return http.client.HTTPConnection(login.host, login.port, timeout=timeout_s)
        return http.client.HTTPSConnection(login.host, login.port, timeout=timeout_s, context=login.tls)


class WatchStop:
    """Ends a watch from another thread."""

    def __init__(self) -> None:
        self.is_set = False
        self.connection: http.client.HTTPConnection | None = None

    def set(self) -> None:
        """End it now, also where it waits for the server."""
        self.is_set = True
        connection = self.connection
        sock = None if connection is None else connection.sock
        if sock is not None:
            try:
                sock.shutdown(2)
            except OSError:
                return


def _read(method: str, path: str, status: int, text: bytes) -> dict[str, Any]:
    """Return what an answer says, or raise what its refusal means."""
    if len(text) > MOST_BYTES:
        raise BackendAwayError(f"{method} {path} answers with more than {MOST_BYTES} bytes")
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    said = str(told.get("message", "")) if isinstance(told, dict) else text[:200].decode("utf-8", "replace")
    if 200 <= status < 300 and isinstance(told, dict):
        return told
    raise refusal(method, path, status, " ".join(said.split())[:1000])


# What a server says with 403, by words in it; the last is whether it may pass.
_FORBIDDEN: Final = (
    ("exceeded quota", "over_limit", True),
    ("error looking up service account", "cluster_refused", True),  # a namespace made a moment ago
    ("being terminated", "cluster_refused", True),
)


def refusal(method: str, path: str, status: int, said: str) -> Exception:
    """Return what a refused request means."""
    if status == 404:
        return NotThereError(said or path)
    if status == 409:
        return NameTakenError(said)
    if status == 410:
        return ExpiredError(said)
    if status == 401:
        return BackendAwayError(
            f"the API server refuses the agent's login (401), its token ran out or was withdrawn: {said}"
        )
    if status == 403:
        for words, code, is_passing in _FORBIDDEN:
            if words in said:
                return BackendRefusedError(code, said, is_passing=is_passing)
        return BackendRefusedError("not_allowed", said or f"{method} {path} is forbidden")
    if 400 <= status < 500 and status not in (408, 429):
        if re.search(r"admission webhook .* denied|denied the request", said):
            return BackendRefusedError("not_allowed", said)
        return BackendRefusedError("cluster_refused", said)
    return BackendAwayError(f"{method} {path} answers {status}: {said or 'nothing that can be read'}")


def _why(no: Exception) -> str:
    return str(no) or type(no).__name__
