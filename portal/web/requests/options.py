"""What may be chosen beside flavor, number and time: the fields of "More choices", and how they read later."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.common.moments import span
from portal.leases.models import LeaseRequest
from portal.leases.requests import MOST_NODES, RequestSpec
from portal.leases.states import Opening, WorkloadKind
from portal.web.fields import LOCAL_TIME, MaybeDuration, MomentField

WORK_CHOICES = (
    ("interactive", gettext_lazy("Interactive: you sit in front of it")),
    ("training", gettext_lazy("Training: it runs by itself")),
    ("inference", gettext_lazy("Inference: it serves others")),
)
NAMES = ("work", "starts_at", "is_preemptible", "least", "nodes", "most_count")


class WishesForm(forms.Form):
    """The fields of "More choices"; left alone they ask for nothing special."""

    work = forms.ChoiceField(
        label=gettext_lazy("Kind of work"),
        choices=WORK_CHOICES,
        required=False,
        help_text=gettext_lazy("Parts of the cluster may be set aside for each kind, by time of day."),
        widget=forms.Select({"class": "form-select"}),
    )
    starts_at = MomentField(
        label=gettext_lazy("Start at"),
        required=False,
        hint=gettext_lazy(
            "Left empty it starts as soon as possible. A booked start is kept for you, at most 90 days ahead."
        ),
    )
    is_preemptible = forms.BooleanField(
        label=gettext_lazy("Preemptible"),
        required=False,
        help_text=gettext_lazy(
            "Others may take its place after a warning, and it queues again with the time left. It costs less."
        ),
    )
    least = MaybeDuration(
        label=gettext_lazy("It may be cut short to"),
        max_length=40,
        required=False,
        help_text=gettext_lazy(
            "Where a booking or maintenance comes behind, it may start sooner and get less, at least this. "
            "What is cut off is not queued again."
        ),
        widget=forms.TextInput({"class": "form-control", "placeholder": "2 h", "autocomplete": "off"}),
    )
    nodes = forms.IntegerField(
        label=gettext_lazy("On how many nodes"),
        min_value=0,
        max_value=MOST_NODES,
        required=False,
        initial=1,
        help_text=gettext_lazy(
            "1 keeps it on one node. With more, each node gives as many as you asked for above, "
            "and all start together. 0 takes as few nodes as possible for all of them."
        ),
        widget=forms.NumberInput({"class": "form-control", "inputmode": "numeric"}),
    )
    most_count = forms.IntegerField(
        label=gettext_lazy("It may grow to"),
        min_value=0,
        max_value=1000,
        required=False,
        help_text=gettext_lazy(
            "While devices idle it gets more, one by one, up to this many. You pay each while you have it; "
            "they are the first to go when somebody waits."
        ),
        widget=forms.NumberInput({"class": "form-control", "inputmode": "numeric"}),
    )

    @property
    def uses_more(self) -> bool:
        """Say whether any of these fields is used, or wrong, so that they must be in sight."""
        usual = {"work": "interactive", "nodes": "1", "most_count": "0"}
        chosen = {name: str(self[name].value() or usual.get(name, "")) for name in NAMES}
        if str(self["nodes"].value()) == "0":
            chosen["nodes"] = "0"
        return any(self[name].errors for name in NAMES if self.is_bound) or any(
            value not in ("", "False", usual.get(name, "")) for name, value in chosen.items()
        )

    def wishes(self) -> dict[str, Any]:
        """Return what a valid form asks for, by the names of a specification."""
        data = self.cleaned_data
        nodes = data.get("nodes")
        return {
            "work": data.get("work") or WorkloadKind.INTERACTIVE.value,
            "starts_at": data.get("starts_at"),
            "is_preemptible": bool(data.get("is_preemptible")),
            "least_duration_s": data.get("least") or 0,
            "nodes": 1 if nodes is None else nodes,
            "most_count": data.get("most_count") or 0,
        }


def local_start(text: str) -> str:
    """Return an instant from an address as the field for the start shows it; as it is when it is none."""
    try:
        at = parse_datetime(text)
        return text if at is None or at.tzinfo is None else f"{timezone.localtime(at):{LOCAL_TIME}}"
    except (ValueError, OverflowError):
        return text


def prefilled(given: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of "More choices" that an address fills."""
    found = {name: given[name] for name in NAMES if name in given}
    if "starts_at" in found:
        found["starts_at"] = local_start(found["starts_at"])
    return found


def wish_facts(asked: LeaseRequest | RequestSpec) -> list[tuple[str, str, datetime | None]]:
    """Return what was chosen beside the usual, as (name, words, instant or None)."""
    facts: list[tuple[str, str, datetime | None]] = []
    if asked.opens != Opening.DEVICE:
        facts.append((_("Opens"), str(Opening(asked.opens).label), None))
    if asked.work != WorkloadKind.INTERACTIVE:
        facts.append((_("Kind of work"), str(WorkloadKind(asked.work).label), None))
    if asked.starts_at is not None:
        facts.append((_("Booked for"), "", asked.starts_at))
    if asked.nodes != 1:
        facts.append((_("Nodes"), _nodes_text(asked.nodes), None))
    if asked.is_preemptible:
        facts.append((_("Preemptible"), _("yes, after a warning, for a lower price"), None))
    if asked.least_duration_s:
        least = _("to %(time)s; the rest is not queued again") % {"time": span(asked.least_duration_s)}
        facts.append((_("May be cut short"), least, None))
    if asked.most_count > asked.count:
        facts.append((_("May grow"), _("to %(n)d while devices idle") % {"n": asked.most_count}, None))
    return facts


def _nodes_text(nodes: int) -> str:
    return _("as few as possible") if nodes == 0 else _("%(n)d, all or none") % {"n": nodes}
