"""Many requests at once: all of them are taken, or none."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db import transaction

from portal.accounts.models import User
from portal.common.errors import BerthError
from portal.leases.budget_gate import hold_budgets
from portal.leases.models import LeaseRequest
from portal.leases.requests import RequestSpec, submit_request
from portal.teams.models import Team
from portal.teams.selectors import Rights

Wanted = tuple[Team, RequestSpec]


def submit_bulk(
    wanted: Sequence[Wanted], *, actor: User, rights: Rights, now: datetime, is_trial: bool
) -> list[LeaseRequest | BerthError]:
    """Ask for everything in order, each behind those before it, and return what came of each.

    Where one is refused, or with ``is_trial``, nothing is kept: what is returned then only says what would be. Opens
    its own transaction; the scheduler is nudged after commit.
    """
    found: list[LeaseRequest | BerthError] = []
    with transaction.atomic():
        # Before the first of them, so that two who ask for several teams in another order never wait for each other.
        hold_budgets({team.pk: team for team, _spec in wanted}.values())
        for team, spec in wanted:
            try:
                with transaction.atomic():
                    found.append(submit_request(team=team, actor=actor, rights=rights, spec=spec, now=now))
            except BerthError as error:
                found.append(error)
        if is_trial or any(isinstance(one, BerthError) for one in found):
            transaction.set_rollback(True)
    return found
