from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.text import slugify
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.catalog.models import Flavor, Rate, RateCard
from portal.common.errors import Conflict, Invalid, NotFound, PeriodClosed
from portal.common.trigger_errors import is_about_closed_month
from portal.fleet.models import DeviceModel, Mode

MOST_CORES, MOST_GIB = 1024, 16_384
MOST_PRICE_MICRO, MOST_MINIMUM_MICRO, MOST_GIB_MICRO = 10**12, 10**10, 10**9
MOST_SLUG, MOST_COUNT, MOST_DURATION_S = 50, 1024, 366 * 86_400
# What may change of a flavor; what it takes of a device may not.
TERMS = frozenset(
    {
        "name", "name_zh", "summary", "summary_zh", "max_count", "min_duration_s", "max_duration_s",
        "preemptible_milli", "position", "is_active",
    }
)  # fmt: skip
STANDARD_CARD = "Standard"
_CURRENCY = re.compile("[A-Z]{3}")


def share_of(
    model: DeviceModel, *, mode: str, profile: str = "", share_milli: int = 0, memory_mib: int = 0
) -> tuple[int, int]:
    """Return (share in thousandths, MiB) one unit takes of a device, rounded up (docs/billing.md).

    The share is the largest of compute, memory and slot share. Raises Invalid for an unknown profile.
    """
    if mode == Mode.EXCLUSIVE:
        return 1000, model.memory_mib
    if mode == Mode.MIG:
        row = model.profiles.filter(name=profile).first()
        if row is None:
            raise Invalid(fields={"profile": _("This device model has no such MIG profile.")})
        return row.share_milli, row.memory_mib
    by_memory = -(-memory_mib * 1000 // model.memory_mib)
    return min(1000, max(share_milli, by_memory, 1)), memory_mib


def cost_milli(flavor: Flavor, count: int) -> int:
    """Return what a request takes of a quota: weighted thousandths, rounded up per unit."""
    return count * -(-flavor.share_milli * flavor.device_model.weight_milli // 1000)


@transaction.atomic
def set_aside(
    *, flavor: Flavor, cpu_cores: float, memory_gib: float, actor: User | None, now: datetime
) -> Flavor:
    """Say what each unit takes of its node's CPU and memory; 0 is nothing. Raises Invalid.

    Running leases of the flavor count with the new amounts from the next turn on; none is ended for it.
    """
    amounts = {"cpu_cores": (cpu_cores, MOST_CORES), "memory_gib": (memory_gib, MOST_GIB)}
    wrong = {
        name: _("This lies between 0 and %(most)d per unit.") % {"most": most}
        for name, (amount, most) in amounts.items()
        if not 0 <= amount <= most
    }
    if wrong:
        raise Invalid(fields=wrong)
    flavor.cpu_milli, flavor.host_memory_mib = round(cpu_cores * 1000), round(memory_gib * 1024)
    flavor.save(update_fields=["cpu_milli", "host_memory_mib"])
    record(
        actor, "flavor.set_aside", flavor.slug, at=now,
        cpu_milli=flavor.cpu_milli, host_memory_mib=flavor.host_memory_mib,
    )  # fmt: skip
    return flavor


@transaction.atomic
def create_flavor(
    *,
    model: DeviceModel,
    slug: str,
    name: str,
    mode: str,
    profile: str = "",
    share_milli: int = 0,
    memory_mib: int = 0,
    terms: dict[str, Any] | None = None,
    actor: User | None,
    now: datetime,
) -> Flavor:
    """Offer one unit of a device model in a sharing mode, and write it down.

    MIG takes a ``profile``, shares take ``share_milli`` or ``memory_mib`` or both: the larger share counts.
    ``terms`` are those of ``change_flavor``. Raises Invalid naming the field.
    """
    fields: dict[str, Any] = {}
    if mode not in Mode.values:
        fields["mode"] = _("Choose one of the sharing modes.")
    if not slug or slug != slugify(slug) or "_" in slug or len(slug) > MOST_SLUG:
        fields["slug"] = _("Give a short name of small letters, digits and dashes, such as “h100-half”.")
    elif Flavor.objects.filter(slug=slug).exists():
        fields["slug"] = _("Another flavor has this short name. Choose a different one.")
    is_share = mode in (Mode.MPS, Mode.MEMLIMIT, Mode.TIMESLICE)
    if is_share and not 0 <= share_milli <= 1000:
        fields["share_milli"] = _("A share lies between 1 and 1000 thousandths of a device.")
    if is_share and not 1 <= memory_mib <= model.memory_mib:
        fields["memory_mib"] = _("A share has between 1 MiB and all %(most)d MiB of the device.") % {
            "most": model.memory_mib
        }
    if not is_share and (share_milli or memory_mib):
        fields["share_milli"] = _("Whole devices and MIG slices have the size that the device gives them.")
    if mode != Mode.MIG and profile:
        fields["profile"] = _("Only MIG slices have a profile.")
    if fields:
        raise Invalid(fields=fields)
    share, memory = share_of(
        model, mode=mode, profile=profile, share_milli=share_milli, memory_mib=memory_mib
    )
    flavor = Flavor(
        slug=slug, device_model=model, mode=mode, profile=profile, share_milli=share, memory_mib=memory
    )
    _set_terms(flavor, {"name": name, **(terms or {})})
    try:
        with transaction.atomic():
            flavor.save()
    except IntegrityError as error:  # somebody was faster with this name
        raise Invalid(
            fields={"slug": _("Another flavor has this short name. Choose a different one.")}
        ) from error
    record(actor, "flavor.made", flavor.slug, at=now, device_model=model.slug, mode=mode, share_milli=share)
    return flavor


@transaction.atomic
def change_flavor(*, flavor: Flavor, terms: dict[str, Any], actor: User | None, now: datetime) -> Flavor:
    """Set what may change of a flavor: its words and its terms (the names in ``TERMS``); others stay as they are.

    What it takes of a device never changes, because leases were priced by it: switch the flavor off and offer another
    one. Who waits and who runs keeps what they have. Raises Invalid naming the field.
    """
    locked = Flavor.objects.select_for_update().get(pk=flavor.pk)
    _set_terms(locked, terms)
    locked.save(update_fields=list(terms))
    record(actor, "flavor.changed", locked.slug, at=now, **terms)
    return locked


def _set_terms(flavor: Flavor, terms: dict[str, Any]) -> None:
    """Put terms on a flavor in memory; raises Invalid naming the field."""
    assert set(terms) <= TERMS
    for name, value in terms.items():
        setattr(flavor, name, value.strip() if isinstance(value, str) else value)
    fields: dict[str, Any] = {}
    if not 1 <= len(flavor.name) <= 60 or not flavor.name.isprintable():
        fields["name"] = _("Give the flavor a name of 1 to 60 characters.")
    for name, most in (("name_zh", 60), ("summary", 160), ("summary_zh", 160)):
        text = getattr(flavor, name)
        if len(text) > most or not text.isprintable():
            fields[name] = _("This text has at most %(most)d characters.") % {"most": most}
    if not 1 <= flavor.max_count <= MOST_COUNT:
        fields["max_count"] = _("A request may ask for 1 to %(most)d of them.") % {"most": MOST_COUNT}
    if not 1 <= flavor.min_duration_s <= flavor.max_duration_s:
        fields["min_duration_s"] = _("The shortest time is at least a second and not above the longest one.")
    if flavor.max_duration_s > MOST_DURATION_S:
        fields["max_duration_s"] = _("The longest time is at most 366 days.")
    if not 0 <= flavor.preemptible_milli <= 1000:
        fields["preemptible_milli"] = _("Preemptible leases cost 0 to 1000 thousandths of the price.")
    if not 0 <= flavor.position <= 32_767:
        fields["position"] = _("The position is a number from 0 to 32,767.")
    if fields:
        raise Invalid(fields=fields)


def default_card() -> RateCard:
    """Return the rate card that prices are on, locked; made at the first call. Call inside a transaction."""
    RateCard.objects.get_or_create(is_default=True, defaults={"name": STANDARD_CARD, "currency": "EUR"})
    return RateCard.objects.select_for_update().get(is_default=True)


def read_currency(text: str) -> str:
    """Return a currency's code in capitals; raises Invalid for what is no code of ISO 4217."""
    code = text.strip().upper()
    if not _CURRENCY.fullmatch(code):
        raise Invalid(
            fields={"currency": _("Give the three letters of the currency, such as EUR, USD or CNY.")}
        )
    return code


@transaction.atomic
def set_currency(*, currency: str, actor: User | None, now: datetime) -> RateCard:
    """Say in which currency prices are. Raises Invalid, and Conflict once a price is set: its amount would lie."""
    code = read_currency(currency)
    card = default_card()
    if card.currency != code:
        if Rate.objects.filter(card=card).exists():
            raise Conflict(_("Prices are set in %(currency)s already.") % {"currency": card.currency})
        record(actor, "currency.set", code, at=now, was=card.currency)
        card.currency = code
        card.save(update_fields=["currency"])
    return card


@transaction.atomic
def set_rate(
    *,
    model: DeviceModel,
    micro_per_hour: int,
    micro_per_gib_hour: int = 0,
    minimum_micro: int = 0,
    starts_at: datetime,
    actor: User | None,
    now: datetime,
) -> Rate:
    """Add a price from ``starts_at`` on; raises Invalid, Conflict or PeriodClosed.

    With it come that of a GiB of device memory for an hour and what a lease comes to at least, 0 for none.
    It ends the one before it and must then lie in the future. The first price of a model may begin in the past, but
    not in a month that is closed.
    """
    card = default_card()
    fields: dict[str, Any] = {}
    if not 0 <= micro_per_hour <= MOST_PRICE_MICRO:
        fields["price"] = _("A price lies between 0 and 1,000,000 an hour.")
    if not 0 <= micro_per_gib_hour <= MOST_GIB_MICRO:
        fields["per_gib"] = _("A price of memory lies between 0 and 1,000 for a GiB an hour.")
    if not 0 <= minimum_micro <= MOST_MINIMUM_MICRO:
        fields["minimum"] = _("A minimum charge lies between 0 and 10,000 for a lease.")
    if fields:
        raise Invalid(fields=fields)
    begin = starts_at.replace(microsecond=0)
    last = Rate.objects.filter(card=card, device_model=model).order_by("-valid").first()
    if last is not None:
        if begin <= now:
            raise Invalid(
                fields={"starts_at": _("A new price must begin in the future: the past is billed already.")}
            )
        if begin <= last.valid.lower:
            raise Conflict(
                _("A later price is already planned for this device model. Withdraw it to move it.")
            )
        Rate.objects.filter(pk=last.pk).update(valid=(last.valid.lower, begin))
    try:
        with transaction.atomic():
            rate = Rate.objects.create(
                card=card,
                device_model=model,
                micro_per_hour=micro_per_hour,
                micro_per_gib_hour=micro_per_gib_hour,
                minimum_micro=minimum_micro,
                valid=(begin, None),
                created_at=now,
            )
    except IntegrityError as error:
        if is_about_closed_month(error):
            raise PeriodClosed(_("A price cannot begin in a month that is closed.")) from error
        raise Conflict(_("Another price covers that time.")) from error
    record(
        actor, "rate.set", model.slug, at=now, micro_per_hour=micro_per_hour, micro_per_gib_hour=micro_per_gib_hour,
        minimum_micro=minimum_micro, starts_at=begin.isoformat(),
    )  # fmt: skip
    return rate


@transaction.atomic
def move_rate(*, rate_id: int, starts_at: datetime, actor: User | None, now: datetime) -> Rate:
    """Let a price that has not begun begin at another instant; all of it or nothing.

    Raises NotFound, Conflict if it has begun or another is planned after it, Invalid for an instant that has passed.
    """
    rate = withdraw_rate(rate_id=rate_id, actor=actor, now=now)
    return set_rate(
        model=rate.device_model,
        micro_per_hour=rate.micro_per_hour,
        micro_per_gib_hour=rate.micro_per_gib_hour,
        minimum_micro=rate.minimum_micro,
        starts_at=starts_at,
        actor=actor,
        now=now,
    )


@transaction.atomic
def withdraw_rate(*, rate_id: int, actor: User | None, now: datetime) -> Rate:
    """Take back a price that has not begun: the one before it goes on. Raises NotFound, or Conflict if it has."""
    card = default_card()
    rate = Rate.objects.select_related("device_model").filter(card=card, pk=rate_id).first()
    if rate is None:
        raise NotFound
    begin = rate.valid.lower
    if begin is None or begin <= now:
        raise Conflict(_("This price has begun: it can only be followed by another."))
    rate.delete()
    before = Rate.objects.filter(card=card, device_model=rate.device_model, valid__endswith=begin).first()
    if before is not None:
        Rate.objects.filter(pk=before.pk).update(valid=(before.valid.lower, rate.valid.upper))
    record(
        actor, "rate.withdrawn", rate.device_model.slug, at=now,
        micro_per_hour=rate.micro_per_hour, starts_at=begin.isoformat(),
    )  # fmt: skip
    return rate
