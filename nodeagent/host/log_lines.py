"""Log lines for programs: one JSON object each, with the node, and with the leases and jobs that a line names."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Final

LOG_FORMATS: Final = ("text", "json")
NAMED: Final = re.compile(r"\b(lse|job)-[0-9a-z]{16}\b")
FIELDS: Final = {"lse": "lease", "job": "job"}


class JsonLines(logging.Formatter):
    """Formats a record as one line."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level, logger, text, node, the first lease and job named, and a traceback if there is one."""
        text = record.getMessage()
        line = {
            "at": datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": text,
            "node": self._node,
        }
        for found in NAMED.finditer(text):
            line.setdefault(FIELDS[found[1]], found[0])
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
