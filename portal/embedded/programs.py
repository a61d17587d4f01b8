from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import signal
import socket
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

from portal.embedded.demo import DemoBoard
from portal.embedded.process import die_with_parent

# Read here once and shared by every fork: what the first request, task or migration would import.
MODULES = (
    "uvicorn",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "uvicorn.lifespan.on",
    "celery.apps.worker",
    "celery.apps.beat",
    "celery.concurrency.prefork",
    "celery.fixups.django",
    "kombu.transport.redis",
    "psycopg_pool",
    "django.db.backends.postgresql.base",
    "django.core.cache.backends.redis",
    "portal.accounts.sessions",
    "portal.asgi",
    "portal.celery",
    "portal.gateway.application",
)


def preload() -> None:
    """Load the portal into this process without opening a connection or starting a thread.

    The collector is off meanwhile, and what was loaded is then frozen: a collection in a fork would
    touch every object and so copy every shared page.
    """
    gc.disable()
    # Static files come from where they are kept; nothing is collected into a folder here.
    warnings.filterwarnings("ignore", message="No directory at")
    importlib.import_module("django").setup()
    for name in MODULES:
        importlib.import_module(name)
    importlib.import_module("portal.celery").app.loader.import_default_modules()
    importlib.import_module("django.urls").get_resolver().url_patterns  # noqa: B018 - reading it fills it
    gc.collect()
    gc.freeze()


def is_demo() -> bool:
    """Whether BERTH_DEMO is on, as the portal reads it."""
    return bool(importlib.import_module("django.conf").settings.DEMO)


def setup_code() -> str:
    """The code that the setup page of an empty installation asks for."""
    return str(importlib.import_module("portal.catalog.first_start").setup_code())


def demo_fleet() -> tuple[DemoBoard, ...]:
    """The nodes of the demo story, from the same place as its rows in the database."""
    fleet: tuple[DemoBoard, ...] = importlib.import_module("portal.demo.organisation").FLEET
    return fleet


def serve_web(sock: socket.socket) -> int:
    """Answer HTTP and WebSockets on the supervisor's socket until told to stop."""
    return _serve("portal.asgi", sock)


def serve_gateway(sock: socket.socket) -> int:
    """Carry terminals between browsers and agents until told to stop."""
    return _serve("portal.gateway.application", sock)


def _serve(module: str, sock: socket.socket) -> int:
    gc.enable()
    uvicorn = importlib.import_module("uvicorn")
    config = uvicorn.Config(
        importlib.import_module(module).application,
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=importlib.import_module("nodeagent.protocol.messages").MAX_FRAME_BYTES,
        access_log=False,
        log_config=None,
        server_header=False,
        # Who called is settled by portal.common.addresses; the server itself would believe any local process.
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    server.run(sockets=[sock])
    return 0 if server.started else 1


def work(concurrency: int) -> int:
    """Run Celery tasks until told to stop; a running task is finished first."""
    gc.enable()
    signals = importlib.import_module("celery.signals")
    parent = os.getpid()
    signals.worker_process_init.connect(lambda **_: die_with_parent(signal.SIGKILL, parent), weak=False)
    app = importlib.import_module("portal.celery").app
    worker = app.Worker(
        hostname=f"embedded@{socket.gethostname()}",
        pool="prefork",
        concurrency=concurrency,
        loglevel="INFO",
        # One worker only: nobody to greet, and greeting costs a second at start.
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    worker.start()
    return int(worker.exitcode or 0)


def beat() -> int:
    """Send due tasks. The schedule lives in memory: every task is a nudge and may be sent early."""
    gc.enable()
    app = importlib.import_module("portal.celery").app
    app.Beat(scheduler_cls="celery.beat:Scheduler", loglevel="INFO", quiet=True).run()
    return 0


def manage(*arguments: str) -> int:
    """Run one management command in this process."""
    call = importlib.import_module("django.core.management").call_command
    call(*arguments)
    return 0


def prepare_database(*, own_server: bool, demo: bool, enrolment: Path, told: Path) -> int:
    """Create what the database lacks: itself, its tables, and the demo story when it was empty.

    ``told`` receives what the demo seed has to say to people (its sign-ins). Safe to repeat.
    """
    if own_server:
        _create_database()
    was_empty = not _has_tables()
    # On a server of others our programs of PostgreSQL may be of another version.
    migrate = functools.partial(manage, "migrate", "--no-input", "--verbosity", "0")
    if own_server and was_empty:
        fill = importlib.import_module("portal.embedded.schema_cache").fill
        fill(os.environ["DATABASE_URL"], os.environ, migrate)
    else:
        migrate()
    if demo and (was_empty or (own_server and not told.exists())):
        told.with_suffix(".part").touch(mode=0o600)
        with told.with_suffix(".part").open("w") as file, contextlib.redirect_stdout(file):
            manage("seed_demo", "--enrol-dir", str(enrolment))
        told.with_suffix(".part").rename(told)
    return 0


def _create_database() -> None:
    psycopg = importlib.import_module("psycopg")
    url = os.environ["DATABASE_URL"].replace("/berth?", "/postgres?")
    with psycopg.connect(url, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = 'berth'").fetchone():
            connection.execute("CREATE DATABASE berth")


def _has_tables() -> bool:
    connection = importlib.import_module("django.db").connection
    return "django_migrations" in connection.introspection.table_names()


def run_agent(arguments: Iterable[str]) -> int:
    """Become a node agent: a fresh program that knows neither the database nor the broker."""
    hidden = {"DATABASE_URL", "REDIS_URL", "BERTH_SECRET_KEY_FILE", "BERTH_SECRET_KEY"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    os.execve(sys.executable, [sys.executable, "-m", "nodeagent", *arguments], environment)
