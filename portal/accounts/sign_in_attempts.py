"""How often somebody tried a door, counted in the database: over all processes, whatever becomes of Redis.

docs/accounts.md says the rule to people. Each try is counted before the password is looked at, so that many at
once are no way around it. A window begins with its first try and ends by itself; tries that are refused in it
do not make it longer. Nobody can shut a colleague out: who comes from a place from which this person has signed
in before is counted for that place alone.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import DatabaseError, connection

from portal.accounts.models import SignInPlace, Tries, User
from portal.common.addresses import group_of
from portal.common.sql import execute, fetch

log = logging.getLogger(__name__)
KNOWN_FOR = timedelta(days=30)
KEEP = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Limit:
    """At most ``most`` tries in a window of ``window_s`` seconds."""

    scope: str
    most: int
    window_s: int


HERE = Limit("here", 5, 60)  # one account from one place
ACCOUNT = Limit("account", 30, 900)  # one account from anywhere it is not known
ADDRESS = Limit("address", 20, 300)  # one place, whatever the account
SECOND_STEP = Limit("code", 5, 300)  # one account, with codes after a right password
BAD_TOKEN = Limit("token", 60, 60)  # one place, with tokens that are not accepted

COUNT = """
INSERT INTO accounts_tries AS t (scope, who, since, count) VALUES (%(scope)s, %(who)s, %(now)s, 1)
ON CONFLICT (scope, who) DO UPDATE SET
  count = CASE WHEN t.since <= %(before)s THEN 1 ELSE t.count + 1 END,
  since = CASE WHEN t.since <= %(before)s THEN EXCLUDED.since ELSE t.since END
RETURNING count, since
"""
GIVE_BACK = """
UPDATE accounts_tries SET count = CASE WHEN scope = 'here' THEN 0 ELSE greatest(count - 1, 0) END
WHERE scope = %s AND who = %s
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One counted try to sign in; ``wait_s`` is 0 when it may go on. ``is_first_refused`` once per window."""

    marks: tuple[tuple[Limit, str], ...]
    wait_s: int
    is_first_refused: bool


def begin_attempt(name: str, address: str, *, now: datetime) -> Attempt:
    """Count a try to sign in under this name from this address. Raises what the database raises: fails closed."""
    place, who = group_of(address), hashlib.sha256(name.lower().encode()).hexdigest()
    doors = [(ADDRESS, place), (HERE, f"{who[:40]} {place}")]
    known = SignInPlace.objects.filter(user__username=name, place=place, last_at__gt=now - KNOWN_FOR)
    if not known.exists():
        doors.append((ACCOUNT, who))
    marks: list[tuple[Limit, str]] = []
    for limit, mark in doors:
        marks.append((limit, mark))
        count, left = _count(limit, mark, now)
        # What is refused here is not counted on: one place alone must not use up an account's tries.
        if count > limit.most:
            return Attempt(tuple(marks), left, count == limit.most + 1)
    return Attempt(tuple(marks), 0, is_first_refused=False)


def begin_second_step(name: str, *, now: datetime) -> Attempt:
    """Count a try with a code, from anywhere: only who knows the password comes here. Fails closed."""
    return _at_one_door(SECOND_STEP, hashlib.sha256(name.lower().encode()).hexdigest(), now)


def begin_at_provider(address: str, *, now: datetime) -> Attempt:
    """Count a try to sign in by an identity provider, in the same window of its place as tries with passwords."""
    return _at_one_door(ADDRESS, group_of(address), now)


def give_back_at_provider(address: str) -> None:
    """Take back what a try at a provider was counted for: it let the person in."""
    execute(GIVE_BACK, [ADDRESS.scope, group_of(address)])


def succeed(attempt: Attempt, user: User, address: str, *, now: datetime) -> None:
    """Give back what a right password was counted for, and remember the place."""
    give_back(attempt)
    SignInPlace.objects.update_or_create(user=user, place=group_of(address), defaults={"last_at": now})


def give_back(attempt: Attempt) -> None:
    """Take back what a try was counted for: the password was right."""
    for limit, mark in attempt.marks:
        execute(GIVE_BACK, [limit.scope, mark])


def forgive(name: str) -> None:
    """Forget the tries at an account from everywhere: an operator's word."""
    who = hashlib.sha256(name.lower().encode()).hexdigest()
    Tries.objects.filter(scope__in=(ACCOUNT.scope, SECOND_STEP.scope), who=who).delete()
    Tries.objects.filter(scope=HERE.scope, who__startswith=who[:40]).delete()


def forget_tries(*, now: datetime) -> int:
    """Drop what no window needs any more; returns how many rows went."""
    SignInPlace.objects.filter(last_at__lt=now - KNOWN_FOR).delete()
    return Tries.objects.filter(since__lt=now - KEEP).delete()[0]


def wait_before(limit: Limit, who: str, *, now: datetime) -> int:
    """Count something that is limited like a try and return the seconds to wait, 0 where it may go on."""
    count, left = _count(limit, who, now)
    return left if count > limit.most else 0


def _count(limit: Limit, mark: str, now: datetime) -> tuple[int, int]:
    """Count one and return how many there are in the window, and the seconds until it ends."""
    window = timedelta(seconds=limit.window_s)
    values = {"scope": limit.scope, "who": mark, "now": now, "before": now - window}
    ((count, since),) = fetch(COUNT, values)
    return int(count), max(1, math.ceil((since + window - now).total_seconds()))


def _at_one_door(limit: Limit, mark: str, now: datetime) -> Attempt:
    count, left = _count(limit, mark, now)
    return Attempt(((limit, mark),), left if count > limit.most else 0, count == limit.most + 1)


class BadTokens:
    """Counts calls with tokens that are not accepted. A place beyond the limit is written down no more."""

    MOST_PLACES = 10_000

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def refused_for(self, address: str, *, now: datetime) -> int:
        """Count one and return for how many seconds this place is refused; 0 while it may go on.

        A database that cannot count lets it go on: the token was refused already.
        """
        place, clock = group_of(address), time.monotonic()
        until = self._until.get(place, 0.0)
        if until > clock:
            return math.ceil(until - clock)
        try:
            count, left = _count(BAD_TOKEN, place, now)
        except DatabaseError as error:
            if connection.in_atomic_block:
                raise
            log.warning("calls with bad tokens are not counted: %s", error)
            return 0
        if count <= BAD_TOKEN.most:
            return 0
        if len(self._until) >= self.MOST_PLACES:
            self._until.clear()
        self._until[place] = clock + left
        return left


bad_tokens = BadTokens()
