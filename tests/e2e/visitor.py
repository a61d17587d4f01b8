"""A person with a browser: opens pages and remembers whatever went wrong on them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LANGUAGES = {"en": "en", "zh": "zh-hans"}
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# Navigation ends requests that are under way; Chromium calls that a failure.
ABORTED = "net::ERR_ABORTED"


class Visitor:
    """One browser context of one person; ``troubles`` is empty while every page is sound."""

    def __init__(self, context: Any, url: str) -> None:
        self.context, self.url = context, url
        self.troubles: list[str] = []
        self._expected: list[re.Pattern[str]] = []
        context.set_default_timeout(15_000)
        context.on("page", self._listen)

    def _listen(self, page: Any) -> None:
        page.on("console", lambda m: self._note(m.type in ("error", "warning"), f"{m.type}: {m.text}"))
        page.on("pageerror", lambda error: self._note(True, f"script: {error}"))
        page.on("requestfailed", lambda r: self._note(r.failure != ABORTED, f"failed: {r.url} {r.failure}"))
        page.on("response", lambda r: self._note(r.status >= 400, f"answer: {r.status} {r.url}"))

    def _note(self, is_trouble: bool, text: str) -> None:
        if is_trouble and not any(pattern.search(text) for pattern in self._expected):
            self.troubles.append(text)

    def expect(self, pattern: str) -> None:
        """Do not count this as trouble: the test brings it about."""
        self._expected.append(re.compile(pattern))

    def look(self, theme: str, language: str) -> None:
        """Choose theme and language, as the switches would remember them."""
        self.context.add_cookies(
            [
                {"name": "berth_theme", "value": theme, "url": self.url},
                {"name": "django_language", "value": LANGUAGES[language], "url": self.url},
            ]
        )

    def open(self, path: str, *, status: int = 200) -> Any:
        """Return a page at a path, once it has drawn what it shows."""
        page = self.context.new_page()
        self.go(page, path, status=status)
        return page

    def go(self, page: Any, path: str, *, status: int = 200) -> None:
        """Take a page to a path."""
        if status != 200:
            self.expect(rf"(answer: {status} .*{re.escape(path)}|status of {status})")
        answer = page.goto(self.url + path, wait_until="load")
        assert answer.status == status, f"{path} answered {answer.status}"

    def text(self, path: str) -> str:
        """Return a page's HTML without opening it."""
        answer = self.context.request.get(self.url + path)
        assert answer.ok, f"{path} answered {answer.status}"
        return str(answer.text())

    def link(self, path: str, pattern: str) -> str:
        """Return the first address on a page that fits a pattern."""
        found = re.search(rf'href="({pattern})"', self.text(path))
        assert found, f"{path} has no link like {pattern}"
        return found[1]


def barriers(page: Any) -> list[str]:
    """Return what would keep somebody out, as axe-core finds it, however much or little."""
    page.evaluate(AXE.read_text())
    found = page.evaluate(
        "(rules) => axe.run(document, {runOnly: rules, resultTypes: ['violations']})"
        ".then(r => r.violations.map(v => [v.impact, v.id, v.nodes.map(n => n.target.join(' '))]))",
        RULES,
    )
    return [f"{rule} ({impact}): {', '.join(where[:4])}" for impact, rule, where in found]


def overflow(page: Any) -> list[str]:
    """Return the elements that make a page wider than its window; empty when none does."""
    found = page.evaluate(
        """() => {
          const wide = innerWidth;
          if (document.documentElement.scrollWidth <= wide) return [];
          return [...document.body.querySelectorAll('*')]
            .filter(e => e.getBoundingClientRect().right > wide + 1)
            .map(e => e.tagName.toLowerCase() + '.' + (e.getAttribute('class') || '')).slice(0, 6)
            .concat([`page ${document.documentElement.scrollWidth} > ${wide}`]);
        }"""
    )
    return list(found)
