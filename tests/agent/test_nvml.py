"""The NVML driver against a library that knows some answers."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from nodeagent.drivers import nvml, registry
from nodeagent.drivers.base import PartitionShape
from nodeagent.drivers.errors import DriverUnavailableError, NotOfferedError
from nodeagent.drivers.nvml.driver import NvmlDriver
from nodeagent.simulation.machine.host import SimulatedHost
from nodeagent.simulation.nvml import SimulatedNvml

MIB = 1024 * 1024


class FakeError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakeLibrary:
    """Answers what it was given; everything else is NOT_SUPPORTED, as from an old driver."""

    NVMLError = FakeError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, **answers: object) -> None:
        self.answers: dict[str, object] = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=143771 * MIB, used=512 * MIB),
            **answers,
        }

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        if not name.startswith("nvml") or name.startswith(("nvmlEvent", "nvmlClocksEvent", "nvmlMemory_")):
            return getattr(pynvml, name)

        def call(*args: object) -> object:
            answer = self.answers.get(name, FakeError(3))
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def test_device_that_says_little_is_still_listed():
    driver = NvmlDriver("boot", FakeLibrary())

    (fact,) = driver.inventory()

    assert (fact.uuid, fact.model, fact.memory_mib, fact.modes) == (
        "GPU-1",
        "h200-141gb",
        143771,
        ("exclusive",),
    )
    assert (fact.sm_count, fact.mig_enabled, fact.serial) == (None, None, "")


def test_what_a_device_does_not_tell_is_unknown():
    (sample,) = NvmlDriver("boot", FakeLibrary()).metrics().devices

    assert (sample.util_percent, sample.power_w, sample.energy_mj) == (None, None, None)
    assert (sample.memory_used_mib, sample.source) == (512, "unavailable")


def test_figures_are_brought_into_our_units():
    library = FakeLibrary(
        nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=37),
        nvmlDeviceGetPowerUsage=312_500,
        nvmlDeviceGetTemperature=48,
        nvmlDeviceGetTotalEnergyConsumption=99,
        nvmlDeviceGetNumGpuCores=16896,
        nvmlDeviceGetCudaComputeCapability=(9, 0),
    )
    driver = NvmlDriver("boot", library)

    (sample,) = driver.metrics().devices

    assert (sample.util_percent, sample.power_w, sample.temperature_c, sample.energy_mj) == (
        37.0,
        312.5,
        48.0,
        99,
    )
    assert driver.inventory()[0].sm_count == 132


def test_whole_device_can_be_leased_and_nothing_else():
    driver = NvmlDriver("boot", FakeLibrary(nvmlDeviceGetMinorNumber=3))

    made = driver.create("GPU-1", PartitionShape("exclusive"), 0, "a")

    assert driver.access(made.uuid).env == {"CUDA_VISIBLE_DEVICES": "GPU-1"}
    assert "/dev/nvidia3" in driver.access(made.uuid).nodes
    with pytest.raises(NotOfferedError, match="ask for whole devices"):
        driver.create("GPU-1", PartitionShape("mig", "1g.18gb", 1), 0, "a")
    with pytest.raises(NotOfferedError):
        driver.set_mig_mode("GPU-1", True)


def test_device_that_somebody_partitioned_is_not_offered_whole():
    driver = NvmlDriver("boot", FakeLibrary(nvmlDeviceGetMigMode=[1, 1]))

    assert driver.inventory()[0].modes == ()


def test_lost_device_and_pending_repairs_are_health_facts():
    repair = NvmlDriver("boot", FakeLibrary(nvmlDeviceGetRemappedRows=(0, 1, 1, 0)))
    library = FakeLibrary()
    lost = NvmlDriver("boot", library)
    library.answers["nvmlDeviceGetMemoryInfo"] = FakeError(15)

    assert [(fact.code, fact.severity) for fact in repair.health()] == [("row_remap_pending", "warning")]
    assert [(fact.code, fact.severity) for fact in lost.health()] == [("79", "critical")]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"nvmlInit": FakeError(9)}, "kernel module is not loaded"),
        ({"nvmlInit": FakeError(12)}, "no NVIDIA driver is installed"),
        ({"nvmlInit": FakeError(18)}, "upgraded without a restart"),
        ({"nvmlDeviceGetCount": 0}, "lists no device"),
    ],
)
def test_machine_without_devices_has_no_such_driver_and_says_what_is_missing(answers, said):
    with pytest.raises(DriverUnavailableError, match=said):
        NvmlDriver("boot", FakeLibrary(**answers))


def test_opening_by_name_hands_the_options_on_and_listens(monkeypatch, tmp_path):
    library = FakeLibrary()
    monkeypatch.setattr(NvmlDriver.__init__, "__defaults__", (library,))

    driver = registry.open_nvml(run_dir=tmp_path, offer=frozenset({"mps"}), dcgm_url="http://localhost:9400")
    try:
        (fact,) = driver.inventory()
        assert fact.modes == ()
        assert "--offer" in fact.refusals["exclusive"]
        assert (tmp_path / "cards.json").exists()
    finally:
        driver.close()  # type: ignore[attr-defined]


CALL = re.compile(r'"(nvml(?:Init|Shutdown|System|Device|GpuInstance|ComputeInstance|Event|Gpm)\w*)"')


def calls_made() -> set[str]:
    """Every NVML call that the driver's own modules name."""
    folder = Path(nvml.__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]
    return {name for text in texts for name in CALL.findall(text)}


def test_every_call_that_is_made_exists_in_the_binding_and_is_played_by_the_simulation():
    library = SimulatedNvml(SimulatedHost(["h100-80gb"]))
    made = calls_made()

    assert len(made) > 50
    assert not {name for name in made if not callable(getattr(pynvml, name, None))}
    assert not {name for name in made if not hasattr(type(library), name)}


def test_the_binding_can_do_everything_but_reset_a_device_and_nothing_here_asks_it_to():
    assert not {name for name in calls_made() if "Reset" in name or name.endswith("Drain")}
