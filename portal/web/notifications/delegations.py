"""Notifications about deputies as sentences, and who decided in the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.utils.translation import gettext as _

from portal.common.moments import moment_of

Facts = dict[str, Any]


def decider(f: Facts) -> str:
    """Return who decided, and in whose place where that was a deputy."""
    who = str(f.get("by", "?"))
    return (
        _("%(who)s for %(whom)s") % {"who": who, "whom": f["on_behalf_of"]} if f.get("on_behalf_of") else who
    )


def _sides(f: Facts) -> dict[str, str]:
    return {name: str(f.get(name, "?")) for name in ("deputy", "delegator", "by", "reason")}


def _begun(f: Facts) -> str:
    return _("%(deputy)s decides on requests for %(delegator)s until %(at)s: %(reason)s") % {
        **_sides(f),
        "at": moment_of(f.get("ends_at")) or "?",
    }


def _ended(f: Facts) -> str:
    if "by" in f:
        return _("%(by)s ended it: %(deputy)s does not decide for %(delegator)s any more.") % _sides(f)
    return _("%(deputy)s does not decide for %(delegator)s any more.") % _sides(f)


DELEGATION_KINDS: Final[dict[str, tuple[str, str, Callable[[Facts], str]]]] = {
    "delegation.begun": ("users", "info", _begun),
    "delegation.ended": ("users", "info", _ended),
}
