"""What budgets, wallets and quotas say to something that would cost money or time: nothing, ask first, only
preemptible, or no.

Compared is all that counts (``budget_standing``) with what is asked for, and what it may cost at most with the balance
of the wallet that pays; of quotas GPU-hours of each month and device memory held at once. Whoever goes on to store
something calls ``hold_budgets`` first, so that two of them never both fit into the same rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from portal.budgets.models import BudgetAction, BudgetForecast, SpendBasis, TeamBudget, Wallet
from portal.budgets.periods import BudgetStretch, months_between, stretches_between
from portal.budgets.wallets import lock_wallets, paying_wallets
from portal.budgets.words import BALANCE, HOURS, MEMORY, reached_sentence
from portal.common.errors import BudgetExceeded
from portal.common.months import Months
from portal.common.sql import fetch
from portal.leases.budget_standing import (
    BudgetStanding,
    memory_held,
    standings,
    time_standings,
    waiting_by_wallet,
)
from portal.quotas.selectors import LIMITED, UseLimit, use_limits
from portal.quotas.services import lock_limited
from portal.teams.models import Team

_STRICTNESS = {action: n for n, action in enumerate(BudgetAction.values)}
# Only these change what may start; a plain SQL look, as every request that comes in takes it.
_LIMITING = f"""SELECT DISTINCT b.id FROM budgets_teambudget b JOIN budgets_budgetthreshold t ON t.budget_id = b.id
 WHERE b.team_id = ANY(%s) AND t.action <> '{BudgetAction.NOTIFY}'"""  # noqa: S608 (our own action)


_IS_LIMITED = (
    f"SELECT EXISTS ({_LIMITING}) OR EXISTS (SELECT 1 FROM budgets_wallet WHERE team_id = ANY(%s))"  # noqa: S608 (our own text)
    f" OR EXISTS ({LIMITED})"
)


@dataclass(frozen=True, slots=True)
class Expense:
    """What something would cost at most, in micro-units, spread evenly over its time, and what it would hold.

    ``share_milli`` are thousandths of devices held all that time, ``memory_mib`` device memory held from its start on,
    each 0 for what is held already. ``hold_micro`` is what a wallet would hold for it (None: the same), ``wallet_id``
    the wallet that pays: None the one that pays for the team now, ``NO_WALLET`` none, as for more time of a lease that
    is invoiced.
    """

    team: Team
    micro: int
    starts_at: datetime
    ends_at: datetime
    is_preemptible: bool = False
    hold_micro: int | None = None
    wallet_id: int | None = None
    share_milli: int = 0
    memory_mib: int = 0

    @property
    def at_most(self) -> int:
        """Return what a wallet would hold for it."""
        return self.micro if self.hold_micro is None else self.hold_micro


NO_WALLET = 0


@dataclass(frozen=True, slots=True)
class BalanceShortfall:
    """A wallet that does not cover an expense; ``left_micro`` is its balance less what waits for it."""

    action: str
    team_id: int
    team: str
    left_micro: int
    wanted_micro: int
    currency: str

    def figures(self) -> dict[str, Any]:
        """Return what its sentence is made from, ready for JSON."""
        return {
            "team": self.team_id,
            "name": self.team,
            "action": self.action,
            "basis": BALANCE,
            "left_micro": self.left_micro,
            "wanted_micro": self.wanted_micro,
            "currency": self.currency,
        }


@dataclass(frozen=True, slots=True)
class ReachedThreshold:
    """A threshold of a budget that an expense would pass; ``would_percent`` is where the budget would be with it."""

    action: str
    basis: str
    percent: int
    would_percent: int
    team_id: int
    team: str
    is_monthly: bool
    until: date

    def figures(self) -> dict[str, Any]:
        """Return what its sentence is made from, ready for JSON."""
        return {
            "team": self.team_id,
            "name": self.team,
            "action": self.action,
            "basis": self.basis,
            "percent": self.percent,
            "would_percent": self.would_percent,
            "is_monthly": self.is_monthly,
            "until": self.until.isoformat(),
        }


@dataclass(frozen=True, slots=True)
class HoursShortfall:
    """A month of which a quota has fewer GPU-hours left than something would take; device seconds by share.

    ``left_gpu_s`` is what is neither used nor held, nor waited for where that counts.
    """

    team_id: int
    team: str
    limit_gpu_s: int
    left_gpu_s: int
    wanted_gpu_s: int
    since: date
    until: date
    action: str = str(BudgetAction.BLOCK)

    def figures(self) -> dict[str, Any]:
        """Return what its sentence is made from, ready for JSON."""
        return {
            "team": self.team_id,
            "name": self.team,
            "action": self.action,
            "basis": HOURS,
            "limit_gpu_s": self.limit_gpu_s,
            "left_gpu_s": self.left_gpu_s,
            "wanted_gpu_s": self.wanted_gpu_s,
            "since": self.since.isoformat(),
            "until": self.until.isoformat(),
        }


@dataclass(frozen=True, slots=True)
class MemoryShortfall:
    """A quota that lets less device memory be held at once than something would take beside what is held."""

    team_id: int
    team: str
    limit_mib: int
    used_mib: int
    wanted_mib: int
    action: str = str(BudgetAction.BLOCK)

    def figures(self) -> dict[str, Any]:
        """Return what its sentence is made from, ready for JSON."""
        return {
            "team": self.team_id,
            "name": self.team,
            "action": self.action,
            "basis": MEMORY,
            "limit_mib": self.limit_mib,
            "used_mib": self.used_mib,
            "wanted_mib": self.wanted_mib,
        }


Reached = ReachedThreshold | BalanceShortfall | HoursShortfall | MemoryShortfall


def is_limited(team: Team) -> bool:
    """Say whether a budget, a wallet or a quota, of the team or of one above, may keep something from starting."""
    ((found,),) = fetch(_IS_LIMITED, [team.lineage] * 3)
    return bool(found)


def limited_teams() -> frozenset[int]:
    """Return the teams of which a budget, a wallet or a quota, their own or one above, may keep something from
    starting."""
    rows = fetch(
        "SELECT t.id FROM teams_team t WHERE EXISTS (SELECT 1 FROM budgets_teambudget b"
        " JOIN budgets_budgetthreshold h ON h.budget_id = b.id WHERE b.team_id = ANY(t.lineage) AND h.action <> %s)"
        " OR EXISTS (SELECT 1 FROM budgets_wallet w WHERE w.team_id = ANY(t.lineage) AND w.is_open)"
        " OR EXISTS (SELECT 1 FROM quotas_quota q WHERE q.team_id = ANY(t.lineage)"
        " AND (q.gpu_seconds_a_month IS NOT NULL OR q.most_memory_mib IS NOT NULL))",
        [str(BudgetAction.NOTIFY)],
    )
    return frozenset(pk for (pk,) in rows)


def hold_budgets(teams: Iterable[Team], *, beside: Iterable[Team] = ()) -> bool:
    """Lock the budgets that limit these teams, then the wallets that pay for them, each in id order, then quota rows.

    Quota rows are locked where one of them limits GPU-hours or memory, all that a grant would lock, and those of the
    teams ``beside``, of which the transaction frees something later. False where there
    is nothing of it. Call inside a transaction: they come before leases in the order of locks.
    """
    lineages = sorted({pk for team in teams for pk in team.lineage})
    ids = [pk for (pk,) in fetch(_LIMITING, [lineages])]
    if ids:
        fetch("SELECT 1 FROM budgets_teambudget WHERE id = ANY(%s) ORDER BY id FOR UPDATE", [ids])
    has_wallet = lock_wallets(lineages)
    others = {pk for team in beside for pk in team.lineage}
    return lock_limited(lineages, others) or has_wallet or bool(ids)


def judge(
    expenses: Sequence[Expense], *, now: datetime, with_waiting: bool, together: bool = True
) -> list[tuple[Reached, ...]]:
    """Return for each expense what it would pass or be beyond of budgets, balances and quotas, the strictest first.

    ``with_waiting`` counts what waits: new requests stand behind it, one that starts takes only what is held. Memory
    is asked of what starts now beside what is held; anything else is compared with the limit alone, as it can wait.
    ``together``: each one that nothing stops counts for those after it.
    """
    budgets = _budgets({pk for expense in expenses for pk in expense.team.lineage})
    touched = [_touched(expense, budgets) for expense in expenses]
    wanted = list({(budget.pk, months): budget for own in touched for budget, months, _part in own})
    by_pk = {budget.pk: budget for own in budgets.values() for budget in own}
    found = standings([(by_pk[pk].team_id, months) for pk, months in wanted], now=now)
    counted = dict(zip(wanted, found, strict=True))
    forecasts = {row.budget_id: row for row in BudgetForecast.objects.filter(budget__in=by_pk)}
    added: Counter[tuple[int, BudgetStretch]] = Counter()
    left = _balances(expenses, with_waiting)
    quotas = _quota_rest(expenses, now=now, with_waiting=with_waiting)
    answers = []
    for expense, own in zip(expenses, touched, strict=True):
        reached: list[ReachedThreshold] = [
            one
            for budget, months, part in own
            for one in _reached(
                budget,
                months,
                _sum(counted[budget.pk, months], with_waiting) + added[budget.pk, months] + part,
                forecasts.get(budget.pk),
            )
        ]
        reached.sort(key=lambda one: one.percent)
        wallet = left.payer(expense)
        stops: list[Reached] = [*reached, *left.short(expense, wallet), *quotas.short(expense)]
        stops.sort(key=lambda one: -_STRICTNESS[one.action])
        answers.append(tuple(stops))
        if together and stopping(stops, expense.is_preemptible) is None:
            for budget, months, part in own:
                added[budget.pk, months] += part
            if wallet is not None:
                left.micro[wallet.pk] -= expense.at_most
            quotas.take(expense)
    return answers


@dataclass(frozen=True, slots=True)
class _Balances:
    """The wallets that pay for expenses, and what is left in each as one after the other is let through."""

    by_team: dict[int, Wallet]
    by_id: dict[int, Wallet]
    micro: dict[int, int]

    def payer(self, expense: Expense) -> Wallet | None:
        if expense.wallet_id is None:
            return self.by_team.get(expense.team.pk)
        return self.by_id.get(expense.wallet_id)

    def short(self, expense: Expense, wallet: Wallet | None) -> Iterable[BalanceShortfall]:
        if wallet is not None and expense.at_most > max(self.micro[wallet.pk], 0):
            yield BalanceShortfall(
                action=str(wallet.at_zero),
                team_id=wallet.team_id,
                team=wallet.team.name,
                left_micro=self.micro[wallet.pk],
                wanted_micro=expense.at_most,
                currency=wallet.currency,
            )


def _balances(expenses: Sequence[Expense], with_waiting: bool) -> _Balances:
    by_team = paying_wallets([expense.team for expense in expenses if expense.wallet_id is None])
    named = {expense.wallet_id for expense in expenses if expense.wallet_id}
    by_id = {wallet.pk: wallet for wallet in by_team.values()}
    if named - by_id.keys():
        by_id |= {row.pk: row for row in Wallet.objects.filter(pk__in=named).select_related("team")}
    waiting = waiting_by_wallet(by_id.values()) if with_waiting else {}
    return _Balances(
        by_team, by_id, {pk: row.balance_micro - waiting.get(pk, 0) for pk, row in by_id.items()}
    )


@dataclass(frozen=True, slots=True)
class _QuotaRest:
    """What quotas limit beside devices, and what is taken of it as one after the other is let through.

    ``taken`` are thousandths of device seconds by team and month, ``held`` MiB by team; ``beside`` is whether memory
    that is held counts.
    """

    limits: dict[int, UseLimit]
    months: Months
    taken: Counter[tuple[int, BudgetStretch]]
    held: Counter[int]
    beside: datetime | None

    def of(self, expense: Expense) -> list[UseLimit]:
        return [self.limits[pk] for pk in expense.team.lineage if pk in self.limits]

    def parts(self, expense: Expense) -> list[tuple[BudgetStretch, int]]:
        """Return the months that an expense touches, with the thousandths of device seconds that fall into each."""
        found = []
        for month in months_between(expense.starts_at, expense.ends_at, self.months):
            inside = min(expense.ends_at, month.ends_at) - max(expense.starts_at, month.starts_at)
            found.append((month, int(expense.share_milli * inside.total_seconds())))
        return found

    def short(self, expense: Expense) -> Iterable[HoursShortfall | MemoryShortfall]:
        for limit in self.of(expense):
            if limit.gpu_seconds is not None and expense.share_milli:
                for month, wanted in self.parts(expense):
                    left = limit.gpu_seconds * 1000 - self.taken[limit.team_id, month]
                    if wanted > max(left, 0):
                        yield HoursShortfall(
                            team_id=limit.team_id,
                            team=limit.team,
                            limit_gpu_s=limit.gpu_seconds,
                            left_gpu_s=max(left, 0) // 1000,
                            wanted_gpu_s=-(-wanted // 1000),
                            since=month.since,
                            until=month.until,
                        )
            if limit.memory_mib is not None and expense.memory_mib:
                starts_now = self.beside is not None and expense.starts_at <= self.beside
                held = self.held[limit.team_id] if starts_now else 0
                if held + expense.memory_mib > limit.memory_mib:
                    yield MemoryShortfall(
                        team_id=limit.team_id,
                        team=limit.team,
                        limit_mib=limit.memory_mib,
                        used_mib=held,
                        wanted_mib=expense.memory_mib,
                    )

    def take(self, expense: Expense) -> None:
        for limit in self.of(expense):
            self.held[limit.team_id] += expense.memory_mib
            if limit.gpu_seconds is not None:
                for month, wanted in self.parts(expense):
                    self.taken[limit.team_id, month] += wanted


def _quota_rest(expenses: Sequence[Expense], *, now: datetime, with_waiting: bool) -> _QuotaRest:
    """Return what quotas leave for these expenses: one query, and one each where hours or memory are limited."""
    limits = use_limits({pk for expense in expenses for pk in expense.team.lineage})
    rest = _QuotaRest(limits, Months(), Counter(), Counter(), None if with_waiting else now)
    wanted = {
        (limit.team_id, month)
        for expense in expenses
        for limit in rest.of(expense)
        if limit.gpu_seconds is not None and expense.share_milli
        for month, _part in rest.parts(expense)
    }
    targets = list(wanted)
    for target, one in zip(targets, time_standings(targets, now=now), strict=True):
        rest.taken[target] = _sum(one, with_waiting)
    if not with_waiting:
        rest.held.update(memory_held([pk for pk, limit in limits.items() if limit.memory_mib is not None]))
    return rest


def memory_short(team: Team, memory_mib: int) -> MemoryShortfall | None:
    """Return the quota above which a booking of a team that begins would hold memory; None where it may.

    Call with the quota rows of the lineage locked.
    """
    limits = [limit for limit in use_limits(team.lineage).values() if limit.memory_mib is not None]
    held = memory_held([limit.team_id for limit in limits])
    for limit in limits:
        assert limit.memory_mib is not None
        used = held[limit.team_id]
        if used + memory_mib > limit.memory_mib:
            return MemoryShortfall(limit.team_id, limit.team, limit.memory_mib, used, memory_mib)
    return None


def stopping(reached: Iterable[Reached], is_preemptible: bool) -> Reached | None:
    """Return the strictest of these that keeps something from starting, None where nothing does."""
    for one in reached:
        if one.action == BudgetAction.BLOCK or (
            one.action == BudgetAction.PREEMPTIBLE and not is_preemptible
        ):
            return one
    return None


def asking_approval(reached: Iterable[Reached]) -> Reached | None:
    """Return the threshold from which on somebody must approve, None where nobody has to."""
    return next((one for one in reached if one.action == BudgetAction.APPROVAL), None)


def admit(expense: Expense, *, now: datetime, with_waiting: bool = True) -> Reached | None:
    """Let an expense through; returns the threshold that asks for an approval first, if one does.

    Raises BudgetExceeded with what happened and what to do. Call with the budgets held (``hold_budgets``).
    """
    (reached,) = judge([expense], now=now, with_waiting=with_waiting)
    refuse(stopping(reached, expense.is_preemptible))
    return asking_approval(reached)


def refuse(stop: Reached | None) -> None:
    """Raise BudgetExceeded for what stops something; None stops nothing."""
    if stop is not None:
        raise BudgetExceeded(reached_sentence(stop.figures()), **stop.figures())


def preview(expense: Expense, *, now: datetime) -> tuple[Reached, ...]:
    """Return what a request would pass or be beyond if it were sent now, the strictest first; locks nothing."""
    if not is_limited(expense.team):
        return ()
    (reached,) = judge([expense], now=now, with_waiting=True)
    return reached


def _budgets(team_ids: Iterable[int]) -> dict[int, list[TeamBudget]]:
    rows = TeamBudget.objects.filter(team__in=list(team_ids)).select_related("team")
    found: dict[int, list[TeamBudget]] = {}
    for row in rows.exclude(thresholds=None).prefetch_related("thresholds"):
        if any(t.action != BudgetAction.NOTIFY for t in row.thresholds.all()):
            found.setdefault(row.team_id, []).append(row)
    return found


def _touched(
    expense: Expense, budgets: dict[int, list[TeamBudget]]
) -> list[tuple[TeamBudget, BudgetStretch, int]]:
    """Return the budgets that an expense falls under, with the part of it that falls into their months."""
    calendar = Months()
    length = max((expense.ends_at - expense.starts_at).total_seconds(), 1)
    found = []
    for team_id in expense.team.lineage:
        for budget in budgets.get(team_id, ()):
            for months in stretches_between(budget, expense.starts_at, expense.ends_at, calendar):
                inside = min(expense.ends_at, months.ends_at) - max(expense.starts_at, months.starts_at)
                found.append((budget, months, int(expense.micro * inside.total_seconds() / length)))
    return found


def _sum(standing: BudgetStanding, with_waiting: bool) -> int:
    return standing.spent + standing.held + (standing.waiting if with_waiting else 0)


def _reached(
    budget: TeamBudget, months: BudgetStretch, total: int, forecast: BudgetForecast | None
) -> Iterable[ReachedThreshold]:
    likely = total
    if forecast is not None and forecast.since == months.since and forecast.likely_micro is not None:
        likely = max(total, forecast.likely_micro)
    for threshold in budget.thresholds.all():
        figure = likely if threshold.basis == SpendBasis.FORECAST else total
        if threshold.action != BudgetAction.NOTIFY and figure * 100 > budget.amount_micro * threshold.percent:
            yield ReachedThreshold(
                action=threshold.action,
                basis=threshold.basis,
                percent=threshold.percent,
                would_percent=-(-figure * 100 // budget.amount_micro),
                team_id=budget.team_id,
                team=budget.team.name,
                is_monthly=budget.is_monthly,
                until=months.until,
            )
