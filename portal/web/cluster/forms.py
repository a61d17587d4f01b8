from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.web.cluster.map import FleetView

_SELECT = forms.Select({"class": "form-select"})


class MapFilter(forms.Form):
    """What part of the map to show; built from what the map holds."""

    model = forms.ChoiceField(label=_("Device model"), required=False, widget=_SELECT)
    state = forms.ChoiceField(label=_("Node state"), required=False, widget=_SELECT)
    only = forms.ChoiceField(
        label=_("Show"),
        required=False,
        widget=_SELECT,
        choices=[
            ("", _("Every device")),
            ("free", _("Devices with free room")),
            ("mine", _("Slices of my teams")),
        ],
    )

    def __init__(self, data: Mapping[str, Any], fleet: FleetView) -> None:
        super().__init__(data)
        models = _choices(_("All models"), {(d.model_slug, d.model) for d in fleet.devices})
        states = _choices(_("All states"), {(n.state, n.state_text) for n in fleet.nodes})
        self.fields["model"].choices = models  # type: ignore[attr-defined]
        self.fields["state"].choices = states  # type: ignore[attr-defined]

    def chosen(self) -> dict[str, str]:
        """Return the values that can be used; an unknown one counts as not chosen."""
        self.is_valid()
        return {name: str(self.cleaned_data.get(name, "")) for name in self.fields}


def _choices(everything: object, found: Iterable[tuple[str, str]]) -> list[tuple[str, object]]:
    return [("", everything), *sorted(found, key=lambda pair: pair[1])]
