"""One name, one meaning, in the field's words: what a module or class is called says what it is."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [
    path.relative_to(ROOT)
    for folder in ("portal", "scheduler", "nodeagent", "tools")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "migrations" not in path.parts
]
# Django looks for a class of this name in every command.
NAMED_BY_A_FRAMEWORK = {"Command"}

# Products, formats and published rules: they are called as others call them.
NAMES = """
amd api apps ascend asgi auth binpack cambricon cdi celery cgroups cli cndev csv dcgm debian drf en fgd focus gpm gpu
hans hygon ical json kfd kubeconfig nodeagent nvml openb portal postgres proc prr scheduler shell smi sql systemd
urls uuids valkey web zh
"""
# Words that mean in a module's name what they mean in any book, a line each so that changes meet rarely.
PLAIN = (ROOT / "tests/docs/plain_words.txt").read_text()


def words_of(name: str) -> list[str]:
    return [word for word in name.lower().split("_") if word]


def forms(word: str) -> set[str]:
    """Return a word with its other number."""
    found = {word, f"{word}s", f"{word}es", word.removesuffix("s"), word.removesuffix("es")}
    return found | {re.sub("y$", "ies", word), re.sub("ies$", "y", word)}


def module_words() -> dict[str, str]:
    """Return each word of a module's or folder's name, with one place where it stands."""
    found = {}
    for path in FILES:
        for name in (*path.parts[:-1], path.stem):
            if not name.startswith("__"):
                found |= {word: str(path) for word in words_of(name)}
    return found


def any_form(words: Iterable[str]) -> set[str]:
    return {form for word in words for form in forms(word)}


def glossary() -> set[str]:
    rows = (line for line in (ROOT / "docs/glossary.md").read_text().splitlines() if line.startswith("| "))
    return any_form(word for row in rows for word in re.findall(r"[a-z]+", row.split("|")[1].lower()))


def strangers(words: dict[str, str]) -> dict[str, str]:
    known = glossary() | any_form(NAMES.split()) | any_form(PLAIN.split())
    return {word: place for word, place in words.items() if word not in known}


def classes() -> Counter[str]:
    trees = (ast.parse((ROOT / path).read_text()) for path in FILES)
    names = (node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    return Counter(name for name in names if not name.startswith("_"))


def test_every_module_is_called_by_a_word_of_the_glossary_or_a_plain_one() -> None:
    assert strangers(module_words()) == {}


def test_a_private_word_would_be_seen() -> None:
    assert strangers({"ailments": "x.py", "lease": "y.py"}) == {"ailments": "x.py"}


def test_no_word_stands_in_two_lists() -> None:
    plain = [*NAMES.split(), *PLAIN.split()]

    assert sorted(plain) == sorted(set(plain))
    assert set(PLAIN.split()) & glossary() == set()


def test_no_public_class_name_occurs_twice_in_the_tree() -> None:
    twice = {name for name, times in classes().items() if times > 1}

    assert twice - NAMED_BY_A_FRAMEWORK == set()


def test_no_module_of_agent_and_engine_is_longer_than_500_lines() -> None:
    long = {
        str(path)
        for path in FILES
        if (path.parts[0] == "nodeagent" or path.parts[:2] == ("scheduler", "engine"))
        and len((ROOT / path).read_text().splitlines()) > 500
    }

    assert long == set()
