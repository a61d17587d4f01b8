"""The agent dies before or after each change it makes for MPS: the next one ends where it would have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.simulation.faults import SimulatedCrash
from tests.agent.mps_bench import CARD, SLICE, Bench, share

SMALL, LARGE = share("a", 200, 4096), share("b", 500, 20480)
BOBS = share("c", user="bob")
ON_SLICE = share("d", device=SLICE)

Act = Callable[[Bench], None]


def nothing(bench: Bench) -> None:
    pass


def ended(bench: Bench) -> None:
    """Open both, let both work, and end the small one's work."""
    bench.open(SMALL, LARGE)
    bench.run(SMALL, is_busy=True)
    bench.run(LARGE)


def end_all(bench: Bench) -> None:
    pids = bench.mps.clients(CARD, "alice")
    bench.mps.end_clients(SMALL, pids)
    bench.mps.end_clients(LARGE, pids)
    for pid in pids:
        bench.world.signal(pid, kill=True)
    bench.mps.close(CARD, "alice")


def both_users(bench: Bench) -> None:
    bench.open(SMALL)
    bench.open(BOBS)


def lose_server(bench: Bench) -> None:
    bench.open(SMALL, LARGE)
    (server,) = bench.program.servers()
    bench.world.signal(server.pid, kill=True)


STORIES: dict[str, tuple[Act, Act]] = {
    "open": (nothing, lambda bench: bench.mps.open(SMALL, [SMALL])),
    "open on a slice": (nothing, lambda bench: bench.mps.open(ON_SLICE, [ON_SLICE])),
    "open a second": (lambda bench: bench.open(SMALL), lambda bench: bench.mps.open(LARGE, [SMALL, LARGE])),
    "open for a second user": (lambda bench: bench.open(SMALL), lambda bench: bench.mps.open(BOBS, [BOBS])),
    "open after the server died": (lose_server, lambda bench: bench.mps.open(LARGE, [SMALL, LARGE])),
    "release": (lambda bench: bench.open(SMALL, LARGE), lambda bench: bench.mps.release(LARGE, [SMALL])),
    "release the last": (lambda bench: bench.open(SMALL), lambda bench: bench.mps.release(SMALL, [])),
    "close": (lambda bench: bench.open(SMALL, LARGE), lambda bench: bench.mps.close(CARD, "alice")),
    "close beside another": (both_users, lambda bench: bench.mps.close(CARD, "bob")),
    "end clients and close": (ended, end_all),
}


@pytest.mark.parametrize("newest", [2, 3], ids=["classic", "named"])
@pytest.mark.parametrize("story", STORIES)
def test_a_crash_at_any_point_ends_in_the_same_state_once_repeated(
    tmp_path: Path, story: str, newest: int
) -> None:
    prepare, act = STORIES[story]
    points: list[str] = []
    calm = Bench(tmp_path / "calm", newest)
    prepare(calm)
    calm.watch(points.append)
    act(calm)
    calm.watch(lambda name: None)
    expected = calm.picture()

    for at in range(len(points)):
        seen: list[str] = []
        bench = Bench(tmp_path / str(at), newest)
        prepare(bench)
        bench.watch(dying(seen, at))
        with pytest.raises(SimulatedCrash):
            act(bench)
        bench.watch(lambda name: None)

        bench.agent()
        act(bench)

        assert seen == points[: at + 1]
        assert bench.picture() == expected, points[at]


def dying(seen: list[str], at: int) -> Callable[[str], None]:
    def hook(name: str) -> None:
        seen.append(name)
        if len(seen) == at + 1:
            raise SimulatedCrash(name)

    return hook


def test_the_stories_pass_every_change_of_both_protocols(tmp_path: Path) -> None:
    seen: set[str] = set()
    for newest in (2, 3):
        for at, (prepare, act) in enumerate(STORIES.values()):
            bench = Bench(tmp_path / f"{newest}{at}", newest)
            bench.watch(seen.add)
            prepare(bench)
            act(bench)

    made = {name.rpartition(".")[0] for name in seen}
    assert made == {
        "mode",
        "mps.start",
        "mps.default",
        "mps.server.start",
        "mps.server.create",
        "mps.server.set",
        "mps.terminate",
        "mps.quit",
        "mps.namespace.create",
        "mps.namespace.set",
        "mps.namespace.delete",
        "mps.client.terminate",
    }


@pytest.mark.parametrize("newest", [2, 3], ids=["classic", "named"])
def test_a_share_given_up_half_opened_leaves_nothing(tmp_path: Path, newest: int) -> None:
    points: list[str] = []
    calm = Bench(tmp_path / "calm", newest)
    calm.watch(points.append)
    calm.open(SMALL)

    for at in range(len(points)):
        bench = Bench(tmp_path / str(at), newest)
        bench.watch(dying([], at))
        with pytest.raises(SimulatedCrash):
            bench.open(SMALL)
        bench.watch(lambda name: None)

        bench.agent().close(CARD, "alice")

        assert bench.world.processes == {}, points[at]
        assert (bench.mps.daemons(), bench.devices.modes[CARD]) == ([], 0)


@pytest.mark.parametrize("newest", [2, 3], ids=["classic", "named"])
def test_after_a_reboot_no_daemon_is_claimed_and_opening_works(tmp_path: Path, newest: int) -> None:
    bench = Bench(tmp_path, newest)
    bench.open(SMALL, LARGE)
    bench.world.reboot()
    bench.devices.modes[CARD] = 0

    claimed = bench.agent().daemons()
    bench.open(SMALL)

    assert claimed == []
    assert bench.mps.daemons() == [(CARD, "alice")]
