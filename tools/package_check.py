"""``make package-check``: builds both wheels and tries each in an empty environment, away from the checkout.

The agent's comes first: its commands and a simulated start, with no web stack to be found. Then the portal's: the
whole stack starts from it, on the engines of the checkout, and its sign-in page answers with styles and in Chinese.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urljoin

from portal.embedded.discovery import postgres, valkey

ROOT = Path(__file__).resolve().parents[1]
START_S = 180
# The portal needs these; a GPU host must not get one of them.
WEB_STACK = (
    "django",
    "celery",
    "channels",
    "rest_framework",
    "numpy",
    "scipy",
    "sklearn",
    "portal",
    "scheduler",
)


def main() -> int:
    """Run every check; returns the exit code, and says which file or answer was missing."""
    uv = os.environ.get("UV", "uv")
    with tempfile.TemporaryDirectory(prefix="berth-wheel-") as folder:
        work = Path(folder)
        # Ours may name a stack that runs here.
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("BERTH_", "VIRTUAL_ENV"))
        }
        for name in ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE", "PYTHONPATH"):
            env.pop(name, None)
        run([uv, "build", "--quiet", "--all-packages", "--wheel", "--out-dir", work / "dist"], ROOT, env)

        agent = environment(uv, work, env, "agent", "berth_agent-*.whl")
        check_agent(agent, work, env)
        print("berth-agent: complete, and without a web stack", flush=True)

        portal = environment(uv, work, env, "portal", "berth*.whl")
        check_portal(portal, work, env)
        print("berth: complete, and it starts", flush=True)
    return 0


def environment(uv: str, work: Path, env: Mapping[str, str], name: str, wheels: str) -> Path:
    """Install these wheels into an environment of their own; returns its folder of programs."""
    where = work / name
    run([uv, "venv", "--quiet", "--python", sys.executable, where], work, env)
    found = sorted((work / "dist").glob(wheels))
    run([uv, "pip", "install", "--quiet", "--python", where / "bin/python", *found], work, env)
    return where / "bin"


def check_agent(programs: Path, work: Path, env: Mapping[str, str]) -> None:
    """Ask the agent for its help and its host, start it on simulated devices and stop it."""
    code = f"from importlib.util import find_spec as f; print([n for n in {WEB_STACK!r} if f(n)])"
    assert run([programs / "python", "-I", "-c", code], work, env).strip() == "[]"
    run([programs / "berth-agent", "--help"], work, env)
    simulated = ["--driver", "simulated", "--board", "h100-80gb", "--count", "2"]
    said = run([programs / "berth-agent", "check", "--json", *simulated], work, env)
    assert [one["model"] for one in json.loads(said)["devices"]] == ["h100-80gb"] * 2, said
    run([programs / "berth-agent", "soak", "--seed", "1", "--rounds", "2"], work, env)
    # The portal is not there: the agent keeps trying until it is told to stop.
    state = work / "state"
    started = [
        programs / "berth-agent",
        "run",
        "--portal",
        "ws://127.0.0.1:9",
        "--node",
        "gpu-01",
        "--state",
        state,
    ]
    with background([*started, *simulated], work, env, "agent.log") as agent:
        agent.until(lambda: "127.0.0.1:9" in agent.said())
    assert agent.code == 0, agent.said()


def check_portal(programs: Path, work: Path, env: Mapping[str, str]) -> None:
    """Start everything from the wheel on an empty database and read the sign-in page as a browser would."""
    run([programs / "berth", "--help"], work, env)
    run([programs / "berth-manage", "check"], work, env)
    run([programs / "berth-agent", "--help"], work, env)
    stack = {
        **env,
        "BERTH_DATA": str(work / "data"),
        "BERTH_PORT": "18700",
        "BERTH_DEMO": "0",
        "BERTH_PG_BIN": str(postgres({}).bin),
        "BERTH_VALKEY_BIN": str(valkey({}).program),
    }
    with background(
        [programs / "python", "-m", "portal.embedded", "up"], work, stack, "portal.log"
    ) as portal:
        portal.until(lambda: "Berth is up" in portal.said())
        url = next(word for word in portal.said().split() if word.startswith("http://"))
        page = read(urljoin(url, "/sign-in/"), "en")
        assert "Sign in" in page, page
        chinese = read(urljoin(url, "/sign-in/"), "zh-hans")
        assert "登录" in chinese, chinese
        style = next(word for word in page.split('"') if word.endswith(".css"))
        assert read(urljoin(url, style), "en")
        if (ROOT / "site/index.html").is_file():
            assert "<title>" in read(urljoin(url, "/docs/"), "en")
    assert portal.code == 0, portal.said()


def read(url: str, language: str) -> str:
    """Return what an address answers with 200; raises HTTPError for 400 and up."""
    asked = urllib.request.Request(url, headers={"Accept-Language": language})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return str(answer.read().decode())


def run(command: list[str | Path], cwd: Path, env: Mapping[str, str]) -> str:
    """Return what a command said; raises SystemExit with its words when it fails."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


class background:  # noqa: N801 - read as a statement: with background(...) as agent
    """A program that runs for the length of a block and is then interrupted as by Ctrl-C."""

    def __init__(self, command: list[str | Path], cwd: Path, env: Mapping[str, str], log: str) -> None:
        self._log = cwd / log
        self.code: int | None = None
        with self._log.open("w") as out:
            self._process = subprocess.Popen(
                command, cwd=cwd, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def said(self) -> str:
        """Return everything it wrote so far."""
        return self._log.read_text()

    def until(self, is_there: Callable[[], bool]) -> None:
        """Wait for something; raises SystemExit when the program ends first or it takes too long."""
        end = time.monotonic() + START_S
        while not is_there():
            if self._process.poll() is not None or time.monotonic() > end:
                sys.exit(f"it did not start:\n{self.said()}")
            time.sleep(0.1)

    def __enter__(self) -> background:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        self.code = self._process.wait(60)


if __name__ == "__main__":
    sys.exit(main())
