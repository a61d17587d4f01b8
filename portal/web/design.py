"""The living style sheet at /design/: every component in every state, with made-up figures."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django import forms
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

STATES = {
    "lease": "booked preparing active ending cleaning ended interrupted failed",
    "request": "draft submitted awaiting_approval queued granted fulfilled",
    "refusal": "rejected withdrawn expired impossible",
    "node": "online stale offline draining maintenance blocked",
    "period": "open closing closed issued",
}


class SampleForm(forms.Form):
    """Fields in their usual, optional and refused form."""

    name = forms.CharField(widget=forms.TextInput({"class": "form-control", "placeholder": "run 12"}))
    hours = forms.IntegerField(
        max_value=24, help_text="At most 24.", widget=forms.NumberInput({"class": "form-control"})
    )
    team = forms.ChoiceField(
        choices=[("vision", "vision"), ("speech", "speech")],
        required=False,
        widget=forms.Select({"class": "form-select"}),
    )


@dataclass(frozen=True)
class SampleSlot:
    """One slice of the samples, as the slice bar takes it."""

    start: int
    size: int
    label: str = ""
    tone: int = 1
    kind: str = "lease"
    mine: bool = False
    url: str = ""

    @property
    def title(self) -> str:
        """What the pointer and the screen reader get."""
        return f"{self.label or self.kind}: slices {self.start} to {self.start + self.size - 1}"


SLOTS = [
    SampleSlot(0, 2, "vision · 2g.20gb", 1, mine=True, url="#slices"),
    SampleSlot(2, 1, "speech", 2, url="#slices"),
    SampleSlot(3, 1, "", kind="stranded"),
    SampleSlot(4, 2, "robots · 2g.20gb", 3, url="#slices"),
    SampleSlot(6, 1, "", kind="cleaning"),
    SampleSlot(7, 1, "free", kind="free"),
]


LINES = [
    {
        "label": "2g.20gb on H100",
        "detail": "6 h 00 min 00 s × 1.18 CNY/h",
        "amount": Decimal("7.08"),
        "url": "#receipt",
    },
    {
        "label": "Fault credit",
        "detail": "5 min 34 s without the device",
        "amount": Decimal("-0.11"),
        "credit": True,
    },
]
SHARES = [
    SampleSlot(0, 250, "vision ¼", 5),
    SampleSlot(250, 500, "speech ½", 6, mine=True),
    SampleSlot(750, 250, "free", kind="free"),
]


def _flavors() -> list[dict[str, Any]]:
    rows = [
        ("1g.10gb", "H100 80GB", "10 GB", "0.14", 14, 14, "0.62", "mig", "", True),
        ("2g.20gb", "H100 80GB", "20 GB", "0.28", 28, 5, "1.18", "mig", "", False),
        ("4g.40gb", "A100 80GB", "40 GB", "0.57", 57, 0, "1.70", "mig", "", False),
        ("L40S share", "L40S 48GB", "12 GB", "", None, None, "0.34", "memlimit", "", False),
        ("Whole H100", "H100 80GB", "80 GB", "1", 100, 3, "4.40", "exclusive", "", False),
        ("Eight H100", "H100 80GB", "640 GB", "8", 100, 0, "35.20", "exclusive", "above ceiling", False),
    ]
    keys = [
        "title",
        "model",
        "memory",
        "speed",
        "speed_percent",
        "free",
        "price",
        "mode",
        "disabled",
        "checked",
    ]
    return [
        dict(zip(keys, row, strict=True))
        | {"price": Decimal(row[6]), "currency": "CNY", "value": row[0], "quota": row[3] or "0.25"}
        | {"memory_mib": 1024 * int(row[2].split()[0]), "is_shared": row[7] == "memlimit", "free_at": None}
        for row in rows
    ]


def _events(now: datetime) -> list[dict[str, Any]]:
    def event(
        minutes: int, title: str, tone: str, icon: str, text: str = "", todo: bool = False
    ) -> dict[str, Any]:
        at = now - timedelta(minutes=minutes)
        return {"title": title, "at": at, "tone": tone, "icon": icon, "text": text, "todo": todo}

    return [
        event(131, "Requested", "info", "send", "2g.20gb for 6 hours"),
        event(130, "Approved", "good", "checkbox", "by bob, within the team's budget"),
        event(128, "Active on gpu-01", "good", "activity", "device 3, slices 0 to 1"),
        event(-229, "Ends", "quiet", "hourglass", "", todo=True),
    ]


def _map() -> dict[str, Any]:
    def device(node: int, index: int) -> dict[str, Any]:
        slots = [] if (node + index) % 5 == 4 else SLOTS
        return {
            "uuid": f"GPU-{node}-{index}", "index": index, "model": "H100 80GB", "memory_mib": 81559,
            "grid": 8, "blocked": node == 2 and index == 6, "note": "XID 79",
            "slots": [
                {
                    "start": s.start, "size": s.size, "kind": s.kind, "tone": (s.tone + node + index) % 8 + 1,
                    "label": s.label, "title": s.title, "mine": s.mine and index == 0, "url": s.url,
                    "lease": f"{node}{index}{s.start}",
                }
                for s in slots
            ],
        }  # fmt: skip

    states = ["online", "stale", "offline"]
    return {
        "nodes": [
            {
                "name": f"gpu-0{n}", "state": states[n - 1], "state_text": states[n - 1].title(),
                "url": "#map", "note": "8 × H100 80GB", "devices": [device(n, i) for i in range(8)],
            }
            for n in (1, 2, 3)
        ]
    }  # fmt: skip


def _nav() -> list[dict[str, Any]]:
    rows = [
        ("Home", "Home", "home", ""), ("New request", "New", "circle-plus", ""),
        ("Requests & leases", "Leases", "list-details", ""), ("Cluster", "Cluster", "layout-grid", ""),
        ("Team", "Team", "users", ""), ("Invoice", "Invoice", "file-invoice", ""),
        ("Approvals", "Approvals", "checkbox", ""), ("Nodes", "Nodes", "server-2", "Operator"),
        ("Rates", "Rates", "tag", "Operator"),
    ]  # fmt: skip
    return [
        {"label": label, "short": short, "icon": icon, "section": section, "url": "#", "active": n == 0,
         "badge": 3 if label == "Approvals" else None}
        for n, (label, short, icon, section) in enumerate(rows)
    ]  # fmt: skip


def samples(now: datetime) -> dict[str, Any]:
    """The context of the page at ``now``."""
    refused = SampleForm({"name": "", "hours": "40", "team": "vision"}, auto_id="refused_%s")
    refused.is_valid()
    price = Decimal("1.18")
    return {
        "states": {kind: words.split() for kind, words in STATES.items()},
        "slots": SLOTS,
        "shares": SHARES,
        "tones": range(1, 9),
        "flavors": _flavors(),
        "events": _events(now),
        "map": _map(),
        "form": SampleForm(),
        "refused": refused,
        "page": Paginator(range(128), 10).page(3),
        "soon": now + timedelta(minutes=8),
        "later": now + timedelta(hours=3, minutes=49),
        "ago": now - timedelta(hours=2, minutes=8),
        "price": price,
        "cost": price * Decimal("2.1333"),
        "total": Decimal("6.97"),
        "lines": LINES,
        "none": None,
        "rows": [
            ("L-1042", "active", "vision", now + timedelta(hours=2), Decimal("2.52")),
            ("L-1039", "ending", "speech", now + timedelta(minutes=6), Decimal("14.08")),
            ("L-1033", "cleaning", "vision", None, Decimal("3.10")),
            ("L-1031", "failed", "robots", None, None),
        ],
    }


@login_not_required
def page(request: HttpRequest) -> HttpResponse:
    """Show the style sheet in a demo or while developing; elsewhere it does not exist."""
    if not (settings.DEBUG or getattr(settings, "DEMO", False)):
        raise Http404
    context = samples(timezone.now())
    if not request.user.is_authenticated:
        context["nav"] = _nav()
    return render(request, "design.html", context)
