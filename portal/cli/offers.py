"""``berth flavor`` and ``berth price``: what can be asked for, and what it costs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output, zones
from portal.cli.command import Json, api, guarded

if TYPE_CHECKING:
    from portal.cli.client import ApiClient

flavor = typer.Typer(
    help="Say what can be asked for. For operators.", no_args_is_help=True, rich_markup_mode=None
)
price = typer.Typer(
    help="See and set prices. Setting is for finance.", no_args_is_help=True, rich_markup_mode=None
)
HOUR_S, GIB = 3600, 1024
Slug = Annotated[str, typer.Argument(metavar="FLAVOR", help="Its short name, such as h100-half.")]
Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Slug of the device model, as “berth nodes” shows it.")
]
Most = Annotated[int | None, typer.Option("--most", min=1, help="At most so many per request.")]
Hours = Annotated[float | None, typer.Option("--hours", min=0.01, max=8784, help="Longest time.")]
Preemptible = Annotated[
    float | None, typer.Option("--preemptible", min=0, max=100, help="Percent of the price when preemptible.")
]


@flavor.command("offer")
@guarded
def offer(model: Model, as_json: Json = False) -> None:
    """Offer what a device model usually is: the whole device, its MIG slices, halves and quarters."""
    with api() as portal:
        made = portal.post(f"models/{_safe(model)}/flavors/", {})["made"]
    if as_json:
        output.out_json(made)
        return
    for slug in made:
        output.out(slug)
    output.say(f"{len(made)} flavors are offered now." if made else "All standard flavors are there already.")


@flavor.command("create")
@guarded
def create(
    slug: Slug,
    model: Annotated[str, typer.Option(help="Slug of the device model.")],
    mode: Annotated[str, typer.Option(help="exclusive, mig, mps, memlimit or timeslice.")],
    name: Annotated[str, typer.Option(help="Its name.")],
    profile: Annotated[str, typer.Option(help="MIG profile, such as 3g.40gb.")] = "",
    memory: Annotated[float, typer.Option(min=0, max=4096, help="Memory of a share in GiB.")] = 0,
    share: Annotated[float, typer.Option(min=0, max=100, help="Percent of the compute of a share.")] = 0,
    most: Most = 4,
    hours: Hours = 168,
    preemptible: Preemptible = 100,
    as_json: Json = False,
) -> None:
    """Offer one unit of a device model in a sharing mode."""
    body = {
        "device_model": model, "slug": slug, "name": name, "mode": mode, "profile": profile,
        "share_milli": round(share * 10), "memory_mib": round(memory * GIB), **_terms(most, hours, preemptible),
    }  # fmt: skip
    with api() as portal:
        made = portal.post("flavors/", body)
    _told(made, as_json)


@flavor.command("set")
@guarded
def change(
    slug: Slug,
    name: Annotated[str | None, typer.Option(help="Its name.")] = None,
    most: Most = None,
    hours: Hours = None,
    preemptible: Preemptible = None,
    on: Annotated[bool, typer.Option("--on", help="It can be asked for.")] = False,
    off: Annotated[
        bool, typer.Option("--off", help="Nobody can ask for it any more; what runs goes on.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Change a flavor's terms; what is left out stays as it is."""
    if on and off:
        raise typer.BadParameter("give --on or --off")
    body = _terms(most, hours, preemptible)
    if name is not None:
        body["name"] = name
    if on or off:
        body["is_active"] = on
    with api() as portal:
        done = portal.put(f"flavors/{_safe(slug)}/", body)
    _told(done, as_json)


@price.command("list")
@guarded
def list_prices(as_json: Json = False) -> None:
    """List the price of an hour of each whole device: past, present and planned."""
    with api() as portal:
        rows = portal.get("rates/")["results"]
    cells = [
        (
            r["device_model"],
            formatting.price(r["price_per_hour"]),
            formatting.price(r["price_per_gib_hour"]),
            formatting.price(r["minimum"]),
            formatting.when(r["valid_from"]),
            formatting.when(r["valid_until"]),
        )
        for r in rows
    ]
    output.listing(
        rows, ("MODEL", "PRICE/H", "GIB/H", "MINIMUM", "FROM", "UNTIL"), cells, empty="There are no prices yet.",
        as_json=as_json,
    )  # fmt: skip


@price.command("move")
@guarded
def move_price(
    model: Model,
    begin: Annotated[str, typer.Option("--from", help="From when instead, like 2026-02-01T00:00Z.")],
    as_json: Json = False,
) -> None:
    """Let the last price planned for a model begin at another instant. Finance."""
    with api() as portal:
        last = _last_planned(portal, model)
        moved = portal.put(f"rates/{last['id']}/", {"starts_at": instant_of(begin, "--from")})
    if as_json:
        output.out_json(moved)
        return
    output.say(f"{formatting.price(moved['price_per_hour'])} from {formatting.when(moved['valid_from'])}.")


def _last_planned(portal: ApiClient, model: str) -> Any:
    """Return the last price planned for a model, or stop where there is none."""
    rows = portal.get("rates/", device_model=model)["results"]
    now = datetime.now(tz=UTC)
    planned = [r for r in rows if r["valid_from"] and datetime.fromisoformat(r["valid_from"]) > now]
    if not planned:
        raise typer.BadParameter(f"no price is planned for {model}")
    return max(planned, key=lambda r: datetime.fromisoformat(r["valid_from"]))


@price.command("withdraw")
@guarded
def withdraw_price(model: Model) -> None:
    """Take back the last price planned for a model that has not begun; the one before it goes on. Finance."""
    with api() as portal:
        last = _last_planned(portal, model)
        portal.delete(f"rates/{last['id']}/")
    output.say(
        f"{formatting.price(last['price_per_hour'])} from {formatting.when(last['valid_from'])} is withdrawn."
    )


@price.command("set")
@guarded
def set_price(
    model: Model,
    amount: Annotated[
        str, typer.Argument(metavar="PRICE", help="Of a whole device for an hour, such as 2.50.")
    ],
    begin: Annotated[
        str,
        typer.Option("--from", help="From when, like 2026-02-01T00:00Z. Default: now, for a first price."),
    ] = "",
    per_gib: Annotated[
        str,
        typer.Option(
            "--memory", help="Of a GiB of device memory for an hour, such as 0.005; left out: no price."
        ),
    ] = "0",
    minimum: Annotated[
        str, typer.Option(help="What each lease comes to at least, such as 0.50; left out: no minimum.")
    ] = "0",
    dry: Annotated[
        bool, typer.Option("--preview", help="Only say what last month would have come to by it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Set what a device model costs from an instant on; only its first price may begin now or in the past."""
    body = {
        "device_model": model,
        "price_per_hour": amount,
        "price_per_gib_hour": per_gib,
        "minimum": minimum,
    }
    with api() as portal:
        if dry:
            _told_effect(portal.post("rates/preview/", body), as_json)
            return
        made = portal.post("rates/", body | {"starts_at": instant_of(begin, "--from")})
    if as_json:
        output.out_json(made)
        return
    said = f"{formatting.price(made['price_per_hour'])} an hour from {formatting.when(made['valid_from'])}"
    if float(made["price_per_gib_hour"]["amount"]):
        said += f", {formatting.price(made['price_per_gib_hour'])} for each GiB of memory"
    if float(made["minimum"]["amount"]):
        said += f", at least {formatting.price(made['minimum'])} for a lease"
    output.say(f"{made['device_model']}: {said}.")


def _told_effect(effect: Any, as_json: bool) -> None:
    """Print what the last month would have come to at a price, by team."""
    if as_json:
        output.out_json(effect)
        return
    if not effect["teams"]:
        output.say(f"Nobody used {effect['device_model']} last month, as far as it is metered.")
        return
    rows = [*effect["teams"], {"team": "all", **{key: effect[key] for key in ("charged", "then")}}]
    cells = [(row["team"], formatting.money(row["charged"]), formatting.money(row["then"])) for row in rows]
    output.table(("TEAM", f"CHARGED {effect['month']}", "AT THIS PRICE"), cells, empty="")


@price.command("currency")
@guarded
def currency(
    code: Annotated[
        str, typer.Argument(metavar="CODE", help="Such as EUR, USD or CNY; left out: show it.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show the currency of prices, or set it as long as there is no price."""
    with api() as portal:
        found = portal.put("currency/", {"currency": code}) if code else portal.get("currency/")
    if as_json:
        output.out_json(found)
        return
    output.out(found["currency"])


def _terms(most: int | None, hours: float | None, preemptible: float | None) -> dict[str, Any]:
    """Return the terms that were given, as the API calls them."""
    found: dict[str, Any] = {}
    if most is not None:
        found["max_count"] = most
    if hours is not None:
        found["max_duration_s"] = round(hours * HOUR_S)
    if preemptible is not None:
        found["preemptible_milli"] = round(preemptible * 10)
    return found


def instant_of(text: str, option: str) -> str:
    """Return an instant as the API reads it, now for nothing; local time where no offset is named."""
    if not text:
        return datetime.now(tz=UTC).isoformat()
    return zones.instant(text, option)


def _told(row: Any, as_json: bool) -> None:
    if as_json:
        output.out_json(row)
        return
    output.out(row["slug"])
    state = "can be asked for" if row["is_active"] else "is switched off"
    output.say(f"{row['name']} {state}: {row['share_milli'] / 10:g} % of a {row['device_model']}.")


def _safe(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"
