"""Elastic requests: which may grow now, and how far their author lets them."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.common.sql import Row, fetch, in_sql
from portal.leases.extending import whole_s
from portal.leases.models import LeaseRequest
from portal.leases.requests import needs_approval
from portal.leases.states import LIVE_ON_NODE, RUNNING_LEASES, LeaseState, RequestState
from portal.teams.models import Role
from portal.teams.selectors import Rights

# Below this much time left a further unit is not worth its start.
LEAST_REST_S = 600
_GROWING = f"""
  FROM leases_leaserequest r
  JOIN leases_lease b ON b.request_id = r.id AND b.part = 0 AND NOT b.is_extra AND b.state = '{LeaseState.ACTIVE}'
   AND b.preempt_at IS NULL AND b.not_after > %s + make_interval(secs => %s)
  JOIN LATERAL (SELECT sum(l.count) AS units FROM leases_lease l WHERE l.request_id = r.id
   AND l.generation = b.generation
   AND l.state IN {in_sql(LIVE_ON_NODE)}) u ON u.units < r.most_count
 WHERE r.state = '{RequestState.GRANTED}' AND r.most_count > r.count
"""  # noqa: S608 (our own states)


def growing_rows(*, now: datetime) -> list[Row]:
    """Return (request id, units it may still get, whole seconds its lease has left) of all that may grow."""
    return fetch(
        "SELECT r.id, r.most_count - u.units, floor(extract(epoch FROM b.not_after - %s))::bigint"  # noqa: S608 (our own states)
        f" {_GROWING} ORDER BY r.id",
        [now, now, LEAST_REST_S],
    )


def is_anything_growing(*, now: datetime) -> bool:
    """Say whether any elastic lease has less than it may grow to."""
    return bool(fetch(f"SELECT 1 {_GROWING} LIMIT 1", [now, LEAST_REST_S]))


@transaction.atomic
def set_growth(
    *, request: LeaseRequest, most_count: int, actor: User, rights: Rights, now: datetime
) -> LeaseRequest:
    """Say up to how many units a request may grow from now on; its own number stops it.

    What it has grown by already stays until it is given back. More than what would need an approval is not
    given afterwards. Raises Invalid, Conflict, Forbidden or NotFound.
    """
    locked = (
        LeaseRequest.objects.select_for_update(of=("self",))
        .select_related("team", "flavor")
        .get(pk=request.pk)
    )
    if locked.author_id != actor.pk and not rights.has(locked.team, Role.ADMIN, Role.OPERATOR):
        raise Forbidden if rights.has(locked.team, *Role.values) else NotFound
    if locked.state not in (RequestState.AWAITING_APPROVAL, RequestState.QUEUED, RequestState.GRANTED):
        raise Conflict(_("This request is over: there is nothing left to grow."))
    if locked.most_count == 0:
        raise Conflict(_("Only a request that was made to grow can be told how far. Ask for another one."))
    most = locked.flavor.max_count
    if not locked.count <= most_count <= most:
        raise Invalid(
            fields={
                "most_count": _("Choose %(low)d to %(high)d; %(low)d stops it growing.")
                % {"low": locked.count, "high": most}
            }
        )
    if most_count > locked.most_count and needs_approval(
        locked.team, locked.flavor, count=most_count, duration_s=_whole_s(locked)
    ):
        raise Invalid(
            fields={
                "most_count": _("Growing further than %(n)d needs an approval. Ask with another request.")
                % {"n": locked.most_count}
            }
        )
    if most_count != locked.most_count:
        was = locked.most_count
        locked.most_count = most_count
        locked.save(update_fields=["most_count"])
        record(
            actor, "request.growth_set", locked.uid, at=now, team_id=locked.team_id, was=was, now=most_count
        )
    return locked


def _whole_s(request: LeaseRequest) -> int:
    """Return how long a request may run in all: as asked, or longer where its lease was extended."""
    running = request.leases.filter(state__in=RUNNING_LEASES, is_extra=False, activated_at__isnull=False)
    return max([request.duration_s, *(whole_s(lease) for lease in running.select_related("request"))])
