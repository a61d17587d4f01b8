"""Standard flavors: what a device model can be asked for before anybody has thought about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import F

from portal.accounts.models import User
from portal.audit.services import record
from portal.catalog.models import Flavor
from portal.catalog.services import share_of
from portal.fleet.models import DeviceModel, Mode

SHARES = ((250, "quarter"), (500, "half"))


@dataclass(frozen=True, slots=True)
class StandardFlavor:
    """One flavor to be made."""

    slug: str
    name: str
    mode: str
    profile: str = ""
    share_milli: int = 0
    memory_mib: int = 0
    most: int = 4


def standard_offers(model: DeviceModel) -> Iterator[StandardFlavor]:
    """Return whole devices, every plain MIG profile, and quarters and halves, as far as devices offer them."""
    modes = {mode for modes in model.devices.values_list("modes", flat=True) for mode in modes}
    if Mode.EXCLUSIVE in modes:
        yield StandardFlavor(model.slug, f"Whole {model.name}", Mode.EXCLUSIVE, most=8)
    if Mode.MIG in modes:
        for profile in model.profiles.filter(size=F("name")):
            # "+me", "+gfx" and the like are the same slice with a media engine: offered only on purpose.
            if "+" not in profile.name and "-" not in profile.name:
                slug = f"{model.slug}-{profile.name.replace('.', '-')}"
                yield StandardFlavor(
                    slug, f"{model.name} slice {profile.name}", Mode.MIG, profile=profile.name
                )
    for mode in (Mode.MEMLIMIT, Mode.MPS):
        if mode in modes:
            for share, word in SHARES:
                memory = model.memory_mib * share // 1000
                yield StandardFlavor(f"{model.slug}-{mode}-{word}", f"{model.name} {word}, {mode.label}", mode,
                            share_milli=share, memory_mib=memory)  # fmt: skip


@transaction.atomic
def make_standard_flavors(
    model: DeviceModel, *, actor: User | None = None, now: datetime | None = None
) -> list[Flavor]:
    """Make the standard flavors a model lacks and return those made. Safe to repeat.

    With ``now`` it is written down that ``actor`` made them.
    """
    made = []
    for position, offer in enumerate(standard_offers(model)):
        share_milli, memory_mib = share_of(
            model,
            mode=offer.mode,
            profile=offer.profile,
            share_milli=offer.share_milli,
            memory_mib=offer.memory_mib,
        )
        flavor, is_new = Flavor.objects.get_or_create(
            slug=offer.slug[:50],
            defaults={
                "name": offer.name[:60],
                "device_model": model,
                "mode": offer.mode,
                "profile": offer.profile,
                "share_milli": share_milli,
                "memory_mib": memory_mib,
                "max_count": offer.most,
                "position": position * 10,
            },
        )
        if is_new:
            made.append(flavor)
    if made and now is not None:
        record(actor, "flavor.standard", model.slug, at=now, flavors=[flavor.slug for flavor in made])
    return made
