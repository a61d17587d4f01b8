"""When it is worth asking for more of a job: the live socket says so, as it does to the job's page."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any, Final

# Asked so often while the socket tells: only in case a message was lost.
TOLD_S: Final = 15.0
FIRST_S, SLOWEST_S = 0.2, 2.0
AGAIN_S: Final = 15.0
OPEN_S: Final = 5.0


class JobNews:
    """News of one job. Without a socket, as behind a proxy that lets none through, they are pauses that grow."""

    def __init__(self, url: str, token: str, job: str) -> None:
        self._url, self._token, self._job = url, token, job
        self._socket: Any = None
        self._opened = contextlib.ExitStack()
        self._pause, self._next_try = FIRST_S, 0.0

    def __enter__(self) -> JobNews:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._leave()

    def came(self) -> None:
        """Take down that the last look was worth it."""
        self._pause = FIRST_S

    def wait(self) -> None:
        """Return when it is worth looking again.

        At once when the socket has just been opened: what came before that, it does not tell.
        """
        if self._socket is None and time.monotonic() >= self._next_try and self._open():
            return
        if self._socket is not None and self._hears():
            return
        time.sleep(self._pause)
        self._pause = min(SLOWEST_S, self._pause * 1.2)

    def _open(self) -> bool:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        self._next_try = time.monotonic() + AGAIN_S
        address = f"ws{self._url.removeprefix('http')}/ws/live/"
        topics = [f"job:{self._job}", "me"]
        try:
            made = connect(
                address,
                additional_headers={"Authorization": f"Bearer {self._token}"},
                compression=None,
                open_timeout=OPEN_S,
                close_timeout=1,
            )
            self._socket = self._opened.enter_context(made)
            self._socket.send(json.dumps({"op": "subscribe", "topics": topics}))
            end, missing = time.monotonic() + OPEN_S, set(topics)
            while missing:
                word = json.loads(self._socket.recv(timeout=max(0.0, end - time.monotonic())))
                if word["type"] == "error":
                    raise ValueError(word["code"])
                if word["type"] == "snapshot":
                    missing.discard(word["topic"])
        except (OSError, WebSocketException, ValueError, KeyError):  # a timeout is an OSError
            self._leave()
            return False
        return True

    def _hears(self) -> bool:
        """Wait for a word about the job, or for the longest time; False where the socket tells nothing any more."""
        from websockets.exceptions import WebSocketException

        end = time.monotonic() + TOLD_S
        is_told = False
        try:
            while True:
                # What came meanwhile is one piece of news.
                word = json.loads(
                    self._socket.recv(timeout=0.0 if is_told else max(0.0, end - time.monotonic()))
                )
                if word["type"] == "error":
                    raise ValueError(word["code"])
                is_told = is_told or self._job in (word.get("job"), str(word["topic"]).removeprefix("job:"))
        except TimeoutError:
            return True
        except (OSError, WebSocketException, ValueError, KeyError):
            self._leave()
            return is_told

    def _leave(self) -> None:
        self._socket = None
        with contextlib.suppress(Exception):  # whatever it was, it is over
            self._opened.close()
