from __future__ import annotations

import re
from pathlib import Path

import polib
import pytest
from django.utils import translation

from portal.leases.reasons import CODES, sentence
from tests.i18n.visible import words
from tools import messages
from tools.messages import SourceText


def test_every_text_of_the_sources_is_translated_and_compiled() -> None:
    assert list(messages.problems()) == []


def test_a_text_is_found_under_whatever_name_gettext_was_imported() -> None:
    source = """
from django.utils.translation import gettext_lazy as _, ngettext as many
from django.utils.translation import npgettext, pgettext_lazy
from django.utils import translation
_("one" " piece"); many("%(n)d day", "%(n)d days", 2); pgettext_lazy("month", "Open")
npgettext("list", "a", "b", 2); translation.gettext("attribute"); unrelated("not a text")
"""

    assert set(messages.python_texts(source)) == {
        SourceText("one piece"),
        SourceText("%(n)d day", "%(n)d days"),
        SourceText("Open", context="month"),
        SourceText("a", "b", "list"),
        SourceText("attribute"),
    }


def test_a_template_gives_what_django_looks_up() -> None:
    source = """{% translate "50 % of it" %}{% translate 'Open' context 'month' %}
{% include "a.html" with title=_("Inside a tag") %}{{ x|default:_("Inside a filter") }}
{% blocktranslate count n=rows|length trimmed %}
  {{ n }} row
{% plural %}
  {{ n }} rows
{% endblocktranslate %}"""

    assert set(messages.template_texts(source)) == {
        SourceText("50 %% of it"),
        SourceText("Open", context="month"),
        SourceText("Inside a tag"),
        SourceText("Inside a filter"),
        SourceText("%(n)s row", "%(n)s rows"),
    }


def test_a_script_gives_its_plain_strings() -> None:
    source = 'gettext("{days} d {time}", { days }); object.gettext("not ours"); gettext(variable)'

    assert list(messages.script_texts(source)) == [SourceText("{days} d {time}")]


@pytest.mark.parametrize(
    ("msgid", "said", "fault"),
    [
        ("Hello", "", "not translated"),
        ("Hello, %(name)s", "您好", "placeholders differ"),
        ("{days} d", "{day} 天", "placeholders differ"),
        ("<b>Bold</b>", "<i>粗体</i>", "tags differ"),
    ],
)
def test_a_faulty_translation_is_told(msgid: str, said: str, fault: str) -> None:
    assert list(messages.faults(polib.POEntry(msgid=msgid, msgstr=said))) == [fault]


def test_a_translation_may_name_the_number_that_the_english_singular_spells_out() -> None:
    entry = polib.POEntry(msgid="One waits.", msgid_plural="%(n)d wait.", msgstr_plural={0: "%(n)d 个等待。"})

    assert list(messages.faults(entry)) == []


def test_a_merge_keeps_translations_and_drops_texts_that_are_gone() -> None:
    po = polib.POFile()
    po.append(polib.POEntry(msgid="Stays", msgstr="保留"))
    po.append(polib.POEntry(msgid="Gone", msgstr="消失"))
    found = messages.Found()
    found.add(SourceText("Stays"), "portal/a.py")
    found.add(SourceText("New"), "portal/b.py")

    messages.merge(po, found)

    assert [(entry.msgid, entry.msgstr) for entry in po] == [("Stays", "保留"), ("New", "")]


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_wait_reason_is_a_chinese_sentence(code: str) -> None:
    with translation.override("zh-hans"):
        told = sentence({"code": code, "name": "视觉", "next_end": "2026-01-31T12:00:00+00:00"})

    assert set(words(told)) <= {"GPU", "MPS"}
    assert told.endswith("。")


def test_scripts_hand_gettext_nothing_but_plain_strings() -> None:
    strange = {
        file.name: found
        for file in Path("static/js").glob("*.js")
        if (
            found := [
                call
                for call in re.findall(r"\bgettext\([^)\n]{0,40}", file.read_text())
                if call[8] not in "\"'"
            ]
        )
    }

    # Where it is defined; a text in a list that is handed over later is found by nobody and stays English.
    assert strange == {"i18n.js": ["gettext(text, values = {}", "gettext(text"]}
