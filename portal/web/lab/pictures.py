"""What came of a run side by side: two pictures, then tables, one column for each policy version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.common.moments import span
from portal.lab.models import LabRun
from portal.web.charts import (
    DrawnPart,
    Plot,
    axis_lines,
    axis_ticks,
    clock,
    grounds,
    line_path,
    nice_top,
    weekday,
)
from portal.web.figures import money

MOST_MARKS, MOST_COLUMNS = 6, 120
# Lines that lie on each other stay apart: every second and third one is broken.
DASHES = ("is-dotted", "", "is-dashed")
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SideCell:
    """One figure of one version: the text, a second line, and ``part`` of the largest in its row, 0 to 100."""

    text: str
    more: str = ""
    part: int | None = None


@dataclass(frozen=True, slots=True)
class SideRow:
    """One line of a table of versions side by side: a cell under each version's title."""

    label: str
    cells: list[tuple[str, SideCell]]


@dataclass(frozen=True, slots=True)
class SideTable:
    """Versions side by side."""

    title: str
    text: str
    head: str
    rows: list[SideRow]


def titles(answers: Sequence[Answer]) -> list[str]:
    """Return what the versions are called."""
    return [f"{one['version']} · {one['name']}" if one["version"] else _("Built-in rules") for one in answers]


def wait_picture(answers: Sequence[Answer]) -> Plot:
    """Return the mean wait by the hour of the day in which requests came, a line for each version, in minutes."""
    lines = [
        [known.get(hour) for hour in range(24)]
        for one in answers
        for known in [{row["hour"]: row["mean_s"] / 60 for row in one["by_hour"]}]
    ]
    best = min(zip(titles(answers), answers, strict=True), key=lambda pair: pair[1]["waits"]["mean_s"])
    return _lines(
        answers, lines, [f"{hour:02d}:00" for hour in range(24)],
        _("Mean wait by the hour of coming"), _("minutes; hours in UTC"),
        _("Shortest on average: %(version)s with %(wait)s.")
        % {"version": best[0], "wait": _span(best[1]["waits"]["mean_s"])},
    )  # fmt: skip


def use_picture(run: LabRun, answers: Sequence[Answer]) -> Plot:
    """Return which part of all boards was held over the period, a line for each version, in percent."""
    hours = len(answers[0]["used_by_hour"])
    step = -(-hours // MOST_COLUMNS)
    lines: list[list[float | None]] = [
        [
            100 * sum(part) / len(part)
            for at in range(0, hours, step)
            for part in [one["used_by_hour"][at : at + step]]
        ]
        for one in answers
    ]
    labels = [_hour(run, at) for at in range(0, hours, step)]
    said = ", ".join(
        f"{title} {_percent(one['utilisation'])}" for title, one in zip(titles(answers), answers, strict=True)
    )
    return _lines(answers, lines, labels, _("Allocated over the period"), _("percent of all boards"), said)


def _lines(
    answers: Sequence[Answer],
    lines: Sequence[Sequence[float | None]],
    labels: list[str],
    title: str,
    unit: str,
    said: str,
) -> Plot:
    known = [value for line in lines for value in line if value is not None]
    top, parts = nice_top(max(known, default=1.0))
    heads = titles(answers)
    rows = [["–" if line[at] is None else _number(line[at]) for line in lines] for at in range(len(labels))]
    step = max(1, -(-len(labels) // MOST_MARKS))
    return Plot(
        title=title,
        summary=said,
        layers=[],
        curves=[
            DrawnPart(head, f"plot-{number} {DASHES[number % 3]}", line_path(line, top, ends=False), "", "")
            for number, (head, line) in enumerate(zip(heads, lines, strict=True), 1)
        ],
        columns=grounds(labels, rows, heads),
        heads=heads,
        ticks=axis_ticks(top, parts),
        lines=axis_lines(parts),
        marks=labels[::step],
        unit=unit,
    )


def tables(answers: Sequence[Answer]) -> list[SideTable]:
    """Return all figures side by side; ``answers`` as ``portal.lab.selectors.answers_of`` gives them."""
    whole = [
        _row(_("Mean wait"), answers, lambda one: one["waits"]["mean_s"], _span),
        _row(_("Half waited less than"), answers, lambda one: one["waits"]["p50_s"], _span),
        _row(_("95 % waited less than"), answers, lambda one: one["waits"]["p95_s"], _span),
        _row(_("99.9 % waited less than"), answers, lambda one: one["waits"]["p999_s"], _span),
        _row(_("Fairness between teams"), answers, lambda one: one["fairness"], _number),
        _row(_("Preemptions"), answers, lambda one: one["preemptions"], _count),
        _row(_("Allocated"), answers, lambda one: one["utilisation"], _percent),
        _row(_("Starved"), answers, lambda one: one["starved"] + one["never"], _count),
        _side(_("Started by the promised time"), answers, [_kept_cell(one["promises"]) for one in answers]),
        _side(_("Energy, estimated"), answers, [_energy_cell(one["energy"]) for one in answers]),
        _row(_("Left out: larger than the fleet or a limit"), answers, lambda one: one["impossible"], _count),
    ]
    found = [
        SideTable(
            _("In all"),
            _(
                "Starved: waited more than a day and ten times their own length, or never started."
                " Fairness 1.00: all teams are slowed down alike. Promised: the time by which nine of ten who wait"
                " should start."
            ),
            _("Figure"),
            whole,
        ),
        _waits(_("Wait by team"), _("Team"), answers, "by_team", lambda row: row["team"], lambda row: row["team"]),
        _waits(
            _("Wait by size"), _("Units"), answers, "by_size", lambda row: row["least"],
            lambda row: _size(row["least"], row["most"]),
        ),
    ]  # fmt: skip
    if any(one["bill"] for one in answers):
        found.append(_bills(answers))
    return found


def _waits(
    title: str,
    head: str,
    answers: Sequence[Answer],
    of: str,
    key: Callable[[Any], Any],
    label: Callable[[Any], str],
) -> SideTable:
    labels = {key(row): label(row) for one in answers for row in one[of]}
    rows = []
    for name in sorted(labels):
        found = [next((row for row in one[of] if key(row) == name), None) for one in answers]
        most = max((row["mean_s"] or 0 for row in found if row), default=0)
        rows.append(_side(labels[name], answers, [_wait_cell(row, most) for row in found]))
    return SideTable(title, _("Mean; below it the waits that 95 and 99.9 % stay below."), head, rows)


def _wait_cell(row: Any, most: float) -> SideCell:
    if row is None or row["mean_s"] is None:
        return SideCell("–", _("nobody started") if row else "")
    # A wait stays on one line; between the two it may wrap.
    more = " · ".join(_span(row[key]).replace(" ", "\u00a0") for key in ("p95_s", "p999_s"))
    if row.get("starved") or row.get("never"):
        more += " · " + _("%(n)d starved") % {"n": row["starved"] + row["never"]}
    return SideCell(_span(row["mean_s"]), more, round(100 * row["mean_s"] / most) if most else 0)


def _bills(answers: Sequence[Answer]) -> SideTable:
    teams = sorted({row["team"] for one in answers for row in one["bill"] or ()})
    rows = []
    for team in teams:
        found = [next((row for row in one["bill"] or () if row["team"] == team), None) for one in answers]
        rows.append(
            _side(
                team,
                answers,
                [
                    SideCell("–")
                    if row is None
                    else SideCell(
                        number_format(money(row["micro"]) or 0, 2, force_grouping=True),
                        _("%(n)d without a price") % {"n": row["unpriced"]} if row["unpriced"] else "",
                    )
                    for row in found
                ],
            )
        )
    return SideTable(
        _("Bill by team"),
        _("In %(currency)s by today's price list, for the time that requests run; waiting costs nothing.")
        % {"currency": answers[0]["currency"]},
        _("Team"), rows,
    )  # fmt: skip


def _kept_cell(found: dict[str, int] | None) -> SideCell:
    if found is None:
        return SideCell("–", _("unknown"))
    if not found["forecasts"]:
        return SideCell("–", _("no forecast was needed"))
    more = ngettext("of one forecast", "of %(n)s forecasts", found["forecasts"])
    return SideCell(_percent(found["kept"] / found["forecasts"]), more % {"n": _count(found["forecasts"])})


def _energy_cell(found: dict[str, int] | None) -> SideCell:
    if found is None:
        return SideCell("–", _("unknown"))
    more = ngettext("one request unknown", "%(n)s requests unknown", found["unknown"]) % {
        "n": _count(found["unknown"])
    }
    kwh = number_format(found["wh"] / 1000, 1, force_grouping=True)
    return SideCell(_("%(kwh)s kWh") % {"kwh": kwh}, more if found["unknown"] else "")


def _row(
    label: str, answers: Sequence[Answer], value: Callable[[Answer], Any], text: Callable[[Any], str]
) -> SideRow:
    found = [value(one) for one in answers]
    return _side(label, answers, [SideCell("–" if one is None else text(one)) for one in found])


def _side(label: str, answers: Sequence[Answer], cells: Sequence[SideCell]) -> SideRow:
    return SideRow(label, list(zip(titles(answers), cells, strict=True)))


def _hour(run: LabRun, at: int) -> str:
    if run.since is None:
        return _("day %(day)d, %(hour)s") % {"day": at // 24 + 1, "hour": f"{at % 24:02d}:00"}
    instant = run.since + timedelta(hours=at)
    return f"{weekday(instant)} {clock(instant)}"


def _size(least: int, most: int | None) -> str:
    if most is None:
        return _("%(n)d or more") % {"n": least}
    return str(least) if least == most else f"{least}–{most}"


def _span(seconds: float | None) -> str:
    return "–" if seconds is None else span(round(seconds)) or "–"


def _percent(part: float | None) -> str:
    return "–" if part is None else f"{number_format(100 * part, 1)} %"


def _number(value: float | None) -> str:
    return "–" if value is None else number_format(value, 2)


def _count(value: int) -> str:
    return number_format(value, force_grouping=True)
