"""Who comes to a workshop: the people of a pasted list, found among the accounts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q
from django.db.models.functions import Lower
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.accounts.selectors import entering
from portal.common.errors import Invalid
from portal.teams.models import Membership, Role, Team
from portal.teams.selectors import Rights
from portal.teams.services import roles_to_give

MOST_SEATS = 200
LONGEST_LIST = 20_000
# Lists are pasted from tables and address books: "Ada Lovelace <ada@example.org>; bob@example.org".
_SEPARATORS = re.compile(r"[\n\r;,\t]+")
_IN_BRACKETS = re.compile(r"<([^<>]*)>\s*$")
ASKS = (Role.RESEARCHER, Role.ADMIN)


@dataclass(frozen=True, slots=True)
class AttendeeList:
    """A pasted list, looked up.

    ``ready`` may ask in the team until the workshop ends; ``outside`` have an account but no such role, and are told
    apart only for whoever can give it; nobody here goes by what ``unknown`` says; ``repeated`` names somebody again.
    """

    ready: tuple[User, ...] = ()
    outside: tuple[User, ...] = ()
    unknown: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()

    @property
    def people(self) -> tuple[User, ...]:
        """Return everybody who was found."""
        return (*self.ready, *self.outside)


def find_attendees(text: str, *, team: Team, rights: Rights, until: datetime) -> AttendeeList:
    """Look up sign-in names, e-mail addresses and full names, one per line; raises Invalid for a list too long.

    A full name counts where one member of the team has it. Somebody out of the asker's reach looks like somebody who
    does not exist.
    """
    lines = _lines(text)
    if len(lines) > MOST_SEATS:
        said = _("A workshop has at most %(n)d people. Split it in two.") % {"n": MOST_SEATS}
        raise Invalid(fields={"people": said})
    named = _accounts(lines)
    lasting = _lasting(team, {user.pk for found in named.values() for user in found}, until)
    reaches_all = str(Role.RESEARCHER) in roles_to_give(rights, team)
    ready: list[User] = []
    outside: list[User] = []
    unknown: list[str] = []
    repeated: list[str] = []
    seen: set[int] = set()
    for line in lines:
        found = [user for user in named[line.lower()] if reaches_all or user.pk in lasting]
        user = _the_one(line, found, lasting)
        if user is None:
            unknown.append(line)
        elif user.pk in seen:
            repeated.append(line)
        else:
            seen.add(user.pk)
            (ready if user.pk in lasting else outside).append(user)
    return AttendeeList(tuple(ready), tuple(outside), tuple(unknown), tuple(repeated))


def _lines(text: str) -> list[str]:
    if len(text) > LONGEST_LIST:
        raise Invalid(fields={"people": _("The list is longer than %(n)d characters.") % {"n": LONGEST_LIST}})
    found = []
    for part in _SEPARATORS.split(text):
        in_brackets = _IN_BRACKETS.search(part)
        name = (in_brackets.group(1) if in_brackets else part).strip().strip('"')
        if name and name.isprintable():
            found.append(name)
        elif name:
            raise Invalid(fields={"people": _("Write one name or e-mail address per line.")})
    return found


def _accounts(lines: Iterable[str]) -> dict[str, list[User]]:
    """Return whoever goes by each of these, in small letters: by sign-in name, e-mail address or full name."""
    wanted = {line.lower() for line in lines}
    rows = User.objects.filter(entering()).annotate(
        low_name=Lower("username"), low_mail=Lower("email"), low_shown=Lower("display_name")
    )
    found: dict[str, list[User]] = defaultdict(list)
    for user in rows.filter(Q(low_name__in=wanted) | Q(low_mail__in=wanted) | Q(low_shown__in=wanted)):
        for name in {user.low_name, user.low_mail, user.low_shown} & wanted:
            found[name].append(user)
    return found


def _lasting(team: Team, users: set[int], until: datetime) -> set[int]:
    """Return which of these may ask in the team until an instant."""
    held = Membership.objects.filter(user_id__in=users, team_id__in=team.lineage, role__in=ASKS)
    return set(held.filter(Q(ends_at=None) | Q(ends_at__gte=until)).values_list("user_id", flat=True))


def _the_one(line: str, found: list[User], lasting: set[int]) -> User | None:
    """Return who is meant, None where nobody or more than one could be."""
    by_name = [user for user in found if user.username.lower() == line.lower()]
    by_mail = [user for user in found if user.email.lower() == line.lower()]
    by_shown = [user for user in found if user.pk in lasting]
    meant = by_name or by_mail or by_shown
    return meant[0] if len(meant) == 1 else None
