"""Real PostgreSQL and Valkey for the tests, started only when a collected test needs them.

Loaded by ``-p tests.engines``. Addresses are fixed while this module is imported, because pytest-django
reads the settings before any hook runs; the servers start later. DATABASE_URL and REDIS_URL, when set
by the caller, are used as they are. Workers of pytest-xdist inherit the servers of the controller; each
has its own database (``test_berth_gwN``) and its own Valkey number.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from importlib.util import cache_from_source
from pathlib import Path
from typing import IO

import pytest

from portal.embedded import discovery, postgres, valkey
from portal.embedded.places import StackPaths, engine_account, lay_out, socket_folder
from portal.embedded.process import Child, Program, last_lines, spawn

VALKEY_NUMBERS = 64
NEED_SERVERS = {"db", "transactional_db", "django_db_setup", "live_server", "valkey_url"}

# Workers fill the cores already; threads of the training library that wait for each other only burn them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_worker = os.environ.get("PYTEST_XDIST_WORKER", "")
_data = Path(
    os.environ.get("BERTH_TEST_DATA") or Path(tempfile.gettempdir()) / f"berth-tests-{secrets.token_hex(4)}"
)


def _fix_addresses() -> tuple[bool, bool, StackPaths]:
    """Set what settings.py will read; returns which servers are ours to start, and where they lie."""
    data = Path(os.path.realpath(_data))
    planned = StackPaths(data, data / "postgres", socket_folder(data, Path(tempfile.gettempdir())))
    ours = "DATABASE_URL" not in os.environ, "REDIS_URL" not in os.environ
    os.environ["BERTH_TEST_DATA"] = str(data)
    os.environ.setdefault("DATABASE_URL", planned.database_url())
    os.environ.setdefault("REDIS_URL", planned.redis_url())
    os.environ.setdefault("BERTH_DATA", str(data / "berth"))
    if _worker and f"unix://{planned.valkey_socket}" in os.environ["REDIS_URL"]:
        os.environ["REDIS_URL"] = planned.redis_url(
            1 + int(_worker.removeprefix("gw")) % (VALKEY_NUMBERS - 1)
        )
    return *ours, planned


_own_database, _own_broker, _planned = _fix_addresses()


def _go_ahead() -> IO[str] | None:
    """Where nothing is compiled yet, wait until another worker has collected, or return what makes others wait.

    Each would compile SciPy, Django and this tree for itself, which takes 16 s of processor. The lock ends with its
    process.
    """
    tests = Path(cache_from_source(__file__)).parent
    if not _worker or not _data.is_dir() or any(tests.glob("conftest.*-pytest-*.pyc")):
        return None
    lock = (_data / "collecting.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    if (_data / "collected").exists():
        lock.close()
        return None
    return lock


_ahead = _go_ahead()


class Engines:
    """The servers of one test session; they lose their data at the end, so nothing waits for the disk."""

    def __init__(self) -> None:
        """Start both and return when they answer."""
        self._account = engine_account()
        self._places = lay_out(_data, self._account)
        self._children: list[Child] = []
        if _own_database:
            self._start_postgres()
        if _own_broker:
            self._start_valkey()
        if _own_database:
            self._await("postgres", self._postgres_is_ready)
        if _own_broker:
            self._await("valkey", lambda: valkey.is_ready(self._places.valkey_socket))

    def _start_postgres(self) -> None:
        places = self._places
        engine = postgres.choose(os.environ, places.cluster, self._account)
        # Sessions that race for the same slices do deadlock: the loser need not wait a second to learn it.
        settings = {**postgres.SETTINGS, **postgres.CARELESS, "deadlock_timeout": "100ms"}
        self._spawn(
            Program(
                "postgres",
                lambda: postgres.run(engine, places.cluster, places.postgres_sockets, settings),
                stop_signal=signal.SIGQUIT,
                orphan_signal=signal.SIGQUIT,
                account=self._account,
                folder=places.postgres,
            )
        )

    def _start_valkey(self) -> None:
        places, engine = self._places, discovery.valkey(os.environ)
        self._spawn(
            Program(
                "valkey",
                lambda: valkey.run(engine, places.valkey_socket, places.data, databases=VALKEY_NUMBERS),
            )
        )

    def _spawn(self, program: Program) -> None:
        self._children.append(spawn(program, self._log(program.name), lambda: None))

    def _log(self, name: str) -> Path:
        return self._places.logs / f"{name}.log"

    def _postgres_is_ready(self) -> bool:
        return postgres.is_ready(self._places.cluster, self._children[0].pid)

    def _await(self, name: str, ready: Callable[[], bool]) -> None:
        until = time.monotonic() + 60
        while not ready():
            gone = next((c for c in self._children if c.program.name == name and c.poll() is not None), None)
            if gone or time.monotonic() > until:
                said = "\n".join(last_lines(self._log(name)))
                self.stop()
                pytest.exit(f"{name} did not start for the tests:\n{said}", returncode=3)
            time.sleep(0.01)

    def stop(self) -> None:
        """End both servers and remove everything they wrote."""
        for child in self._children:
            child.send(child.program.stop_signal)
        for child in self._children:
            child.wait()
        for folder in (self._places.data, self._places.sockets, self._places.postgres):
            shutil.rmtree(folder, ignore_errors=True)


_engines = pytest.StashKey[Engines]()


def _start(config: pytest.Config) -> None:
    if (_own_database or _own_broker) and not _worker and _engines not in config.stash:
        config.stash[_engines] = Engines()


def pytest_configure(config: pytest.Config) -> None:
    """Hush what is meant to be so: static files come from their sources, nothing is collected."""
    config.addinivalue_line("filterwarnings", "ignore:No directory at:UserWarning")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start at once under pytest-xdist: there the controller never sees the collected tests.

    Browser tests by themselves have stacks of their own.
    """
    is_shared = session.config.getoption("dist", "no") != "no" and session.config.args != ["tests/e2e"]
    if is_shared and not session.config.option.collectonly:
        _start(session.config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put browser tests last: Playwright keeps an event loop running, beside which Django refuses to query."""
    items.sort(key=lambda item: item.get_closest_marker("e2e") is not None)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Start when a collected test needs it; a run of engine or agent tests stays without servers."""
    if _ahead and not _ahead.closed:
        (_data / "collected").touch()
        _ahead.close()
    if not session.config.option.collectonly and any(_needs_servers(item) for item in session.items):
        _start(session.config)


def _needs_servers(item: pytest.Item) -> bool:
    if item.get_closest_marker("django_db"):
        return True
    if NEED_SERVERS & set(getattr(item, "fixturenames", ())):
        return True
    return bool(getattr(getattr(item, "cls", None), "databases", None))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop what was started, also after Ctrl-C."""
    engines = config.stash.get(_engines, None)
    if engines:
        engines.stop()


def shared_folder() -> Path | None:
    """Return the folder of a session on a server of its own; None elsewhere."""
    return _planned.data if os.environ["DATABASE_URL"] == _planned.database_url() else None


@pytest.fixture
def valkey_url() -> str:
    """Address of this worker's Valkey database; asking for it brings the servers up."""
    return os.environ["REDIS_URL"]
