"""Notifications about roles, deputies and being seen as, as sentences."""

from __future__ import annotations

from typing import Final

from django.utils.translation import gettext as _

from portal.teams.models import Role
from portal.web.notifications.kinds import Facts, Wording, moment_at


def _role_ends_soon(f: Facts) -> str:
    facts = {**_role_facts(f), "at": moment_at(f, "ends_at")}
    return (
        _("Your role in %(team)s (%(role)s) ends at %(at)s. Ask an admin of the team if you need it longer.")
        % facts
    )


def _role_ended(f: Facts) -> str:
    return _("Your role in %(team)s (%(role)s) has ended.") % _role_facts(f)


def _seen_as(f: Facts) -> str:
    return _(
        "%(who)s, an operator, saw the portal as you from %(begin)s to %(end)s and changed nothing: %(reason)s"
    ) % {
        "who": f.get("by", "?"),
        "begin": moment_at(f, "began_at"),
        "end": moment_at(f, "ended_at"),
        "reason": f.get("reason", "?"),
    }


def _role_facts(f: Facts) -> dict[str, str]:
    role = str(f.get("role", ""))
    return {
        "team": str(f.get("team_name", "")),
        "role": str(Role(role).label) if role in Role.values else role,
    }


def _sides(f: Facts) -> dict[str, str]:
    return {name: str(f.get(name, "?")) for name in ("deputy", "delegator", "by", "reason")}


def _begun(f: Facts) -> str:
    return _("%(deputy)s decides on requests for %(delegator)s until %(at)s: %(reason)s") % {
        **_sides(f),
        "at": moment_at(f, "ends_at"),
    }


def _ended(f: Facts) -> str:
    if "by" in f:
        return _("%(by)s ended it: %(deputy)s does not decide for %(delegator)s any more.") % _sides(f)
    return _("%(deputy)s does not decide for %(delegator)s any more.") % _sides(f)


PEOPLE_KINDS: Final[dict[str, Wording]] = {
    "role.ends_soon": Wording("hourglass", "warn", _role_ends_soon),
    "account.seen_as": Wording("users", "info", _seen_as),
    "role.ended": Wording("users", "info", _role_ended),
    "delegation.begun": Wording("users", "info", _begun),
    "delegation.ended": Wording("users", "info", _ended),
}
