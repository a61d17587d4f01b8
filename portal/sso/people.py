"""What a provider or a directory says of somebody, and how its texts are made harmless."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.core.validators import validate_email

MOST_GROUPS: Final = 5000


@dataclass(frozen=True, slots=True)
class Person:
    """What a provider says of somebody. ``groups`` is None where it said nothing of them: that is not "none"."""

    subject: str
    username: str = ""
    name: str = ""
    email: str = ""
    groups: frozenset[str] | None = None


def plain_text(value: Any, *, most: int = 254) -> str:
    """Return a text on one line without what cannot be printed, "" for what is no text."""
    return (
        " ".join("".join(c for c in value if c.isprintable()).split())[:most]
        if isinstance(value, str)
        else ""
    )


def plain_mail(text: str) -> str:
    """Return a mail address, "" for what is none."""
    try:
        validate_email(text)
    except ValidationError:
        return ""
    return text
