"""Commands about forecasts."""

from __future__ import annotations

from typing import Any

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

app = typer.Typer(help="How good forecasts are.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """How good forecasts are."""


@app.command()
@guarded
def calibration(as_json: Json = False) -> None:
    """Show how many starts came before the time that was shown."""
    with api() as portal:
        found = portal.get("forecasts/calibration/")
    if as_json:
        output.out_json(found)
        return
    overall, model = found["overall"], found["durations"]
    output.facts(
        (
            ("waits judged", overall["samples"]),
            ("before P90", _percent(overall["before_p90_milli"])),
            ("before P50", _percent(overall["before_p50_milli"])),
            ("median width", formatting.span(overall["median_width_s"])),
            *((f"week of {row['week']}", _line(row)) for row in found["weeks"]),
            *((_length(row), _line(row)) for row in found["lengths"] if row["samples"]),
            *((("lengths", _lengths(model)),) if model and model["predicted"] else ()),
        )
    )


@app.command()
@guarded
def promises(as_json: Json = False) -> None:
    """Show how promised starts were kept, by month and kind of work."""
    with api() as portal:
        found = portal.get("forecasts/promises/")
    cells = [
        (
            row["month"], row["work"] or "all", row["promised"], row["kept"], row["missed"], row["excused"],
            row["withdrawn"], row["open"], _percent(row["kept_milli"]),
        )
        for row in found["months"]
    ]  # fmt: skip
    columns = ("MONTH", "WORK", "PROMISED", "KEPT", "MISSED", "EXCUSED", "WITHDRAWN", "OPEN", "KEPT %")
    empty = (
        "No start was promised yet." if found["promises_now"] else "The policy in force promises no starts."
    )
    output.listing(found, columns, cells, empty=empty, as_json=as_json)


def _percent(milli: int | None) -> str:
    return formatting.UNKNOWN if milli is None else f"{milli / 10:.1f} %"


def _line(row: Any) -> str:
    return f"{_percent(row['before_p90_milli'])} before P90 of {row['samples']}"


def _length(row: Any) -> str:
    if row["most_s"] is None:
        return f"said longer than {formatting.span(row['least_s'])}"
    return f"said up to {formatting.span(row['most_s'])}"


def _lengths(model: Any) -> str:
    """Return how far the prediction is off beside the time asked for."""
    asked = f", time asked × {model['asked']['median']:.2f}" if model["asked"] else ""
    return f"half off by less than × {model['predicted']['median']:.2f}{asked}, {model['judged']} judged"
