"""What a test reads does not depend on the language that another one left."""

from __future__ import annotations

import pytest
from django.utils import translation


@pytest.mark.parametrize("_time", [1, 2])
def test_a_test_begins_in_english_whatever_the_one_before_it_left(_time: int) -> None:
    assert translation.get_language() == "en"

    translation.activate("zh-hans")
