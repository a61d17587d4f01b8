"""Celery entry points: each says which work to look at, the work itself is rows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from django.db.models import F

from portal.accounts import sessions, sign_in_attempts
from portal.alerts import evaluating
from portal.alerts.rules import forget_alerts
from portal.audit import device_codes
from portal.audit.chain import link_entries
from portal.audit.models import AuditHead
from portal.billing import budgets, capacity_counts, mailings, metering, settlement
from portal.billing.electricity import post_due_electricity
from portal.billing.energy import roll_up_energy
from portal.celery import app
from portal.common import outbox
from portal.common.clock import db_now
from portal.common.live import NODES, publish
from portal.common.retry import is_unreachable, with_retries
from portal.fleet import health_retention
from portal.fleet.models import Node
from portal.fleet.presence import note_presence
from portal.idle import sweeping
from portal.jobs import artifacts, digests, logs, outcomes, services
from portal.lab.services import FEED
from portal.leases import (
    approvals,
    bookings,
    device_cooldown,
    draining,
    extending,
    lifecycle,
    lost_nodes,
    maintenance,
    preempting,
    reservations,
    seats,
)
from portal.load.forecasts import make_forecasts
from portal.load.hours import roll_up_load
from portal.notifications import delegations, delivering, impersonations, memberships
from portal.telemetry.energy import settle_sleeps
from portal.telemetry.hours import roll_up_hours
from portal.telemetry.partitions import keep_partitions
from portal.telemetry.rollups import roll_up_minutes
from portal.web.notifications.rows import words_of
from portal.web.reports.mailing_files import files_of_news
from scheduler import cycle, demand, durations, forecasts, invariant_check, lab, power, snapshot, usage

log = logging.getLogger(__name__)
# What is due by the clock, in this order: who ends comes before who starts. Each takes ``now`` and is safe to repeat.
DUE: Final[tuple[Callable[..., object], ...]] = (
    lifecycle.expire_due,
    preempting.spare_idle,
    preempting.preempt_due,
    sweeping.take_back_due,
    lifecycle.end_left_behind,
    lifecycle.warn_due,
    seats.return_unclaimed,
    bookings.start_booked,
    bookings.remind_due,
    lifecycle.prolong_holds,
    lifecycle.interrupt_lost,
    lost_nodes.fail_unmade,
    lost_nodes.requeue_unheard,
    extending.lapse_extensions,
    approvals.time_out_approvals,
    draining.settle_drains,
    device_cooldown.end_rests,
    outcomes.settle,
    services.feed_jobs,
)


@app.task
def run_cycle() -> None:
    """Take a scheduling turn."""
    cycle.run()


@app.task
def tick() -> None:
    """Do what has become due: ends, warnings, bookings, holds, silent nodes, waiting requests, a fresh snapshot.

    A step that fails keeps none of the others from being done; the first failure is raised at the end. Without a
    database it ends at once. Each step, and each further try of one, has an instant of its own: what waited for
    locks would work with an old one otherwise.
    """
    steps: list[Callable[[], object]] = [lambda: maintenance.heed_windows(now=db_now())]
    steps += [lambda due=due: with_retries(lambda: due(now=db_now())) for due in DUE]  # type: ignore[misc]
    steps += [
        lambda: cycle.run() if cycle.is_due(now=db_now()) else None,
        lambda: with_retries(lambda: power.settle(now=db_now())),
        lambda: cycle.publish_snapshot(now=db_now()),
    ]
    failed: list[Exception] = []
    for step in steps:
        try:
            step()
        except Exception as error:
            if is_unreachable(error):
                raise
            log.exception("a step of the tick failed; the others go on")
            failed.append(error)
    if failed:
        raise failed[0]


@app.task
def feed_lab() -> None:
    """Start the next run of the lab, which has a process of its own; the clock does what was lost."""
    outbox.begin(FEED)
    with_retries(lambda: lab.feed(now=db_now()))


@app.task
def feed_jobs() -> None:
    """Ask for jobs whose turn has come because another one ended; the tick does what was lost."""
    outbox.begin(services.FEED)
    with_retries(lambda: services.feed_jobs(now=db_now()))


@app.task
def resolve_digests() -> None:
    """Ask registries what the tags of new jobs' images mean; the clock does what was lost."""
    outbox.begin(digests.RESOLVE)
    digests.resolve_digests(now=db_now())


@app.task
def sweep_outbox() -> None:
    """Nudge again what was owed and lost, and the nodes whose desired state they have not carried out yet."""
    outbox.sweep(at=db_now())
    behind = list(
        Node.objects.filter(observed_revision__lt=F("desired_revision")).values_list("name", flat=True)
    )
    if behind:
        publish(NODES, behind)


@app.task
def meter() -> None:
    """Turn lease events into usage records, and settle with wallets what is metered to its end."""
    metering.meter_all(now=db_now())
    settlement.settle_wallets(now=db_now())


@app.task
def watch_budgets() -> None:
    """Keep the forecasts of budgets, and tell people of thresholds that were reached."""
    with_retries(lambda: budgets.watch_budgets(now=db_now()))


@app.task
def book_series() -> None:
    """Ask for the times of recurring reservations that have come into sight."""
    reservations.make_occurrences(now=db_now())


@app.task
def keep_rollups() -> None:
    """Make the partitions that minutes and hours of telemetry will need, and drop those that are over."""
    with_retries(lambda: keep_partitions(now=db_now()))


@app.task
def roll_up() -> None:
    """Store the last minutes and hours of telemetry, what leases used and sleeping saved by them, and who was heard.

    And, once a minute as well, tell people of roles that end soon, clear away those that have,
    tell of deputies, and end what operators saw as somebody else. Every few minutes
    look which leases idle.
    """
    roll_up_minutes(now=db_now())
    if db_now().minute % sweeping.EVERY_MIN == 0:
        with_retries(lambda: sweeping.sweep_idle(now=db_now()))
    with_retries(lambda: roll_up_hours(now=db_now()))
    with_retries(lambda: roll_up_energy(now=db_now()))
    with_retries(lambda: post_due_electricity(now=db_now()))
    with_retries(lambda: settle_sleeps(now=db_now()))
    with_retries(lambda: note_presence(now=db_now()))
    with_retries(lambda: memberships.tell_of_ends(now=db_now()))
    with_retries(lambda: memberships.clear_ended_roles(now=db_now()))
    with_retries(lambda: impersonations.end_overdue(now=db_now()))
    with_retries(lambda: delegations.tell_of_delegations(now=db_now()))


@app.task
def watch_alerts() -> None:
    """Look at every alert rule, tell people, and do what rules say."""
    evaluating.watch_alerts(now=db_now())


@app.task
def forget_health() -> None:
    """Forget health events that were cleared long ago, and alerts that were resolved."""
    health_retention.forget_health(now=db_now())
    forget_alerts(now=db_now())


@app.task
def forget_logs() -> None:
    """Remove the output of jobs that ended long ago, and the files that they left."""
    logs.forget_logs(now=db_now())
    artifacts.forget_artifacts(now=db_now())


@app.task
def deliver() -> None:
    """Tell people at their contact points what is due."""
    delivering.deliver_due(words_of, files_of_news, now=db_now())


@app.task
def mail_reports() -> None:
    """Send the reports of months that are due; people are told by the deliveries that follow."""
    mailings.send_due_reports(now=db_now())


@app.task
def chain_audit() -> None:
    """Link the audit entries that were written since."""
    link_entries(now=db_now())


@app.task
def tidy_accounts() -> None:
    """Forget sessions that ended and old tries at doors; log the head of the audit list for those who keep logs."""
    sessions.forget_sessions(now=db_now())
    log.info("audit head %s", AuditHead.objects.first())
    sign_in_attempts.forget_tries(now=db_now())
    device_codes.forget_device_codes(now=db_now())
    delivering.forget_deliveries(now=db_now())


@app.task
def learn_demand() -> None:
    """Look whether requests have come to look different, or the fleet has become fuller or emptier."""
    now = db_now()
    demand.learn(snapshot.take(now=now), now=now)


@app.task
def forecast_load() -> None:
    """Store the hours of demand that are over, and forecast what has one more than it was forecast from."""
    with_retries(lambda: roll_up_load(now=db_now()))
    make_forecasts(now=db_now())


@app.task
def note_forecasts() -> None:
    """Keep the first forecast of every new wait, and what came of the older ones."""
    forecasts.note(now=db_now())


@app.task
def calibrate() -> None:
    """Learn how far forecasts can be trusted."""
    forecasts.calibrate(now=db_now())


@app.task
def settle_usage() -> None:
    """Bring what everybody has used, decayed, up to now."""
    with_retries(lambda: usage.settle(now=db_now()))


@app.task
def count_capacity() -> None:
    """Count where the capacity of a large month went, one month at a time."""
    capacity_counts.count_capacity(now=db_now())


@app.task
def learn_durations() -> None:
    """Look whether enough has ended to learn anew how long requests run."""
    durations.learn(now=db_now())


@app.task
def predict_durations() -> None:
    """Predict how long new requests run."""
    durations.predict()


@app.task
def check_invariants() -> None:
    """Look whether every promise about the rows holds."""
    invariant_check.check(now=db_now())
