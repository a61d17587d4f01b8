"""Forecasts of demand, stored by pool and by team: made anew each hour, each with its own backtest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from django.db import IntegrityError, transaction
from django.db.models import Min, Q

from portal.billing.periods import zone_at
from portal.common.sql import fetch
from portal.load.hours import HOUR, full_hour, wanted_hours
from portal.load.models import LoadForecast, LoadHour
from portal.teams.models import Team
from scheduler.engine.learning.load import AHEAD, DAY, MOST_HOURS, SpanScore, outlook

MOST_AT_ONCE = 10  # forecasts made in one go of the worker
# Whatever was wanted by anybody in the hours that are learned from: pools, and teams with all above them.
_SCOPES = """
SELECT NULL::bigint, NULL::bigint WHERE EXISTS (SELECT 1 FROM load_loadhour)
UNION SELECT device_model_id, NULL FROM load_loadhour WHERE at >= %(since)s
UNION SELECT NULL, unnest(t.lineage) FROM teams_team t
       WHERE t.id IN (SELECT DISTINCT team_id FROM load_loadhour WHERE at >= %(since)s)
"""


def make_forecasts(*, now: datetime, most: int = MOST_AT_ONCE) -> int:
    """Forecast what has a full hour more than was learned from, longest ago first; returns how many were made.

    Safe to repeat and in parallel: who comes second finds another version and stores nothing. A transaction for each.
    """
    until = full_hour(now)
    stored = {(row.device_model_id, row.team_id): row for row in LoadForecast.objects.all()}
    scopes = [(model, team) for model, team in fetch(_SCOPES, {"since": until - MOST_HOURS * HOUR})]
    due = [scope for scope in scopes if scope not in stored or stored[scope].until < until]
    oldest = datetime(1, 1, 1, tzinfo=UTC)
    due.sort(key=lambda scope: stored[scope].until if scope in stored else oldest)
    first = LoadHour.objects.aggregate(at=Min("at"))["at"]
    made = 0
    for model, team in due[:most]:
        made += _make(stored.get((model, team)), model, team, first, until, now)
    return made


def _make(
    row: LoadForecast | None,
    model: int | None,
    team: int | None,
    first: datetime,
    until: datetime,
    now: datetime,
) -> bool:
    since = max(first, until - MOST_HOURS * HOUR)
    values = [held + waited for held, waited in series_of(model, team, since=since, until=until)]
    found = outlook(values, week_hours(since, len(values) + AHEAD))
    fields = {
        "made_at": now, "until": until, "hours": len(values), "likely": found.likely, "naive": found.naive,
        "low": found.low, "high": found.high, "scores": [asdict(score) for score in found.scores],
    }  # fmt: skip
    if row is not None:
        same = LoadForecast.objects.filter(pk=row.pk, version=row.version)
        return bool(same.update(version=row.version + 1, **fields))
    try:
        with transaction.atomic():
            LoadForecast.objects.create(device_model_id=model, team_id=team, **fields)
    except IntegrityError:
        return False
    return True


def series_of(
    model: int | None, team: int | None, *, since: datetime, until: datetime
) -> list[tuple[float, float]]:
    """Return what was held and waited for by hour, of a pool, a team with those below it, or all of the fleet."""
    teams = None
    if team is not None:
        teams = list(Team.objects.filter(lineage__contains=[team]).values_list("pk", flat=True))
    return wanted_hours(since=since, until=until, model=model, teams=teams)


def week_hours(since: datetime, count: int) -> list[int]:
    """Return the hour of the week, 0 to 167 from Monday midnight in the zone of the months, of so many hours."""
    zone = ZoneInfo(zone_at(since.date().replace(day=1)))
    hours = ((since + n * HOUR).astimezone(zone) for n in range(count))
    return [local.weekday() * DAY + local.hour for local in hours]


def forecast_of(*, model: int | None = None, team: int | None = None) -> LoadForecast | None:
    """Return the stored forecast of a pool, a team or the whole fleet."""
    return LoadForecast.objects.filter(Q(device_model=model) & Q(team=team)).first()


def scores_of(row: LoadForecast) -> list[SpanScore]:
    """Return the backtest of a forecast; empty while there is too little history."""
    return [SpanScore(**score) for score in row.scores]


def peak_within(row: LoadForecast, hours: Iterable[datetime]) -> tuple[datetime, float] | None:
    """Return the hour of the most demand among some, with thousandths of a device; None where none is forecast."""
    found = []
    for at in hours:
        n = (at - row.until) // timedelta(hours=1)
        if 0 <= n < len(row.likely):
            found.append((row.likely[n], at))
    if not found:
        return None
    most, at = max(found, key=lambda one: (one[0], -one[1].timestamp()))
    return at, most
