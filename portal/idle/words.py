"""What a lease was judged by, as a sentence in the reader's language."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from portal.common.units import memory_text
from portal.idle.models import IdleStanding


def evidence_text(row: IdleStanding) -> str:
    """Return what was measured and what follows from it."""
    if row.why == "too_few":
        return _("Only %(known)d of the last %(minutes)d minutes were measured: too few to tell.") % {
            "known": row.known,
            "minutes": row.minutes,
        }
    if row.why == "stuck":
        return _("All its counters stood still for %(minutes)d minutes: they tell nothing.") % {
            "minutes": row.minutes
        }
    if row.why == "works":
        return _("At work in %(worked)d of the last %(minutes)d minutes.") % {
            "worked": row.worked,
            "minutes": row.minutes,
        }
    said = {
        "attended": _(
            "Nothing computed in the last %(minutes)d minutes, but something was opened or begun lately."
        ),
        "nothing": _("Nothing computed in the last %(minutes)d minutes."),
        "dummy_loop": _(
            "For %(minutes)d minutes utilisation was shown, but hardly any part of the device did anything."
        ),
        "keep_alive": _("For %(minutes)d minutes only the same small load, once a minute."),
    }.get(row.why, row.why) % {"minutes": row.minutes}
    return " ".join([said, *_figures(row)])


def _figures(row: IdleStanding) -> list[str]:
    """Return what was measured, one sentence; nothing of what is unknown."""
    found = []
    if row.util is not None:
        found.append(_("utilisation %(n)s %%") % {"n": f"{row.util:g}"})
    if row.sm is not None:
        found.append(_("multiprocessors %(n)s %%") % {"n": f"{row.sm:g}"})
    if row.power_w is not None:
        found.append(_("power %(n)s W") % {"n": f"{row.power_w:.0f}"})
    if row.memory_mib is not None:
        found.append(_("memory %(n)s") % {"n": memory_text(row.memory_mib)})
    if row.processes is not None:
        found.append(ngettext("%(n)d process", "%(n)d processes", row.processes) % {"n": row.processes})
    return [_("Measured: %(figures)s.") % {"figures": pgettext("list", ", ").join(found)}] if found else []
