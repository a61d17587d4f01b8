"""``make mutants``: take each guard of guards.toml away in a copy of the tree and see whether its tests notice.

One at a time, at most three minutes each. Results are kept in ``.mutants.json``: a run that was stopped goes on,
and a mutant whose file and tests are as they were is not run again (``--again`` does).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.mutants.guards import ROOT, Mutant, read

KEPT = ROOT / ".mutants.json"
PATIENCE_S = 180
WANTED = 0.9  # of the guards: below that the command fails
COPIED = ("portal", "scheduler", "nodeagent", "tests", "tools", "docs", "templates", "static", "locale")
FILES = ("pyproject.toml", "manage.py", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "README.md")
KILLED, SURVIVED, BROKEN, HUNG = "killed", "survived", "broken", "hung"


def main() -> int:
    # A shell that starts it in the background lets it ignore Ctrl-C, and a plain end would leave the servers running.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    args = _arguments()
    chosen = [m for m in read() if not args.only or str(m.number) in args.only or m.name in args.only]
    if args.list:
        print("\n".join(f"{m.number:3} {m.name}  ({m.file})" for m in chosen))
        return 0
    kept = {} if args.again or not KEPT.exists() else json.loads(KEPT.read_text())
    due = [m for m in chosen if args.only or kept.get(m.name, {}).get("of") != m.fingerprint(ROOT)]
    if due:
        with tempfile.TemporaryDirectory(prefix="berth-mutants-") as folder:
            _run(due, kept, Path(folder), is_trusting=args.trust)
    return _told(chosen, kept)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="N", help="numbers or names")
    parser.add_argument("--again", action="store_true", help="run also what was run before")
    parser.add_argument("--list", action="store_true", help="only name them")
    parser.add_argument("--trust", action="store_true", help="do not run the tests unchanged first")
    return parser.parse_args()


def _run(due: list[Mutant], kept: dict[str, dict[str, object]], folder: Path, *, is_trusting: bool) -> None:
    tree = folder / "tree"
    for name in COPIED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "e2e"))
    for name in FILES:
        shutil.copy(ROOT / name, tree / name)
    with _Servers(folder / "data") as servers:
        if not is_trusting:
            servers.sound(tree, sorted({test for mutant in due for test in mutant.tests}))
        for mutant in due:
            found, took_s, by = _tried(mutant, tree, servers)
            kept[mutant.name] = {
                "of": mutant.fingerprint(tree), "found": found, "took_s": round(took_s, 1), "by": by,
            }  # fmt: skip
            KEPT.write_text(json.dumps(kept, indent=1))
            print(f"{mutant.number:3} {found:8} {took_s:5.1f} s  {mutant.name}  {by}", flush=True)


def _tried(mutant: Mutant, tree: Path, servers: _Servers) -> tuple[str, float, str]:
    """Return what became of a mutant, how long that took, and the test that noticed."""
    at, began = tree / mutant.file, time.monotonic()
    whole = at.read_text()
    at.write_text(mutant.applied(tree))
    try:
        done = servers.pytest(tree, mutant.tests, is_new=mutant.is_migration, patience_s=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return HUNG, time.monotonic() - began, ""
    finally:
        at.write_text(whole)
    by = next((line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED ")), "")
    # An error while collecting or in a fixture is not what a guard is missed by.
    found = SURVIVED if done.returncode == 0 else KILLED if done.returncode == 1 and by else BROKEN
    if found == BROKEN:
        print(done.stdout[-3000:], file=sys.stderr)
    return found, time.monotonic() - began, by


def _told(chosen: list[Mutant], kept: dict[str, dict[str, object]]) -> int:
    by_kind: dict[str, list[Mutant]] = {}
    for mutant in chosen:
        by_kind.setdefault(str(kept.get(mutant.name, {}).get("found", "not run")), []).append(mutant)
    killed = len(by_kind.pop(KILLED, []))
    for kind, those in sorted(by_kind.items()):
        for mutant in those:
            print(f"{kind}: {mutant.number} {mutant.name} ({mutant.file})")
    print(f"{killed} of {len(chosen)} guards are missed by a test when they are gone.")
    return 0 if killed >= WANTED * len(chosen) else 1


class _Servers:
    """PostgreSQL and Valkey for all mutants, and one test database that they share."""

    def __init__(self, data: Path) -> None:
        os.environ["BERTH_TEST_DATA"] = str(data)
        from tests import engines

        self._engines = engines
        self._own: engines.Engines | None = None

    def __enter__(self) -> _Servers:
        self._own = self._engines.Engines()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._own:
            self._own.stop()

    def sound(self, tree: Path, tests: list[str]) -> None:
        """Run the tests with all guards in place; a test that fails then could not miss any."""
        done = self.pytest(tree, tests, is_new=True, patience_s=3600, more=())
        if done.returncode:
            print(done.stdout[-6000:], file=sys.stderr)
            raise SystemExit("These tests fail with every guard in place: mend them first.")

    def pytest(
        self, tree: Path, tests: tuple[str, ...] | list[str], *, is_new: bool, patience_s: int,
        more: tuple[str, ...] = ("-x",),
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run tests in the copy. A migration is tried in a database of its own, which is made anew."""
        environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree)}
        kept = "--create-db" if is_new else "--reuse-db"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
            kept,
            *more,
            *tests,
        ]
        if is_new and more:
            environ["DATABASE_URL"] = environ["DATABASE_URL"].replace("/berth?", "/berth_migrated?")
        return subprocess.run(
            command, cwd=tree, env=environ, capture_output=True, text=True, timeout=patience_s, check=False
        )


if __name__ == "__main__":
    sys.exit(main())
