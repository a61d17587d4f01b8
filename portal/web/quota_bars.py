"""Quotas as bars: what is used, guaranteed, borrowed and at most allowed."""

from __future__ import annotations

from dataclasses import dataclass

from portal.quotas.models import Quota
from portal.web.figures import gpus


@dataclass(frozen=True, slots=True)
class QuotaBar:
    """A quota as includes/quota.html takes it, in thousandths; ``is_own`` False: a limit from above."""

    label: str
    used: int
    guaranteed: int | None
    ceiling: int | None
    borrowed: int
    scale: int
    used_text: str | None
    guaranteed_text: str | None
    ceiling_text: str | None
    hint: str = ""


def quota_bar(label: str, quota: Quota, *, hint: str = "") -> QuotaBar:
    """Return the bar of a quota; only in a cohort is what is used above the guarantee borrowed."""
    used, guaranteed, ceiling = quota.used_milli, quota.guaranteed_milli, quota.ceiling_milli
    borrowed = max(0, used - guaranteed) if guaranteed and quota.cohort_id else 0
    return QuotaBar(
        label=label,
        used=used - borrowed,
        guaranteed=guaranteed or None,
        ceiling=ceiling,
        borrowed=borrowed,
        scale=ceiling or max(used, guaranteed, 1000) * 5 // 4,
        used_text=gpus(used),
        guaranteed_text=gpus(guaranteed),
        ceiling_text=gpus(ceiling),
        hint=hint,
    )
