"""The agent on 8 devices × 7 slices: one round, slow devices, ends of leases, and a second of every second.

Devices, units and processes are simulated, the agent on them is the real one. What a reboot loses lies in memory
(as /run does), journal and key lie on the disk.
"""

from __future__ import annotations

import asyncio
import cProfile
import logging
import pstats
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from nodeagent.drivers.base import Driver
from nodeagent.host.clock import boot_clock
from nodeagent.link import sampler
from nodeagent.processes.guard import Guard
from nodeagent.protocol.boards import device_facts
from nodeagent.protocol.codec import encode
from nodeagent.protocol.messages import Desired, DesiredLease, DesiredSlot, DeviceFact
from nodeagent.reconcile.holdings import scan_scope
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.lease_records import GONE, READY
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.sequential import work_through
from nodeagent.reconcile.steps import read_health
from nodeagent.reconcile.worker import Worker
from nodeagent.runtimes.names import unit_of
from nodeagent.simulation.devices.driver import SimulatedDriver
from nodeagent.simulation.full_host import PEOPLE, FullHost
from tools.bench import agent_process

NODE, BOARD, CARDS, SLICES = "gpu-01", "h100-80gb", 8, 7
ROUNDS = 15
MAKE, SWITCH = "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlDeviceSetMigMode"
GRACES_S = (0, 2, 5)
SECONDS = 200
FAST_FOLDER = Path("/dev/shm")


@dataclass(slots=True)
class BenchHost:
    """A host with an agent's mind on it; ``home`` None is the plain simulated driver, which plays holders itself."""

    driver: Driver
    reconciler: Reconciler
    facts: tuple[DeviceFact, ...]
    home: FullHost | None
    revision: int = 0

    def want(self, *leases: DesiredLease) -> Desired:
        """Return the next desired state."""
        self.revision += 1
        return Desired(NODE, 1, self.revision, leases)


def measure() -> dict[str, Any]:
    """Measure everything; takes about four minutes."""
    logging.disable(logging.CRITICAL)
    found: dict[str, Any] = {
        "56 new slices, plain driver": _rounds("simulated"),
        "56 new slices, devices and units": _rounds("nvml"),
        "the same, a thread per device": _threads(),
        "1 s per slice, 8 devices": asyncio.run(_slow(MAKE)),
        "1 s per MIG mode and per slice, 8 devices": asyncio.run(_slow(SWITCH, MAKE)),
        "end to free": asyncio.run(_ends()),
        "a second of 56 busy slices": _seconds(),
    }
    logging.disable(logging.NOTSET)
    for driver in ("simulated", "simulated-nvml"):
        found[f"agent at 1 Hz, {driver}"] = agent_process.measure(driver, _leases)
    return found


def _leases(slices: int = SLICES, grace_s: int = 5) -> tuple[DesiredLease, ...]:
    """Return one lease per slice, the first ``slices`` of each device."""
    return tuple(
        DesiredLease(
            lease=f"lse-{fact.index}-{start}",
            generation=1,
            team="vision",
            user=PEOPLE[start % len(PEOPLE)],
            remaining_s=36_000,
            grace_s=grace_s,
            slots=(DesiredSlot(fact.uuid, "mig", start, 1, 0, 9_728, "1g.10gb"),),
            load_pattern="steady",
        )
        for fact in device_facts(NODE, BOARD, CARDS)
        for start in range(slices)
    )


@contextmanager
def _host(kind: str, *, listens: bool = False) -> Iterator[BenchHost]:
    fast = str(FAST_FOLDER) if FAST_FOLDER.is_dir() else None
    with tempfile.TemporaryDirectory() as state, tempfile.TemporaryDirectory(dir=fast) as run:
        driver: Driver
        home, runtime = None, None
        if kind == "nvml":
            home = FullHost(NODE, [BOARD] * CARDS, Path(run), boot_clock)
            driver, runtime = home.driver(listens=listens), home.runtime()
        else:
            driver = SimulatedDriver(device_facts(NODE, BOARD, CARDS), Path(run), "boot-1", clock=boot_clock)
        reconciler = Reconciler(NODE, driver, Journal(Path(state) / "journal.jsonl"), boot_clock(), runtime)
        yield BenchHost(driver, reconciler, tuple(driver.inventory()), home)
        driver.close()
        if home is not None:
            home.host.end_agent()


def _rounds(kind: str) -> dict[str, Any]:
    """Time from a desired state to all ready on one thread, and a changed frame on which nothing is to be done."""
    made, cpu, idle = [], [], []
    for _ in range(ROUNDS):
        with _host(kind) as host:
            begin, spent = time.perf_counter(), time.process_time()
            host.reconciler.accept(host.want(*_leases()), boot_clock())
            work_through(host.reconciler, host.driver, boot_clock)
            made.append(time.perf_counter() - begin)
            cpu.append(time.process_time() - spent)
            _require(all(work.phase == READY for work in host.reconciler.lease_records.values()))
            begin = time.perf_counter()
            host.reconciler.accept(host.want(*_leases()), boot_clock())
            work_through(host.reconciler, host.driver, boot_clock)
            idle.append(time.perf_counter() - begin)
    return {"ready_ms": _ms(made), "cpu_ms": _ms(cpu), "nothing_to_do_ms": _ms(idle)}


def _threads() -> dict[str, Any]:
    return {"ready_ms": _ms([asyncio.run(_one_by_threads()) for _ in range(ROUNDS)])}


async def _one_by_threads() -> float:
    with _host("nvml") as host:
        async with _working(host) as worker:
            begin = time.perf_counter()
            worker.accept(host.want(*_leases()))
            await _until(lambda: all(work.phase == READY for work in host.reconciler.lease_records.values()))
            return time.perf_counter() - begin


async def _slow(*calls: str) -> dict[str, float]:
    """One slice on each device where these calls take a second: on threads as the agent does it, and one by one.

    The driver listens to the events of its devices, as that of an agent does.
    """
    with _host("nvml", listens=True) as host:
        _slow_down(host, calls)
        async with _working(host) as worker:
            begin = time.perf_counter()
            worker.accept(host.want(*_leases(1)))
            await _until(lambda: all(work.phase == READY for work in host.reconciler.lease_records.values()))
            side_by_side = time.perf_counter() - begin
    with _host("nvml", listens=True) as host:
        _slow_down(host, calls)
        begin = time.perf_counter()
        host.reconciler.accept(host.want(*_leases(1)), boot_clock())
        work_through(host.reconciler, host.driver, boot_clock)
        return {
            "side_by_side_s": round(side_by_side, 2),
            "one_by_one_s": round(time.perf_counter() - begin, 2),
        }


def _slow_down(host: BenchHost, calls: Iterable[str]) -> None:
    _home(host).host.sleep = time.sleep
    _home(host).host.faults.latency_s.update(dict.fromkeys(calls, 1.0))


async def _ends() -> dict[str, str]:
    """From withdrawing a lease to its slice gone, for holders that end when asked and for such that do not."""
    found = {}
    for grace_s in GRACES_S:
        idle, stubborn = [await _end(grace_s, is_stubborn=is_stubborn) for is_stubborn in (False, True)]
        found[f"grace {grace_s} s"] = f"{idle:.2f} s when asked, {stubborn:.2f} s when not listening"
    return found


async def _end(grace_s: int, *, is_stubborn: bool) -> float:
    with _host("nvml") as host:
        home = _home(host)
        (lease,) = _leases(1, grace_s)[:1]
        async with _working(host) as worker:
            worker.accept(host.want(lease))
            await _until(lambda: [work.phase for work in host.reconciler.lease_records.values()] == [READY])
            agent_process.work_in(home, unit_of((lease.lease, 1)), is_stubborn=is_stubborn)
            begin = time.perf_counter()
            worker.accept(host.want())
            await _until(lambda: [work.phase for work in host.reconciler.lease_records.values()] == [GONE])
            took = time.perf_counter() - begin
        _require(not any(device.gpu.instances for device in home.host.devices))
        return took


def _seconds() -> dict[str, Any]:
    """What the agent does in a second, again and again on one thread, and how much of it the simulation is."""
    with _host("nvml") as host:
        home = _home(host)
        host.reconciler.accept(host.want(*_leases()), boot_clock())
        work_through(host.reconciler, host.driver, boot_clock)
        agent_process.keep_busy(home)
        runtime = host.reconciler.units.runtime
        assert runtime is not None
        guard = Guard(host.driver, runtime, home.read)
        _second(host, guard, 0)
        spent = time.process_time()
        for turn in range(SECONDS):
            _second(host, guard, turn)
        each = (time.process_time() - spent) / SECONDS
        profile = cProfile.Profile()
        profile.enable()
        for turn in range(SECONDS // 4):
            _second(host, guard, turn)
        profile.disable()
    rows = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    whole = sum(row[2] for row in rows.values())
    simulated = sum(row[2] for key, row in rows.items() if "/nodeagent/simulation/" in key[0])
    return {"cpu_ms": round(each * 1000, 2), "of it simulation, %": round(100 * simulated / whole)}


def _second(host: BenchHost, guard: Guard, turn: int) -> None:
    processes = None
    if turn % sampler.PROCESSES_EVERY == 0:
        processes = guard.run_once(scan_scope(host.reconciler, is_isolating=guard.is_isolating)).processes
    if turn % 5 == 0:
        host.reconciler.observe_health(read_health(host.driver), boot_clock())
    reading = host.driver.metrics()
    encode(sampler.frame(reading, host.reconciler, epoch=1, boot_id="boot-1", seq=turn, processes=processes))


@asynccontextmanager
async def _working(host: BenchHost):  # type: ignore[no-untyped-def]
    """Run the agent's worker, and let the host's own time pass."""
    worker = Worker(host.reconciler, host.driver, boot_clock)
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(worker.run()), loop.create_task(_pass_time(_home(host)))]
    await asyncio.sleep(0.1)  # the first look around is over
    try:
        yield worker
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        worker.close()


async def _pass_time(home: FullHost) -> None:
    while True:
        home.pass_time()
        await asyncio.sleep(0.05)


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.001)


def _home(host: BenchHost) -> FullHost:
    assert host.home is not None
    return host.home


def _require(is_so: bool) -> None:
    if not is_so:
        raise RuntimeError("what was to be measured did not happen")


def _ms(values: list[float]) -> str:
    return f"median {median(values) * 1000:.1f}, least {min(values) * 1000:.1f}"
