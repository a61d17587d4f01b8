"""What is said about the size of leases, with its evidence, in the reader's language."""

from __future__ import annotations

from decimal import Decimal

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from portal.advice.sizing import PricedSize, SizeAdvice, SizeVerdict
from portal.common.units import amount_places, memory_text, rounded
from portal.telemetry.runs import SM

MICRO = 1_000_000


def advice_text(advice: SizeAdvice) -> str:
    """Return what was measured and what follows from it."""
    need = advice.need
    if advice.verdict == SizeVerdict.TOO_SHORT:
        return _("Too short to tell which size it needs.")
    if advice.verdict == SizeVerdict.NOT_MEASURED:
        return _(
            "Not measured: %(known)d of %(due)d minutes are known, and the rest may have needed more."
        ) % {
            "known": need.known_min,
            "due": need.due_min,
        }
    if advice.verdict == SizeVerdict.UNUSED:
        return _("Hardly anything computed, so nothing says which size it needs.")
    follows = _("Nothing that holds this with a margin does the same work for less.")
    if advice.verdict == SizeVerdict.NO_PRICE:
        follows = _("No price is in force to compare with.")
    elif advice.size is not None and advice.held is not None:
        follows = _saving(advice, advice.held, advice.size)
    return pgettext("sentences", "%(first)s %(second)s") % {"first": _evidence(advice), "second": follows}


def _evidence(advice: SizeAdvice) -> str:
    need = advice.need
    figures = {
        "used": memory_text(need.peak_mib or 0),
        "held": memory_text(max(advice.flavor.memory_mib, advice.flavor.max_memory_mib) * advice.count),
        "percent": f"{(need.activity or 0) * 100:.0f}",
        "n": need.runs,
    }
    if need.signal == SM:
        said = ngettext(
            "%(used)s of %(held)s used at most, %(percent)s %% of it at work on average (one lease).",
            "%(used)s of %(held)s used at most, %(percent)s %% of it at work on average (%(n)d leases).",
            need.runs,
        )
    else:
        said = ngettext(
            "%(used)s of %(held)s used at most, utilisation %(percent)s %% on average (one lease).",
            "%(used)s of %(held)s used at most, utilisation %(percent)s %% on average (%(n)d leases).",
            need.runs,
        )
    return said % figures


def _saving(advice: SizeAdvice, held: PricedSize, size: PricedSize) -> str:
    price = _(
        "%(size)s costs %(percent)d %% less: %(new)s instead of %(old)s %(currency)s for the same time."
    ) % {
        "size": size.flavor.shown_name,
        "percent": advice.saved_percent,
        "new": _amount(size.amount_micro),
        "old": _amount(held.amount_micro),
        "currency": advice.currency,
    }
    return pgettext("sentences", "%(first)s %(second)s") % {"first": price, "second": _speed(advice)}


def _speed(advice: SizeAdvice) -> str:
    if advice.speed_percent is None or advice.stretch is None:
        return _("How fast it is, nobody told.")
    if advice.speed_percent >= 100:
        return _("It is at least as fast.")
    said = _("It has %(percent)d %% of the speed, which is enough for how busy this was.")
    if advice.stretch >= 1.05:
        said = _(
            "It has %(percent)d %% of the speed: the same work takes up to %(n)s times as long,"
            " and still costs less."
        )
    return said % {"percent": advice.speed_percent, "n": f"{advice.stretch:.1f}"}


def _amount(micro: int) -> str:
    amount = Decimal(micro) / MICRO
    return f"{rounded(amount, amount_places(amount))}"
