"""One JSON object per log line, with the ids of what it is about: request, node, lease and others."""

from __future__ import annotations

import contextlib
import contextvars
import json
import logging
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_about: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar("about", default=NOTHING)
# Public names as portal.common.ids makes them, and the field that each becomes.
NAMED: Final = re.compile(r"\b(lse|req|job|inv)-[0-9a-hjkmnp-tv-z]{16}\b")
FIELDS: Final = {"lse": "lease", "req": "lease_request", "job": "job", "inv": "invoice"}


def note_ids(**ids: str) -> None:
    """Name what the lines of this request, socket or task from here on are about, such as ``node="gpu-01"``."""
    _about.set({**_about.get(), **ids})


@contextlib.contextmanager
def about(**ids: str) -> Iterator[None]:
    """Name what the lines inside the block are about."""
    token = _about.set({**_about.get(), **ids})
    try:
        yield
    finally:
        _about.reset(token)


def ids_in(words: Any) -> dict[str, str]:
    """Return the first public name of each kind in a text, by field."""
    found: dict[str, str] = {}
    for name in NAMED.finditer(str(words)):
        found.setdefault(FIELDS[name[1]], name[0])
    return found


class JsonFormatter(logging.Formatter):
    """Format a record as one JSON line that machines and people can read."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line: time, level, logger, text, ids where there are some, traceback when there is one."""
        text = record.getMessage()
        fields = {
            "at": datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": text,
        }
        if request_id.get():
            fields["request_id"] = request_id.get()
        fields |= {**ids_in(text), **_about.get()}
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)
