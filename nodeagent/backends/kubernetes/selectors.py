"""What of CEL the selectors of device classes use in practice, evaluated here so that a pool can be counted.

The scheduler evaluates them itself; this only has to agree where it answers, and says so where it cannot. Read against
the documentation of DeviceClass selectors (kubernetes.io, resource.k8s.io/v1): a missing attribute is an error, and
``false && error`` is false.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from nodeagent.backends.kubernetes.quantities import quantity

_TEXT: Final = r"(?:'([^'\\]*)'|\"([^\"\\]*)\")"
_FIELD: Final = rf"device\.(attributes|capacity)\[{_TEXT}\](?:\.([A-Za-z_]\w*)|\[{_TEXT}\])"
_DRIVER: Final = re.compile(rf"device\.driver\s*==\s*{_TEXT}")
_IN: Final = re.compile(rf"{_TEXT}\s+in\s+device\.(attributes|capacity)\[{_TEXT}\]")
_EQUALS: Final = re.compile(rf"{_FIELD}\s*(==|!=)\s*(?:{_TEXT}|(true|false)|(-?[0-9]+))")
_WORDS: Final = re.compile(rf"{_FIELD}(\.lowerAscii\(\))?\.(contains|startsWith|endsWith)\({_TEXT}\)")
_COMPARED: Final = re.compile(rf"{_FIELD}\.compareTo\(quantity\({_TEXT}\)\)\s*(>=|<=|==|>|<)\s*0")


class UnreadableSelectorError(Exception):
    """A selector uses more of CEL than is evaluated here; the message is the part that is not understood."""


class MissingAttributeError(Exception):
    """A device lacks what the selector reads, which stops the scheduler for claims of this selector."""


@dataclass(frozen=True, slots=True)
class SelectedDevice:
    """What a selector sees of a device: its driver, and attributes and capacity by domain and name."""

    driver: str
    fields: Mapping[tuple[str, str, str], Any]

    @classmethod
    def of(cls, driver: str, device: Mapping[str, Any]) -> SelectedDevice:
        """Return the view of a device of a ResourceSlice; names without a domain are of the driver's own."""
        fields: dict[tuple[str, str, str], Any] = {}
        for kind in ("attributes", "capacity"):
            told = device.get(kind)
            for name, value in told.items() if isinstance(told, dict) else ():
                domain, slash, short = str(name).rpartition("/")
                plain = next(iter(value.values()), None) if isinstance(value, dict) else value
                plain = value.get("value", plain) if kind == "capacity" and isinstance(value, dict) else plain
                fields[kind, domain if slash else driver, short] = plain
        return cls(driver, fields)


def matches(expression: str, device: SelectedDevice) -> bool:
    """Say whether a device meets a selector. Raises UnreadableSelectorError, MissingAttributeError."""
    missing: MissingAttributeError | None = None
    for part in _conjuncts(expression) if expression else ():
        try:
            if not _holds(part, device):
                return False
        except MissingAttributeError as no:
            missing = no
    if missing is not None:
        raise missing
    return True


def _conjuncts(expression: str) -> list[str]:
    """Return the parts that ``&&`` joins, without brackets around them."""
    parts, depth, quote, begins = [], 0, "", 0
    text = " ".join(expression.split())
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif not depth and text.startswith("&&", at):
            parts.append(text[begins:at])
            begins = at + 2
    parts.append(text[begins:])
    found: list[str] = []
    for part in (one.strip() for one in parts):
        is_wrapped = part.startswith("(") and part.endswith(")")
        found += _conjuncts(part[1:-1]) if is_wrapped else [part]
    return found


def _holds(part: str, device: SelectedDevice) -> bool:
    if found := _DRIVER.fullmatch(part):
        return device.driver == _said(found, 1)
    if found := _IN.fullmatch(part):
        return (found[3], _said(found, 4), _said(found, 1)) in device.fields
    if found := _EQUALS.fullmatch(part):
        value = _value(found, device)
        wanted: Any = _said(found, 8)
        if found[10]:
            wanted = found[10] == "true"
        elif found[11]:
            wanted = int(found[11])
        return bool((value == wanted) == (found[7] == "=="))
    if found := _WORDS.fullmatch(part):
        text = str(_value(found, device))
        text = text.lower() if found[7] else text
        test = {"contains": text.__contains__, "startsWith": text.startswith, "endsWith": text.endswith}
        return bool(test[found[8]](_said(found, 9)))
    if found := _COMPARED.fullmatch(part):
        has, wants = quantity(_value(found, device)), quantity(_said(found, 7))
        if has is not None and wants is not None:
            return _compared(has - wants, found[9])
    raise UnreadableSelectorError(part)


def _value(found: re.Match[str], device: SelectedDevice) -> Any:
    """Return the attribute or capacity that groups 1 to 6 of a match name; raises MissingAttributeError."""
    name = found[4] or _said(found, 5)
    key = found[1], _said(found, 2), name
    if key not in device.fields:
        raise MissingAttributeError(f"{key[1]}/{name}")
    return device.fields[key]


def _said(found: re.Match[str], group: int) -> str:
    """Return a text in either kind of quotes, which are two groups."""
    return found[group] if found[group] is not None else (found[group + 1] or "")


def _compared(difference: Decimal, sign: str) -> bool:
    return {
        ">=": difference >= 0, ">": difference > 0, "==": difference == 0, "<=": difference <= 0, "<": difference < 0,
    }[sign]  # fmt: skip
