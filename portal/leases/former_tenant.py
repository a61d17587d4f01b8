"""What of a former tenant's memory a device was cleared of, and how far that is known (docs/former-tenant.md)."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.translation import gettext as _

from portal.fleet.models import Mode
from portal.leases.models import Placement


def former_tenant_text(placements: Sequence[Placement]) -> str:
    """Return the sentence for a lease that has begun, "" before; devices, their models and nodes must be at hand."""
    first = next((one for one in placements if one.lease is not None and one.lease.activated_at), None)
    if first is None:
        return ""
    vendor, mode = first.device.model.vendor, first.mode
    if mode == Mode.MIG:
        done = _(
            "Nothing of the lease before ran here any more when yours began, and its slice was made anew."
        )
    else:
        done = _("Nothing of the lease before ran here any more when yours began.")
    if first.device.node.driver.startswith("simulated"):
        return f"{done} {_('The device is simulated and has no memory.')}"
    cleared = {
        "nvidia": _(
            "NVIDIA's driver clears memory as it is freed: by its maker's word, our test has not run on a card yet."
        ),
        "amd": _(
            "The kernel's driver clears memory as it is freed: by its source, our test has not run on a card yet."
        ),
    }.get(vendor, _("Whether its driver clears memory is not known: overwrite what nobody else must read."))
    return f"{done} {cleared}"
