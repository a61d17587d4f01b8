"""What a person can read in a piece of HTML: its text and the attributes that are shown or spoken."""

from __future__ import annotations

import re
from html.parser import HTMLParser

SPOKEN = {
    "title",
    "placeholder",
    "aria-label",
    "alt",
    "data-label",
    "data-tip",
    "data-confirm",
    "data-close-label",
    "data-done",
    "data-text-idle",
    "data-text-open",
    "data-text-reconnecting",
    "data-text-offline",
    "data-text-denied",
}
MUTE = {"script", "style", "code", "pre", "svg"}
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"}
SAID_IN_SVG = {"title", "desc", "text"}


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []
        self._open: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        is_foreign = dict(attrs).get("lang") == "en" and tag != "html"
        mute = is_foreign or tag in MUTE or (self._mute() and tag not in SAID_IN_SVG)
        if not is_foreign:
            self.read += [value for name, value in attrs if name in SPOKEN and value]
            self.read += [value for name, value in attrs if (tag, name) == ("optgroup", "label") and value]
        if tag not in VOID:
            self._open.append((tag, mute))

    def handle_endtag(self, tag: str) -> None:
        while self._open:
            if self._open.pop()[0] == tag:
                break

    def handle_data(self, data: str) -> None:
        if data.strip() and not self._mute():
            self.read.append(" ".join(data.split()))

    def _mute(self) -> bool:
        return bool(self._open) and self._open[-1][1]


def visible(html: str) -> list[str]:
    """Return every readable text of the HTML in order; code, scripts and what is marked English are left out."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.read


def words(text: str) -> list[str]:
    """Return the Latin words of a text: two letters or more, no part of a number, an address or an id."""
    # One name in some hundreds has no digit at all.
    text = re.sub(r"\b(?:req|lse|inv)-[0-9a-z]{16}\b", "", text)
    return re.findall(r"(?<![\w.@/-])[A-Za-z][A-Za-z'’]+(?![\w@/]|-[\w-]*\d)", text)
