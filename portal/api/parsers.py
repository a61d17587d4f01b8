from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import IO, Any

from rest_framework.parsers import JSONParser

from portal.api.errors import BodyTooLarge, MalformedBody

MAX_DEPTH = 32
MAX_BYTES = 1024 * 1024
MAX_DIGITS = 19
_UNCLEAN = re.compile("[\x00\ud800-\udfff]")


class StrictJSONParser(JSONParser):
    """JSON without surprises: no duplicate keys, no NaN, no NUL, bounded size and depth."""

    most_bytes = MAX_BYTES

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the decoded body, or raise MalformedBody or BodyTooLarge saying what is wrong with it."""
        raw = stream.read(self.most_bytes + 1)
        if len(raw) > self.most_bytes:
            raise BodyTooLarge
        return decode(raw)


class FileParser(StrictJSONParser):
    """The same for a body that holds a file which finance imports."""

    most_bytes = 3 * MAX_BYTES


def decode(raw: bytes) -> Any:
    """Return the value of a JSON text in UTF-8, or raise MalformedBody."""
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_int=_bounded,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise MalformedBody(f"The body is not JSON that can be used: {why}.") from error
    _check(value, 1)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _bounded(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("a number has too many digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")) or len(digits) > 64:
        raise ValueError("a number is out of range")
    return value


def _check(value: Any, depth: int) -> None:
    if isinstance(value, str):
        if _UNCLEAN.search(value):
            raise MalformedBody("A text holds a NUL or a broken character.")
    elif isinstance(value, (dict, list)):
        if depth > MAX_DEPTH:
            raise MalformedBody(f"The body is nested deeper than {MAX_DEPTH} levels.")
        for item in value:
            _check(item, depth + 1)
            if isinstance(value, dict):
                _check(value[item], depth + 1)
