"""Commands about forecasts."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

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


@app.command()
@guarded
def demand(
    pool: Annotated[str, typer.Option(help="Slug of a device model. For operators and finance.")] = "",
    team: Annotated[str, typer.Option(help="Slug of a team: it and all teams below it.")] = "",
    as_json: Json = False,
) -> None:
    """Show how many devices will be wanted, and how good such forecasts were."""
    asked = {name: value for name, value in (("pool", pool), ("team", team)) if value}
    with api() as portal:
        found = portal.get(f"forecasts/demand/?{urlencode(asked)}" if asked else "forecasts/demand/")
    if as_json:
        output.out_json(found)
        return
    output.facts(
        (
            ("of", found["pool"] or found["team"] or "whole fleet"),
            ("made", formatting.when(found["made_at"])),
            ("days known", f"{found['hours'] // 24} of {found['hours_needed'] // 24} needed"),
            ("forecast", found["verdict"]),
            *((f"hours {row['first']} to {row['last']}", _span(row)) for row in found["scores"]),
        )
    )
    cells = [
        (
            formatting.when(row["at"]), _devices(row["likely_milli"]), _devices(row["low_milli"]),
            _devices(row["high_milli"]), _devices(row["naive_milli"]),
        )
        for row in found["ahead"][:24]
    ]  # fmt: skip
    output.table(("HOUR", "LIKELY", "FROM", "TO", "LAST WEEK"), cells, empty="Nothing can be forecast yet.")


def _span(row: Any) -> str:
    used = "model" if row["uses_model"] else "same hour last week"
    return (
        f"off by {_devices(row['model_milli'])} (model) and {_devices(row['naive_milli'])} (same hour last week) "
        f"devices, used: {used}, {_percent(row['inside_milli'])} inside"
    )


def _devices(milli: int | None) -> str:
    return formatting.UNKNOWN if milli is None else f"{milli / 1000:.2f}"


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
