from __future__ import annotations

from datetime import datetime

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.catalog.models import Flavor, Rate, RateCard
from portal.common.errors import Conflict, Invalid, PeriodClosed
from portal.common.trigger_errors import is_about_closed_month
from portal.fleet.models import DeviceModel, Mode

MOST_CORES, MOST_GIB = 1024, 16_384


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
def set_rate(
    *, model: DeviceModel, micro_per_hour: int, starts_at: datetime, actor: User | None, now: datetime
) -> Rate:
    """Add a price from ``starts_at`` on; raises Invalid, Conflict or PeriodClosed.

    It ends the one before it and must then lie in the future. The first price of a model may begin in the past, but
    not in a month that is closed.
    """
    card = RateCard.objects.select_for_update().get(is_default=True)
    if not 0 <= micro_per_hour <= 10**12:
        raise Invalid(fields={"price": _("A price lies between 0 and 1,000,000 an hour.")})
    begin = starts_at.replace(microsecond=0)
    last = Rate.objects.filter(card=card, device_model=model).order_by("-valid").first()
    if last is not None:
        if begin <= now:
            raise Invalid(
                fields={"starts_at": _("A new price must begin in the future: the past is billed already.")}
            )
        if begin <= last.valid.lower:
            raise Conflict(_("A later price is already planned for this device model."))
        Rate.objects.filter(pk=last.pk).update(valid=(last.valid.lower, begin))
    try:
        with transaction.atomic():
            rate = Rate.objects.create(
                card=card,
                device_model=model,
                micro_per_hour=micro_per_hour,
                valid=(begin, None),
                created_at=now,
            )
    except IntegrityError as error:
        if is_about_closed_month(error):
            raise PeriodClosed(_("A price cannot begin in a month that is closed.")) from error
        raise Conflict(_("Another price covers that time.")) from error
    record(actor, "rate.set", model.slug, at=now, micro_per_hour=micro_per_hour, starts_at=begin.isoformat())
    return rate
