"""One JSON object per log line, with the request id where there is one."""

from __future__ import annotations

import contextvars
import json
import logging
from datetime import UTC, datetime

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")


class JsonFormatter(logging.Formatter):
    """Format a record as one JSON line that machines and people can read."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line: time, level, logger, text, request id, traceback when there is one."""
        fields = {
            "at": datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        if request_id.get():
            fields["request_id"] = request_id.get()
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)
