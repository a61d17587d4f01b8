from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

MAX_DEPTH = 32
MAX_BYTES = 1024 * 1024


class StrictJSONParser(JSONParser):
    """JSON without surprises: no duplicate keys, no NaN, no NUL, bounded size and depth."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the decoded body, or raise ParseError saying what is wrong with it."""
        raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ParseError("The body is larger than 1 MiB.")
        try:
            text = raw.decode("utf-8")
            _check_depth(text)
            value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_bounded)
        except (ValueError, RecursionError) as error:
            raise ParseError(f"The body is not JSON that can be used: {error}") from error
        _check_text(value)
        return value


def _check_depth(text: str) -> None:
    depth = 0
    for char in text:
        if char in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"nested deeper than {MAX_DEPTH}")
        elif char in "]}":
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _bounded(digits: str) -> int:
    if len(digits) > 19:
        raise ValueError("a number has too many digits")
    return int(digits)


def _check_text(value: Any) -> None:
    if isinstance(value, str):
        if "\x00" in value or any("\ud800" <= c <= "\udfff" for c in value):
            raise ParseError("A text holds a NUL or a broken character.")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(key)
            _check_text(item)
    elif isinstance(value, list):
        for item in value:
            _check_text(item)
