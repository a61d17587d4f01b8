"""Large downloads: as slow as those who read them, in threads of their own, few at once, no connection held."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any, Final
from weakref import WeakSet

from django.db import connection
from django.http import StreamingHttpResponse
from django.utils.translation import gettext as _

from portal.common.errors import TooManyDownloads

THREADS: Final = 32
# Some threads are left to say so at once.
MOST_AT_ONCE: Final = 28
MOST_EACH: Final = 4
_PATH = re.compile(r"/jobs/[^/]+/(?:log/raw|artifacts/[0-9]+)/?\Z")
_open: WeakSet[Download] = WeakSet()
_lock = threading.Lock()


def is_download(path: str) -> bool:
    """Say whether what an address answers may be large."""
    return _PATH.search(path) is not None


class Download(StreamingHttpResponse):
    """An answer that lasts as long as its reader takes, and counts as one of a person's until it is closed.

    Raises TooManyDownloads where this process serves that person, or everybody, as many as it does at once.
    """

    def __init__(self, pieces: Iterator[bytes], *, person_id: int, content_type: str) -> None:
        super().__init__(_unconnected(pieces), content_type=content_type)
        self.person_id = person_id
        with _lock:
            theirs = sum(one.person_id == person_id for one in _open)
            if theirs >= MOST_EACH:
                raise TooManyDownloads(
                    _("%(n)d downloads of yours are running, the most at once.") % {"n": theirs}
                )
            if len(_open) >= MOST_AT_ONCE:
                raise TooManyDownloads(_("Too many people download at the moment."))
            _open.add(self)
        self["X-Content-Type-Options"] = "nosniff"

    def close(self) -> None:
        """End it, whether all of it was read or not."""
        with _lock:
            _open.discard(self)
        super().close()


def _unconnected(pieces: Iterator[bytes]) -> Iterator[Any]:
    """Give the database connection back before each piece is waited for: there are fewer than readers."""
    for piece in pieces:
        if not connection.in_atomic_block:
            connection.close()
        yield piece
