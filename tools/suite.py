"""``make test``: the whole suite, the browser's tests beside the others; ``make deep``: what that leaves out.

Playwright's event loop and Django's database tests exclude each other in one process, so there are two runs. Neither
fills two cores: browsers, agents and shells are waited for. The browser's tests have a person's patience, therefore
the others give way to them. What they print comes after the others' in one piece.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from tests.browser import BROWSER

# Tests wait for processes a good part of their time: two more workers than cores use it.
MORE_WORKERS, MOST_WORKERS = 2, 6
GIVE_WAY = 5
PYTEST = (sys.executable, "-m", "pytest")


def main() -> int:
    """Run everything, or with ``--deep`` what that leaves out; returns 1 where a test failed."""
    workers = min((os.cpu_count() or 1) + MORE_WORKERS, MOST_WORKERS)
    is_deep = "--deep" in sys.argv[1:]
    # What is deep has few tests, of which some are long: they are dealt out one by one.
    which, dealt = ("deep", "load") if is_deep else ("not deep", "loadfile")
    code = [*PYTEST, "-m", f"not e2e and {which}", "-n", str(workers), "--dist", dealt]
    if BROWSER is None:
        print("no Chromium here: browser tests skipped", flush=True)
        return subprocess.run(code, check=False).returncode
    # One worker has the stack with the demo, the other an empty one.
    pages = [*PYTEST, "-m", which, "-n", "2", "--dist", "loadscope", "tests/e2e"]
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        browser = subprocess.Popen(pages, stdout=said, stderr=subprocess.STDOUT)
        try:
            failed = subprocess.run(["nice", "-n", str(GIVE_WAY), *code], check=False).returncode
            failed = browser.wait() or failed
        finally:
            if browser.poll() is None:
                browser.terminate()
                browser.wait()
            said.seek(0)
            print(said.read(), flush=True)
    print(f"the whole suite: {time.monotonic() - begun:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
