from __future__ import annotations

from portal.policies.models import Policy as PolicyRow
from scheduler.engine.model import Policy


def active_policy() -> Policy:
    """Return the active policy as the engine takes it; the built-in default when none is stored."""
    row = PolicyRow.objects.filter(is_active=True).first()
    if row is None:
        return Policy()
    known = {"order", "place", "share_across_teams", "keep_better", "keep_empty", "repartition"}
    factors = tuple(sorted((str(k), int(v)) for k, v in row.body.get("memory_factors", {}).items()))
    rules = {k: v for k, v in row.body.items() if k in known}
    return Policy(name=row.name, version=row.version, memory_factors=factors, **rules)
