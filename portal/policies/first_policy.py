"""The rules that a new installation begins with."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.catalog.first_start import set_up
from portal.policies.selectors import active_version
from portal.policies.services import save_policy
from portal.teams.selectors import Rights
from scheduler.engine.model import PolicyRules
from scheduler.engine.policy import Preempting
from scheduler.engine.policy_body import body_of

# Short requests first, and only who agreed to it is preempted for them; why, with figures: docs/queue.md.
FIRST_RULES = PolicyRules(order="default", preempting=Preempting(by_score=True))


@transaction.atomic
def set_up_with_policy(
    *,
    code: str | None,
    organisation: str,
    currency: str,
    username: str,
    display_name: str,
    password: str,
    now: datetime,
) -> User:
    """Make the organisation and its first administrator (``set_up``), and put the first policy in force.

    Rules that are in force already stay. Raises Conflict and Invalid as ``set_up`` does.
    """
    person = set_up(
        code=code,
        organisation=organisation,
        currency=currency,
        username=username,
        display_name=display_name,
        password=password,
        now=now,
    )
    if not active_version():
        save_policy(
            actor=person,
            rights=Rights(person),
            name="default",
            body=body_of(FIRST_RULES),
            note=_("What a new installation begins with"),
            based_on=0,
            now=now,
        )
    return person
