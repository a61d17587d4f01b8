from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.template.base import Lexer, TokenType

from tests.i18n.visible import visible, words

TEMPLATES = Path(__file__).parents[2] / "templates"
# Names, keys, formats and units that are the same in every language. The style sheet's samples are data, not texts.
SAME = {"Berth", "CSV", "Ctrl", "GPU", "NaN", "PDF"}
SAMPLES = {"design.html"}
CLASS_NAMES = re.compile(r"{% block plain_size %}.*?{% endblock %}")
# Parts of an include that people read, given as a plain string.
GIVEN = re.compile(r'\b(?:title|subtitle|text|label|hint|link|unit|suffix|confirm|note|keep|none)="([^"]*)"')


def untranslated(source: str) -> list[str]:
    """Return the readable texts of a template that stand outside of its translation tags."""
    parts, within = [], ""
    for token in Lexer(CLASS_NAMES.sub("", source)).tokenize():
        name = token.contents.split(" ", 1)[0] if token.token_type == TokenType.BLOCK else ""
        if within:
            within = "" if name in (f"end{within}", "endblocktrans") else within
        elif name in ("blocktranslate", "blocktrans", "comment"):
            within = name
            parts.append("…")
        elif name == "include":
            parts += [f"<p>{given}</p>" for given in GIVEN.findall(token.contents)]
        elif token.token_type == TokenType.TEXT:
            parts.append(token.contents)
        elif token.token_type == TokenType.VAR:
            parts.append("…")
    return [text for text in visible("".join(parts)) if set(words(text)) - SAME]


@pytest.mark.parametrize(
    "path",
    sorted(p for p in TEMPLATES.rglob("*.html") if p.name not in SAMPLES),
    ids=lambda path: path.relative_to(TEMPLATES).as_posix(),
)
def test_a_template_says_nothing_outside_of_translation(path: Path) -> None:
    assert untranslated(path.read_text(encoding="utf-8")) == []


def test_bare_words_and_attributes_are_noticed() -> None:
    source = """{% load i18n %}<p title="Bare title">{% translate "Wrapped" %} bare words {{ figure }}</p>
<input placeholder="Bare hint"><code>berth login</code><b lang="en">English</b>
{% blocktranslate %}Also wrapped{% endblocktranslate %}{% comment %}Not shown{% endcomment %}"""

    assert untranslated(source) == ["Bare title", "bare words …", "Bare hint"]


def test_a_plain_string_given_to_a_part_is_noticed() -> None:
    source = """{% include "a.html" with title="Bare title" text=_("Wrapped") unit="GPU" label=name only %}"""

    assert untranslated(source) == ["Bare title"]


def test_a_text_in_parts_is_noticed_too() -> None:
    assert untranslated('{% if a %}only for some{% endif %}<img alt="a boat">') == ["only for some", "a boat"]


def test_no_template_counts_by_hand() -> None:
    by_hand = re.compile(r"\|pluralize|\(s\)")

    assert [p.name for p in TEMPLATES.rglob("*.html") if by_hand.search(p.read_text(encoding="utf-8"))] == []
