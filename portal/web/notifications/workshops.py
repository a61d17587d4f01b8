"""Notifications about workshops as sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.utils.translation import gettext as _

from portal.common.moments import moment_of
from portal.web.notifications.delegations import decider

Facts = dict[str, Any]


def _said(sentence: str, f: Facts) -> str:
    facts = {name: f.get(name, "?") for name in ("name", "by", "note", "seats", "came", "missing")}
    return sentence % {**facts, "by": decider(f), "at": moment_of(f.get("starts_at")) or "?"}


def _awaits(f: Facts) -> str:
    return _said(_("%(by)s asks for slices for %(seats)s people: %(name)s."), f)


def _approved(f: Facts) -> str:
    return _said(_("%(by)s approved your workshop %(name)s; its slices are being booked."), f)


def _rejected(f: Facts) -> str:
    return _said(_("%(by)s rejected your workshop %(name)s: %(note)s"), f)


def _lapsed(f: Facts) -> str:
    return _said(_("Nobody decided on your workshop %(name)s in time; nothing was booked."), f)


def _seat(f: Facts) -> str:
    return _said(_("You have a seat in %(name)s at %(at)s. Sign in then and your slice starts."), f)


def _removed(f: Facts) -> str:
    return _said(_("You have no seat in %(name)s any more."), f)


def _cancelled(f: Facts) -> str:
    return _said(_("%(by)s cancelled %(name)s; your slice was given up."), f)


def _settled(f: Facts) -> str:
    return _said(_("%(name)s: %(came)s came, %(missing)s did not; their slices were given back."), f)


WORKSHOP_KINDS: Final[dict[str, tuple[str, str, Callable[[Facts], str]]]] = {
    "workshop.awaits_approval": ("checkbox", "info", _awaits),
    "workshop.approved": ("circle-check", "good", _approved),
    "workshop.rejected": ("circle-x", "bad", _rejected),
    "workshop.lapsed": ("clock", "warn", _lapsed),
    "workshop.seat": ("calendar", "info", _seat),
    "workshop.removed": ("arrow-back-up", "info", _removed),
    "workshop.cancelled": ("x", "warn", _cancelled),
    "workshop.settled": ("users", "info", _settled),
}
