"""What the sentences of notifications share: figures, who decided, moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from django.utils.translation import gettext as _

from portal.common.moments import moment_of

Facts = dict[str, Any]


class Wording(NamedTuple):
    """How one kind of notification looks, and what writes its sentence from its figures."""

    icon: str
    tone: str
    write: Callable[[Facts], str]


def moment_at(f: Facts, name: str) -> str:
    """Return an instant among the figures as people read it; "?" where there is none."""
    return moment_of(f.get(name)) or "?"


def decider(f: Facts) -> str:
    """Return who decided, and in whose place where that was a deputy."""
    who = str(f.get("by", "?"))
    return (
        _("%(who)s for %(whom)s") % {"who": who, "whom": f["on_behalf_of"]} if f.get("on_behalf_of") else who
    )
