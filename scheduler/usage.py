"""Settle what people have used, decayed, for the orders that weigh it."""

from __future__ import annotations

import math
from datetime import datetime

from django.db import transaction

from portal.common.sql import execute
from portal.leases.states import LeaseState
from portal.policies.selectors import active_policy

# A person's first lease opens the row, as of that lease's beginning. The pairs come by leaping from one to the next
# in the index ``lease_by_holder``: their number counts, not that of their leases.
OPEN = (
    "WITH RECURSIVE pair AS ("  # noqa: S608 (our own states)
    f" (SELECT team_id, user_id FROM leases_lease WHERE state <> '{LeaseState.BOOKED}'"
    " ORDER BY team_id, user_id LIMIT 1)"
    " UNION ALL SELECT n.team_id, n.user_id FROM pair p CROSS JOIN LATERAL"
    f" (SELECT l.team_id, l.user_id FROM leases_lease l WHERE l.state <> '{LeaseState.BOOKED}'"
    " AND (l.team_id, l.user_id) > (p.team_id, p.user_id) ORDER BY l.team_id, l.user_id LIMIT 1) n)"
    " INSERT INTO quotas_personusage (team_id, user_id, used_milli_s, as_of)"
    " SELECT pair.team_id, pair.user_id, 0, first.at FROM pair"
    " LEFT JOIN quotas_personusage p ON p.team_id = pair.team_id AND p.user_id = pair.user_id"
    " CROSS JOIN LATERAL (SELECT min(l.starts_at) AS at FROM leases_lease l WHERE l.team_id = pair.team_id"
    f" AND l.user_id = pair.user_id AND l.state <> '{LeaseState.BOOKED}' AND l.starts_at < %s) first"
    " WHERE p.id IS NULL AND first.at IS NOT NULL ORDER BY pair.team_id, pair.user_id ON CONFLICT DO NOTHING"
)
# A use of cost c from a to b, seen at ``now`` with decay k, is worth the integral of c x e^(-k (now - t)) over t.
# PostgreSQL refuses an exponential that underflows, so exponents stop at -700. Only leases that end after a row was
# settled are read (``lease_by_holder`` is in the order of that end); without the bound it would be all there ever were.
# OFFSET 0 keeps PostgreSQL from merging the part into a join that reads the whole index.
SETTLE = (
    "WITH f AS (SELECT %s::timestamptz AS now, %s::float8 AS k),"  # noqa: S608 (our own states)
    " due AS (SELECT p.id, p.team_id, p.user_id, p.used_milli_s, p.as_of FROM quotas_personusage p, f"
    " WHERE p.as_of < f.now ORDER BY p.id FOR UPDATE OF p),"
    " ran AS (SELECT d.id, sum(l.cost_milli * (exp(greatest(-700, -f.k * extract(epoch FROM f.now - t.b)))"
    " - exp(greatest(-700, -f.k * extract(epoch FROM f.now - t.a)))) / f.k) AS used"
    " FROM due d CROSS JOIN f CROSS JOIN LATERAL (SELECT l.cost_milli, l.starts_at, l.ended_at, l.not_after"
    f" FROM leases_lease l WHERE l.team_id = d.team_id AND l.user_id = d.user_id AND l.state <> '{LeaseState.BOOKED}'"
    " AND coalesce(l.ended_at, l.not_after) > d.as_of OFFSET 0) l"
    " CROSS JOIN LATERAL (SELECT greatest(l.starts_at, d.as_of) AS a,"
    " least(f.now, coalesce(l.ended_at, l.not_after)) AS b) t"
    " WHERE t.b > t.a GROUP BY d.id)"
    " UPDATE quotas_personusage p SET as_of = f.now, used_milli_s = round(coalesce(ran.used, 0)"
    " + d.used_milli_s * exp(greatest(-700, -f.k * extract(epoch FROM f.now - d.as_of))))"
    " FROM due d CROSS JOIN f LEFT JOIN ran ON ran.id = d.id WHERE p.id = d.id"
)


@transaction.atomic
def settle(*, now: datetime) -> int:
    """Bring everybody's decayed usage to ``now``; returns how many rows moved.

    A lease counts from its grant to its end, with its cost, and half of a use is forgotten in the active policy's
    half-life. Each second counts once: a row knows up to when it is settled, so this is safe to repeat and to
    run in parallel (rows are locked in id order), and a row that is ahead of ``now`` stays. What becomes known
    only later about a time already settled (an end that an agent reports late) is not counted back.
    """
    k = math.log(2) / max(active_policy().half_life_s, 1)
    execute(OPEN, [now])
    return execute(SETTLE, [now, k])
