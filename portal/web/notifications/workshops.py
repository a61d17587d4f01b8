"""Notifications about workshops as sentences."""

from __future__ import annotations

from typing import Final

from django.utils.translation import gettext as _

from portal.web.notifications.kinds import Facts, Wording, decider, moment_at


def _said(sentence: str, f: Facts) -> str:
    facts = {name: f.get(name, "?") for name in ("name", "by", "note", "seats", "came", "missing")}
    return sentence % {**facts, "by": decider(f), "at": moment_at(f, "starts_at")}


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


WORKSHOP_KINDS: Final[dict[str, Wording]] = {
    "workshop.awaits_approval": Wording("checkbox", "info", _awaits),
    "workshop.approved": Wording("circle-check", "good", _approved),
    "workshop.rejected": Wording("circle-x", "bad", _rejected),
    "workshop.lapsed": Wording("clock", "warn", _lapsed),
    "workshop.seat": Wording("calendar", "info", _seat),
    "workshop.removed": Wording("arrow-back-up", "info", _removed),
    "workshop.cancelled": Wording("x", "warn", _cancelled),
    "workshop.settled": Wording("users", "info", _settled),
}
