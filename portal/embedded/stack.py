from __future__ import annotations

import http.client
import os
import secrets
import shlex
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from portal.embedded import demo, discovery, fingerprint, notebook, postgres, programs, screen, valkey
from portal.embedded.errors import CannotStart
from portal.embedded.lock import FolderLock
from portal.embedded.places import CHECKOUT, engine_account, lay_out
from portal.embedded.ports import is_loopback, listen, next_port, wanted_port
from portal.embedded.process import Program
from portal.embedded.supervisor import StopAsked, Supervisor

WORKER_PROCESSES = 2
# Exit codes of the agent that no new attempt can change: wrong options, no driver, refused by the portal.
AGENT_GIVES_UP = (2, 3, 4)


class Stack:
    """The whole of Berth on this machine, from one data folder."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """Take the folder and a port; raise CannotStart when somebody else has it."""
        self.began = time.monotonic()
        self.account = engine_account()
        self.places = lay_out(Path(env.get("BERTH_DATA") or CHECKOUT / ".berth"), self.account)
        self.lock = FolderLock(self.places.data)
        self.env = env
        self.host = env.get("BERTH_HOST") or "127.0.0.1"
        wanted = wanted_port(env.get("BERTH_PORT"))
        self.socket = listen(self.host, wanted)
        self.port: int = self.socket.getsockname()[1]
        # A gateway of one's own is named by hand; then none is started here.
        self.gateway_socket = None if env.get("BERTH_GATEWAYS") else listen(self.host, next_port(self.port))
        self.supervisor = Supervisor(self.places.logs, self.lock.close)
        self.demo_nodes: list[demo.DemoNode] = []
        if self.port != wanted:
            screen.line("port", f"{wanted} is taken, using {self.port}")

    @property
    def url(self) -> str:
        """Where a browser on this machine finds the portal."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def own_database(self) -> bool:
        """Whether PostgreSQL is ours to start."""
        return not self.env.get("DATABASE_URL")

    @property
    def own_broker(self) -> bool:
        """Whether Valkey is ours to start."""
        return not self.env.get("REDIS_URL")

    def run(self) -> int:
        """Start everything, keep it up, stop it cleanly. Returns the exit status."""
        status = 0
        try:
            self._start()
            self.supervisor.watch()
        except StopAsked:
            pass
        except CannotStart as reason:
            screen.title(f"Berth cannot start: {reason}")
            status = 1
        finally:
            self._stop()
        return status

    def _start(self) -> None:
        self._publish_environment()
        self._start_engines()
        self._load_portal()
        if programs.is_demo():
            self.demo_nodes = demo.nodes(programs.demo_fleet())
        self._await_engines()
        self._prepare_database()
        self._start_portal()
        self._start_agents()

    def _load_portal(self) -> None:
        try:
            programs.preload()
        except Exception as error:
            if type(error).__name__ != "ImproperlyConfigured":  # Django's refusals say what to change
                traceback.print_exc()
            raise CannotStart("code", f"the portal's code or settings do not load ({error}).") from error
        if threading.active_count() > 1:
            raise CannotStart("threads", "A module started a thread while it was loaded: forks could hang.")

    def _publish_environment(self) -> None:
        """Set what settings.py reads, for this process and so for every fork."""
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
        os.environ["BERTH_DATA"] = str(self.places.data)
        os.environ.setdefault("BERTH_DEMO", "1")
        if os.environ["BERTH_DEMO"] != "0":
            os.environ.setdefault("BERTH_ACCEPT_NODES", "auto")
        if not (self.env.get("BERTH_SECRET_KEY") or self.env.get("BERTH_SECRET_KEY_FILE")):
            os.environ["BERTH_SECRET_KEY_FILE"] = str(secret_key_file(self.places.secret_key))
        if self.own_database:
            os.environ["DATABASE_URL"] = self.places.database_url()
        if self.own_broker:
            os.environ["REDIS_URL"] = self.places.redis_url()
        if self.gateway_socket is not None:
            gateway_port = self.gateway_socket.getsockname()[1]
            os.environ["BERTH_GATEWAYS"] = f":{gateway_port}"
            # Browsers lead every name below localhost to their own machine.
            os.environ.setdefault("BERTH_APPS_DOMAIN", f"*.localhost:{gateway_port}")
        os.environ["BERTH_TERMINALS"] = terminals_of(self.host, self.env)

    def _start_engines(self) -> None:
        if self.own_database:
            engine = postgres.choose(self.env, self.places.cluster, self.account)
            self.supervisor.start(self._postgres_program(engine))
            screen.line(
                "database", f"PostgreSQL {engine.version} ({engine.source}), data in {self.places.cluster}"
            )
        if self.own_broker:
            engine = discovery.valkey(self.env)
            self.supervisor.start(self._valkey_program(engine))
            screen.line("broker", f"Valkey {engine.version} ({engine.source})")

    def _postgres_program(self, engine: discovery.Engine) -> Program:
        places = self.places
        return Program(
            "postgres",
            lambda: postgres.run(engine, places.cluster, places.postgres_sockets, postgres.SETTINGS),
            # SIGINT is its fast stop: sessions are ended, nothing is lost.
            stop_signal=signal.SIGINT,
            stop_within_s=30,
            orphan_signal=signal.SIGINT,
            account=self.account,
            folder=places.postgres,
        )

    def _valkey_program(self, engine: discovery.Engine) -> Program:
        places = self.places
        return Program(
            "valkey",
            lambda: valkey.run(engine, places.valkey_socket, places.data),
            orphan_signal=signal.SIGTERM,
            folder=places.data,
        )

    def _await_engines(self) -> None:
        if self.own_database:
            self.supervisor.wait_for(self._postgres_is_ready, "postgres", 60)
        if self.own_broker:
            self.supervisor.wait_for(lambda: valkey.is_ready(self.places.valkey_socket), "valkey", 15)
        self._tell("stores", "ready")

    def _postgres_is_ready(self) -> bool:
        pid = self.supervisor.running.get("postgres")
        return pid is not None and postgres.is_ready(self.places.cluster, pid)

    def _prepare_database(self) -> None:
        # Inside the cluster, so that it goes with the data it speaks of.
        mark = self.places.cluster / "berth_migrated"
        figure = fingerprint.of_installed()
        if self.own_database and mark.exists() and mark.read_text() == figure:
            self._tell("tables", "up to date")
            return
        told = self.places.data / "demo.txt"
        self.supervisor.run_once(
            Program(
                "migrate",
                lambda: programs.prepare_database(
                    own_server=self.own_database,
                    demo=bool(self.demo_nodes),
                    enrolment=self.places.enrolment,
                    told=told,
                ),
            ),
            within_s=300,
        )
        if self.own_database:
            mark.write_text(figure)
        self._tell("tables", "migrated, demo story laid down" if told.exists() else "migrated")

    def _start_portal(self) -> None:
        self.supervisor.start(
            Program("web", lambda: programs.serve_web(self.socket), stop_within_s=8, folder=CHECKOUT)
        )
        self.supervisor.wait_for(self._web_answers, "web", 60)
        self._tell("web", "answers")
        self.supervisor.start(
            Program("worker", lambda: programs.work(WORKER_PROCESSES), stop_within_s=15, folder=CHECKOUT)
        )
        self.supervisor.start(Program("beat", programs.beat, stop_within_s=5, folder=CHECKOUT))
        if self.gateway_socket is not None:
            sock = self.gateway_socket
            self.supervisor.start(
                Program("gateway", lambda: programs.serve_gateway(sock), stop_within_s=5, folder=CHECKOUT)
            )
        self.lock.describe(f"process {os.getpid()}, {self.url}")
        self._welcome()

    def _web_answers(self) -> bool:
        return 0 < self._answer_of("/healthz") < 500

    def _answer_of(self, path: str) -> int:
        """Return the status that the portal answers a path with; 0 for no answer."""
        host = self.url.removeprefix("http://").rsplit(":", 1)[0].strip("[]")
        connection = http.client.HTTPConnection(host, self.port, timeout=2)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def _start_agents(self) -> None:
        for node in self.demo_nodes:
            state = self.places.agents / node.name
            token = self.places.enrolment / f"{node.name}.token"
            if node.driver != "simulated":
                self._enrol_own_gpus(node, state, token)
            arguments = [*node.arguments(self.port, state, token), *self._app_options(node)]
            self.supervisor.start(
                Program(
                    node.name,
                    partial(programs.run_agent, arguments),
                    stop_within_s=5,
                    orphan_signal=signal.SIGTERM,
                    final=AGENT_GIVES_UP,
                    folder=CHECKOUT,
                )
            )
        if self.demo_nodes:
            self._tell("nodes", ", ".join(node.name for node in self.demo_nodes))

    def _app_options(self, node: demo.DemoNode) -> list[str]:
        """Where a played node finds the programs of apps, and what brings the notebook when it is first wanted."""
        if node.driver != "simulated":
            return []
        installer = f"{shlex.quote(sys.executable)} -m portal.embedded.notebook"
        return ["--app-path", notebook.path(os.environ), "--app-installer", installer]

    def _enrol_own_gpus(self, node: demo.DemoNode, state: Path, token: Path) -> None:
        """Give this machine's real GPUs a token, once; a refusal costs only this node."""
        if state.exists() or token.exists():
            return
        try:
            self.supervisor.run_once(
                Program(
                    "enrol", lambda: programs.manage("enrol_node", node.name, "--token-file", str(token))
                ),
                30,
            )
        except CannotStart as reason:
            screen.line(node.name, f"not enrolled: {reason}")

    def _tell(self, name: str, text: str) -> None:
        screen.line(name, f"{text} ({time.monotonic() - self.began:.1f} s)")

    def _welcome(self) -> None:
        screen.title(f"\nBerth is up: {self.url}   (Ctrl-C stops it, logs in {self.places.logs})")
        told = self.places.data / "demo.txt"
        if told.exists() and programs.is_demo():
            screen.title(told.read_text().rstrip() + "\n")
        elif self._is_empty():
            screen.title(
                f"It is empty. Set it up at {self.url}/setup/ with the code {programs.setup_code()}\n"
            )

    def _is_empty(self) -> bool:
        """Whether there is no organisation yet: then the setup page shows its form instead of going to sign-in."""
        return self._answer_of("/setup/") == 200

    def _stop(self) -> None:
        screen.title("Stopping")
        nodes = [node.name for node in self.demo_nodes]
        self.supervisor.stop([[*nodes, "beat"], ["worker", "gateway"], ["web"], ["valkey"], ["postgres"]])
        self.socket.close()
        if self.gateway_socket is not None:
            self.gateway_socket.close()
        shutil.rmtree(self.places.sockets, ignore_errors=True)
        self.lock.close()
        screen.title("Stopped")


def terminals_of(host: str, env: Mapping[str, str]) -> str:
    """Return BERTH_TERMINALS as set, else 1 on this machine alone: everybody knows the demo's passwords."""
    return env.get("BERTH_TERMINALS") or ("1" if is_loopback(host) else "0")


def secret_key_file(path: Path) -> Path:
    """The file with the portal's secret key; made at the first start, readable by its owner alone."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path
    with os.fdopen(file, "w") as out:
        out.write(secrets.token_urlsafe(64))
    return path


def up(env: Mapping[str, str]) -> int:
    """`make up`: run the stack in this terminal. Returns the exit status."""
    try:
        stack = Stack(env)
    except CannotStart as reason:
        sys.stderr.write(f"Berth cannot start: {reason}\n")
        return 1
    return stack.run()
