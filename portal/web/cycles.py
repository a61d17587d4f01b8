"""The last scheduling cycles, for operators: what each saw and decided, and where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy
from django.views.decorators.http import require_safe

from portal.policies import cycles
from portal.policies.cycles import STEPS, CycleRecord
from portal.web.access import require_operator
from portal.web.figures import milliseconds

CHARTED, LISTED = 50, 20
STEP_LABELS = {
    "lock": _("Wait for the cycle before"),
    "snapshot": _("Read the snapshot"),
    "plan": pgettext_lazy("a step of a cycle", "Plan"),
    "commit": _("Commit"),
    "waits": _("Write wait reasons"),
    "preempt": _("Preempt"),
}
CHART_HEIGHT, BAR = 100, 10


@dataclass(frozen=True, slots=True)
class StepBar:
    """One step of one cycle as a rectangle of the chart: x and y from the top left, in its units."""

    x: int
    y: float
    height: float
    tone: int


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step and how long it took in the cycles that are kept."""

    label: Any
    tone: int
    median: str | None
    most: str | None


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show the last cycles: all of them as a picture, those that decided something as a table."""
    require_operator(request)
    found = cycles.last_cycles()
    kept, decided = found or [], cycles.last_cycles(decided=True) or []
    totals = sorted(record.total_ms for record in kept)
    context: dict[str, Any] = {
        "is_known": found is not None,
        "rows": [(record, milliseconds(record.total_ms), _steps(record)) for record in decided[:LISTED]],
        "count": len(kept),
        "median": milliseconds(_median(totals)),
        "most": milliseconds(totals[-1] if totals else None),
        "last_decided": decided[0].at if decided else None,
        "steps": _step_rows(kept),
        "bars": _bars(kept[:CHARTED]),
        "chart_width": CHARTED * BAR,
        "chart_height": CHART_HEIGHT,
    }
    return render(request, "web/cycles.html", context)


def _steps(record: CycleRecord) -> list[tuple[Any, str | None]]:
    return [(STEP_LABELS[step], milliseconds(record.steps_ms.get(step, 0.0))) for step in STEPS]


def _median(ordered: Sequence[float]) -> float | None:
    return ordered[len(ordered) // 2] if ordered else None


def _step_rows(kept: Sequence[CycleRecord]) -> list[StepRow]:
    rows = []
    for tone, step in enumerate(STEPS, start=1):
        took = sorted(record.steps_ms.get(step, 0.0) for record in kept)
        if took:
            rows.append(StepRow(STEP_LABELS[step], tone, milliseconds(_median(took)), milliseconds(took[-1])))
    return rows


def _bars(kept: Sequence[CycleRecord]) -> list[StepBar]:
    """Each cycle as one column, oldest left; its steps stand on each other in their order."""
    longest = max((record.total_ms for record in kept), default=0.0) or 1.0
    bars = []
    for column, record in enumerate(reversed(kept)):
        foot = float(CHART_HEIGHT)
        for tone, step in enumerate(STEPS, start=1):
            height = record.steps_ms.get(step, 0.0) / longest * CHART_HEIGHT
            foot -= height
            bars.append(StepBar(column * BAR, round(foot, 2), round(height, 2), tone))
    return bars
