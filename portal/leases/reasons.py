"""Wait reasons as sentences: who or what blocks, how much is short, what would help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from portal.budgets.words import reached_sentence
from portal.common.moments import moment_of
from portal.leases.states import WorkloadKind

Figures = dict[str, Any]


def sentence(reason: Figures) -> str:
    """Return one stored reason (``code`` and figures) in the present language."""
    write = _SENTENCES.get(str(reason.get("code", "")))
    why = write(reason) if write else _("Waiting for the next scheduling cycle.")
    return _with_known(why, reason)


def _with_known(why: str, reason: Figures) -> str:
    """Return the sentence and which leases in the way its reader may see (``visible_reasons``); alone when none."""
    known = [str(uid) for uid in reason.get("known") or []]
    if not known:
        return why
    facts = {"why": why, "leases": pgettext("list", ", ").join(known)}
    if len(known) < max(_count(reason.get(figure)) for figure in ("leases", "blockers")):
        return _("%(why)s In the way, among others: %(leases)s.") % facts
    return _("%(why)s In the way: %(leases)s.") % facts


def _whole(figure: Any) -> int:
    """Return a figure as the number that a plural goes by; one that is not known takes the plural."""
    return figure if isinstance(figure, int) else 2


def _count(leases: Any) -> int:
    """Return how many leases a figure tells of, counted already or not."""
    return len(leases) if isinstance(leases, list) else int(leases or 0)


def _gpus(milli: Any) -> str:
    return f"{int(milli or 0) / 1000:g}"


def _cores(milli: Any) -> str:
    return f"{int(milli or 0) / 1000:g}"


def _gib(mib: Any) -> str:
    return f"{round(int(mib or 0) / 1024, 1):g}"


def _with_end(why: str, reason: Figures) -> str:
    """Return the sentence and when the first lease in the way ends; the sentence alone when unknown."""
    when = moment_of(reason.get("next_end"))
    if when is None:
        return why
    return _("%(why)s The first one in the way ends by %(at)s.") % {"why": why, "at": when}


def _quota_ceiling(r: Figures) -> str:
    free = max(0, int(r.get("ceiling_milli") or 0) - int(r.get("used_milli") or 0))
    return _(
        "It takes %(wanted)s reference GPUs, and %(free)s of the %(ceiling)s of %(team)s are free: %(short)s are "
        "missing. It starts when a lease of the team ends or an admin raises the quota."
    ) % {
        "team": r.get("name") or _("your team"),
        "wanted": _gpus(free + int(r.get("short_milli") or 0)),
        "free": _gpus(free),
        "ceiling": _gpus(r.get("ceiling_milli")),
        "short": _gpus(r.get("short_milli")),
    }


def _cohort_exhausted(r: Figures) -> str:
    used, guaranteed = int(r.get("used_milli") or 0), int(r.get("guaranteed_milli") or 0)
    wanted = int(r.get("wanted_milli") or 0)
    figures = {
        "team": r.get("name") or _("your team"),
        "used": _gpus(used),
        "guaranteed": _gpus(guaranteed),
        "lendable": _gpus(r.get("lendable_milli")),
        "short": _gpus(r.get("short_milli")),
    }
    if used + wanted <= guaranteed:
        return (
            _(
                "Others have borrowed what %(team)s is guaranteed: it uses %(used)s of %(guaranteed)s reference "
                "GPUs, and %(short)s of what it now needs are lent out. It is taken back, or comes free when a "
                "lease of theirs ends."
            )
            % figures
        )
    return (
        _(
            "%(team)s uses %(used)s reference GPUs of a guarantee of %(guaranteed)s, and other teams lend "
            "%(lendable)s now: %(short)s are missing. It starts when one of them needs less."
        )
        % figures
    )


def _room_is_made(r: Figures) -> str:
    count = max(1, _count(r.get("leases")))
    why = ngettext(
        "%(n)s lease was told to make room for this.", "%(n)s leases were told to make room for this.", count
    ) % {"n": count}
    when = moment_of(r.get("ends_at"))
    if when is None:
        return why
    return _("%(why)s It starts when room is made, by %(at)s at the latest.") % {"why": why, "at": when}


def _behind(r: Figures) -> str:
    return _("Requests ahead in the queue took the room; this one is number %(n)s.") % {
        "n": r.get("position", "?")
    }


def _pool_full(r: Figures) -> str:
    work = str(r.get("work", ""))
    return _(
        "Pool “%(work)s” uses %(used)s GPU of the %(part)s that are its part now, and this needs %(wanted)s; "
        "work that stays within its pool goes first."
    ) % {
        "work": WorkloadKind(work).label if work in WorkloadKind.values else work or "?",
        "used": _gpus(r.get("used_milli")),
        "part": _gpus(r.get("part_milli")),
        "wanted": _gpus(r.get("wanted_milli")),
    }


def _no_capacity(r: Figures) -> str:
    why = _("All matching devices are busy: %(free)s of %(total)s free, %(wanted)s wanted.") % {
        "free": r.get("free", "?"),
        "total": r.get("total", "?"),
        "wanted": r.get("wanted", "?"),
    }
    return _with_end(why, r)


def _fragmented(r: Figures) -> str:
    why = _("Enough is free in all, but in pieces too small for this flavor. A smaller one would fit sooner.")
    return _with_end(why, r)


def _gang_incomplete(r: Figures) -> str:
    if int(r.get("nodes") or 0) > 1:
        why = ngettext(
            "Only %(fit)s of %(nodes)s nodes has %(wanted)s free now, and they start together or not at all.",
            "Only %(fit)s of %(nodes)s nodes have %(wanted)s free each now, and they start together or not at all.",
            _whole(r.get("nodes_fit")),
        ) % {"fit": r.get("nodes_fit", "?"), "nodes": r["nodes"], "wanted": r.get("wanted", "?")}
        return _with_end(why, r)
    if r.get("nodes") == 0:
        why = ngettext(
            "Only %(fits)s of %(wanted)s is free on all nodes now, and they start together or not at all.",
            "Only %(fits)s of %(wanted)s are free on all nodes now, and they start together or not at all.",
            _whole(r.get("fits")),
        ) % {
            "fits": r.get("fits", "?"),
            "wanted": r.get("wanted", "?"),
        }
        return _with_end(why, r)
    why = ngettext(
        "Only %(fits)s of %(wanted)s fits on one node now, and they start together or not at all.",
        "Only %(fits)s of %(wanted)s fit on one node now, and they start together or not at all.",
        _whole(r.get("fits")),
    ) % {
        "fits": r.get("fits", "?"),
        "wanted": r.get("wanted", "?"),
    }
    return _with_end(why, r)


def _node_resources_short(r: Figures) -> str:
    parts = []
    if r.get("cpu_milli") and r.get("free_cpu_milli") is not None:
        parts.append(
            _("%(free)s of %(wanted)s CPU cores")
            % {"free": _cores(r.get("free_cpu_milli")), "wanted": _cores(r["cpu_milli"])}
        )
    if r.get("host_memory_mib") and r.get("free_memory_mib") is not None:
        parts.append(
            _("%(free)s of %(wanted)s GiB of main memory")
            % {"free": _gib(r.get("free_memory_mib")), "wanted": _gib(r["host_memory_mib"])}
        )
    why = _("%(node)s has the GPUs, but is short beside them: %(parts)s are free.") % {
        "node": r.get("node") or "?",
        "parts": pgettext("list", ", ").join(parts),
    }
    return _with_end(why, r)


def _shared_with_other_team(r: Figures) -> str:
    why = _("Shared devices have room, but another team holds them and devices are not shared across teams.")
    return _with_end(why, r)


def _mps_of_other_teams(r: Figures) -> str:
    why = _(
        "Devices that serve MPS have room, but other teams hold them. A fault of one program under MPS ends the "
        "programs of all, so only one team at a time is let onto such a device."
    )
    return _with_end(why, r)


def _node_waking(r: Figures) -> str:
    nodes = [str(node) for node in r.get("nodes") or []]
    why = ngettext(
        "A node that sleeps is woken for this: %(names)s.",
        "Nodes that sleep are woken for this: %(names)s.",
        max(1, len(nodes)),
    ) % {"names": pgettext("list", ", ").join(nodes)}
    at = moment_of(r.get("ready_at"))
    if at is None:
        return why
    return _("%(why)s It should be ready by %(at)s.") % {"why": why, "at": at}


def _nodes_blocked(r: Figures) -> str:
    nodes = r.get("nodes") or []
    names = pgettext("list", ", ").join(
        str(n.get("node", "?")) if isinstance(n, dict) else str(n) for n in nodes
    )
    return ngettext(
        "The node that could serve this is not available now: %(names)s.",
        "The nodes that could serve this are not available now: %(names)s.",
        max(1, len(nodes)),
    ) % {"names": names}


def _intake_paused(r: Figures) -> str:
    nodes = [str(node) for node in r.get("nodes") or []]
    named, more = pgettext("list", ", ").join(nodes) or "?", int(r.get("more") or 0)
    if more:
        named = ngettext("%(named)s and %(n)d more", "%(named)s and %(n)d more", more) % {
            "named": named,
            "n": more,
        }
    why = _("Nothing new starts on what could serve this while an alert lasts there: %(names)s.") % {
        "names": named
    }
    at = moment_of(r.get("until"))
    if at is None:
        return why
    return _("%(why)s It is paused until %(at)s, and for longer if the alert lasts.") % {"why": why, "at": at}


def _nodes_silent(r: Figures) -> str:
    nodes = [str(node) for node in r.get("nodes") or []]
    return ngettext(
        "The node that could serve the time from %(at)s on is silent: %(names)s. It is booked once that node "
        "is heard.",
        "The nodes that could serve the time from %(at)s on are silent: %(names)s. It is booked once they "
        "are heard.",
        max(1, len(nodes)),
    ) % {"at": moment_of(r.get("starts_at")) or "?", "names": pgettext("list", ", ").join(nodes) or "?"}


def _longest(why: str, r: Figures) -> str:
    """Return the sentence and how long would fit; the sentence alone when unknown or less than a minute."""
    minutes = int(r.get("longest_s") or 0) // 60
    if not minutes:
        return why
    return _("%(why)s Up to %(hours)s h %(minutes)s min would fit now.") % {
        "why": why,
        "hours": minutes // 60,
        "minutes": minutes % 60,
    }


def _maintenance_ahead(r: Figures) -> str:
    nodes = [str(node) for node in r.get("nodes") or []]
    why = _("There is room now, but maintenance begins at %(at)s, before this would end: %(nodes)s.") % {
        "at": moment_of(r.get("starts_at")) or "?",
        "nodes": pgettext("list", ", ").join(nodes) or "?",
    }
    return _longest(why, r)


def _booked_ahead(r: Figures) -> str:
    why = _("There is room now, but it is booked from %(at)s on, before this would end.") % {
        "at": moment_of(r.get("starts_at")) or "?"
    }
    return _longest(why, r)


def _reserved_for_waiting(r: Figures) -> str:
    why = _("There is room now, but request number %(n)s, which waits longer, starts there at %(at)s.") % {
        "n": r.get("position") or "?",
        "at": moment_of(r.get("starts_at")) or "?",
    }
    return _longest(why, r)


def _kept_for_short(r: Figures) -> str:
    return _(
        "There is room now, but a part of it stays free for shorter requests, because this one is long and "
        "cannot be stopped. It starts when more is free."
    )


def _with_nearest(why: str, r: Figures) -> str:
    """Return the sentence and which starts nearby are free; the sentence alone when there are none."""
    times = [moment_of(raw) or "?" for raw in r.get("nearest") or []]
    if not times:
        return why
    return _("%(why)s Free near it: %(times)s.") % {"why": why, "times": pgettext("list", ", ").join(times)}


def _booking_taken(r: Figures) -> str:
    at = moment_of(r.get("starts_at")) or "?"
    away = [str(node) for node in r.get("maintenance") or []]
    why = _("The time from %(at)s on is taken.") % {"at": at}
    if away:
        names = pgettext("list", ", ").join(away)
        why = _("The time from %(at)s on is taken: maintenance is planned then on %(nodes)s.") % {
            "at": at,
            "nodes": names,
        }
    return _with_nearest(why, r)


def _booking_above_quota(r: Figures) -> str:
    why = _("At %(at)s the team would be above its quota.") % {"at": moment_of(r.get("starts_at")) or "?"}
    return _with_nearest(why, r)


def _no_such_device(r: Figures) -> str:
    if r.get("containers") is True:
        return _("No node here that offers this runs containers. Ask an operator to install Podman there.")
    return _("No device here offers this. Choose another flavor.")


def _larger_than_any_node(r: Figures) -> str:
    return _("Even an idle node cannot hold %(wanted)s at once; the largest holds %(nearest)s.") % {
        "wanted": _amounts(r.get("wanted")),
        "nearest": _amounts(r.get("nearest")),
    }


def _larger_than_fleet(r: Figures) -> str:
    return _(
        "Even when nothing runs, all nodes together cannot hold %(wanted)s at once, only %(nearest)s."
    ) % {
        "wanted": _amounts(r.get("wanted")),
        "nearest": _amounts(r.get("nearest")),
    }


def _amounts(figures: Any) -> str:
    """Return sizes by name ("3 units", "16 CPU cores, 64 GiB of main memory"), without those nobody bounded."""
    if not isinstance(figures, dict) or not figures:
        return str(figures or "?")
    words = {
        "count": lambda n: ngettext("%(n)s unit", "%(n)s units", int(n)) % {"n": n},
        "nodes": lambda n: ngettext("%(n)s node", "%(n)s nodes", int(n)) % {"n": n},
        "share_milli": lambda n: _("%(n)s of a GPU") % {"n": _gpus(n)},
        "memory_mib": lambda n: _("%(n)s GiB of GPU memory") % {"n": _gib(n)},
        "cpu_milli": lambda n: _("%(n)s CPU cores") % {"n": _cores(n)},
        "host_memory_mib": lambda n: _("%(n)s GiB of main memory") % {"n": _gib(n)},
    }
    return pgettext("list", ", ").join(words[k](n) for k, n in figures.items() if k in words)


def _above_quota(r: Figures) -> str:
    return _("This is more than the quota of %(team)s can ever hold (%(ceiling)s reference GPUs).") % {
        "team": r.get("name") or _("your team"),
        "ceiling": _gpus(r.get("ceiling_milli")),
    }


def _malformed(r: Figures) -> str:
    return _("The figure for %(field)s makes no sense.") % {"field": r.get("field", "?")}


_SENTENCES: dict[str, Callable[[Figures], str]] = {
    "quota_ceiling": _quota_ceiling,
    "cohort_exhausted": _cohort_exhausted,
    "room_is_made": _room_is_made,
    "behind": _behind,
    "pool_full": _pool_full,
    "no_capacity": _no_capacity,
    "fragmented": _fragmented,
    "gang_incomplete": _gang_incomplete,
    "node_resources_short": _node_resources_short,
    "shared_with_other_team": _shared_with_other_team,
    "mps_of_other_teams": _mps_of_other_teams,
    "node_waking": _node_waking,
    "nodes_blocked": _nodes_blocked,
    "intake_paused": _intake_paused,
    "nodes_silent": _nodes_silent,
    "maintenance_ahead": _maintenance_ahead,
    "booked_ahead": _booked_ahead,
    "reserved_for_waiting": _reserved_for_waiting,
    "kept_for_short": _kept_for_short,
    "booking_taken": _booking_taken,
    "booking_above_quota": _booking_above_quota,
    "no_such_device": _no_such_device,
    "larger_than_any_node": _larger_than_any_node,
    "larger_than_fleet": _larger_than_fleet,
    "above_quota": _above_quota,
    "budget_reached": reached_sentence,
    "malformed": _malformed,
}
CODES = frozenset(_SENTENCES)
