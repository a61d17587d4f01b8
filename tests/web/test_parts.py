"""Parts of pages that are drawn once for what they are given."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.template import Context, Template
from django.utils import timezone, translation
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

from portal.common.templatetags.parts import PARTS


def _drawn(source: str, **given: Any) -> str:
    return Template(source).render(Context(given))


def test_a_part_is_drawn_for_its_arguments_the_language_and_the_zone() -> None:
    pill = '{% include "includes/state_pill.html" with tone="info" icon="cpu" text=text only %}'
    time = '{% include "includes/time.html" with at=at mode="moment" only %}'
    at, word = datetime(2020, 1, 1, 23, 30, tzinfo=UTC), gettext_lazy("Leases")
    for _again in range(2):
        with translation.override("en"):
            assert "Leases" in _drawn(pill, text=word)
            # Text from outside is escaped although the same text was shown as marked.
            assert "<b>x</b>" in _drawn(pill, text=mark_safe("<b>x</b>"))
            assert "&lt;b&gt;x" in _drawn(pill, text="<b>x</b>")
        with translation.override("zh-hans"):
            assert "租约" in _drawn(pill, text=word)
        with timezone.override(ZoneInfo("UTC")):
            assert "23:30" in _drawn(time, at=at)
        with timezone.override(ZoneInfo("Asia/Shanghai")):
            assert "07:30" in _drawn(time, at=at)


def test_equal_values_that_read_differently_are_told_apart() -> None:
    money = '{% include "includes/money.html" with amount=amount currency="EUR" only %}'

    assert 'value="1.0"' in _drawn(money, amount=Decimal("1.0"))
    assert 'value="1.00"' in _drawn(money, amount=Decimal("1.00"))
    assert "unknown" in _drawn(money, amount=None)


def test_what_may_change_is_drawn_anew() -> None:
    class Row:
        """Equal to any other, as rows of a table with the same id are."""

        name = "cpu"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

        def __str__(self) -> str:
            return self.name

    row, icon = Row(), '{% include "includes/icon.html" with name=row only %}'
    assert "#cpu" in _drawn(icon, row=row)
    row.name = "bell"
    assert "#bell" in _drawn(icon, row=row)


@pytest.mark.parametrize("name", sorted(PARTS))
def test_a_part_sees_nothing_of_the_page_around_it(name: str) -> None:
    around = {
        "name": "spy",
        "label": "spy",
        "class": "spy",
        "text": "spy",
        "amount": 7,
        "at": "spy",
        "user": "spy",
    }

    assert "spy" not in _drawn(f'{{% include "{name}" %}}', **around)
