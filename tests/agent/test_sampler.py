from __future__ import annotations

from nodeagent.drivers.base import DriverReading, PartitionSample
from nodeagent.link import sampler
from nodeagent.protocol.codec import decode, encode
from nodeagent.protocol.messages import DeviceSample, ProcessSample, Samples
from tests.agent.builder import lease


def sample(node) -> Samples:
    frame = sampler.frame(node.driver.metrics(), node.reconciler, epoch=1, boot_id="b", seq=1)
    assert decode(encode(frame)) == frame
    return frame


def test_slices_of_a_lease_are_sampled_under_its_name(node):
    node.desire(lease("a", node.mig("2g.20gb", 4), load="steady"))

    (slot,) = sample(node).slots

    assert (slot.lease, slot.start, slot.memory_mib, slot.source) == ("a", 4, 20096, "gpm")
    assert slot.util_percent > 40
    assert 0 < slot.memory_used_mib < 20096


def test_device_is_the_sum_of_its_slices(node):
    node.desire(
        lease("a", node.mig("3g.40gb", 4), load="dummy_loop"), lease("b", node.mig("1g.10gb", 0), load="idle")
    )

    frame = sample(node)

    (device,) = frame.devices
    assert 44 < device.util_percent < 47
    assert device.memory_used_mib == sum(slot.memory_used_mib for slot in frame.slots)


def test_ampere_slices_have_no_utilisation_but_memory_and_power(make_node):
    node = make_node("a100-80gb")
    node.desire(lease("a", node.mig("1g.10gb", 0), load="steady"))

    frame = sample(node)

    assert (frame.slots[0].util_percent, frame.slots[0].source) == (None, "unavailable")
    assert (frame.devices[0].util_percent, frame.devices[0].source) == (None, "unavailable")
    assert frame.slots[0].memory_used_mib > 0
    assert frame.devices[0].power_w > 60


def test_idle_device_is_known_to_be_idle(node):
    (device,) = sample(node).devices

    assert (device.util_percent, device.memory_used_mib) == (0.0, 0)
    assert 60 < device.power_w < 80


def test_lost_device_is_unknown_not_zero(node):
    node.driver.lose(node.device())

    (device,) = sample(node).devices

    assert (device.util_percent, device.memory_used_mib, device.power_w, device.energy_mj) == (None,) * 4


def test_energy_only_rises(node):
    node.desire(lease("a", node.mig("7g.80gb", 0), load="steady"))
    seen = []
    for _ in range(5):
        seen.append(sample(node).devices[0].energy_mj)
        node.time.advance(1)

    assert seen[0] == 0
    assert seen == sorted(seen)
    assert 300_000 < seen[-1] / 4 < 700_000


def test_shares_count_by_their_part_of_the_device(make_node):
    node = make_node("l40s-48gb")
    node.desire(lease("a", node.share("mps", 250, 10_000), load="dummy_loop"))

    frame = sample(node)

    assert frame.slots[0].util_percent > 98
    assert 24 < frame.devices[0].util_percent < 26


def test_leases_that_are_not_ready_have_no_samples(node):
    node.desire(lease("a", node.mig("1g.10gb", 0)))
    node.faults.stubborn[node.reports()["a"].access[0].partition] = -1
    node.desire()

    assert sample(node).slots == ()


def test_counters_that_overshoot_are_kept_within_a_hundred(node):
    reading = DriverReading((DeviceSample("d", 101.0, 1, 2.0, 3.0),), ())

    frame = sampler.frame(reading, node.reconciler, epoch=1, boot_id="b", seq=1)

    assert frame.devices[0].util_percent == 100.0


def test_finer_figures_keep_their_sources_and_bounds(node):
    node.desire(lease("a", node.mig("2g.20gb", 4)))
    partition = node.reports()["a"].access[0].partition
    sources = {"power_w": "estimate", "tensor_percent": "unavailable"}
    part = PartitionSample(
        partition, node.device(), 4, 50.0, 1, 20096, "gpm", 100.4, None, -0.1, 120.5, sources
    )
    whole = DeviceSample(
        node.device(), 50.0, 1, 300.0, 40.0, 7, "gpm", 700.0, 101.0, 55.0, 3.0, {"sm_percent": "gpm"}
    )

    frame = sampler.frame(DriverReading((whole,), (part,)), node.reconciler, epoch=1, boot_id="b", seq=1)

    (slot,), (device,) = frame.slots, frame.devices
    assert (slot.sm_percent, slot.tensor_percent, slot.bandwidth_percent) == (100.0, None, 0.0)
    assert (slot.power_w, slot.sources) == (120.5, sources)
    assert (device.power_limit_w, device.sm_percent, device.tensor_percent) == (700.0, 100.0, 55.0)
    assert (device.energy_mj, device.sources) == (7, {"sm_percent": "gpm"})
    assert decode(encode(frame)) == frame


def test_processes_are_told_in_the_frames_that_carry_them(node):
    seen = (ProcessSample(11, node.device(), "held", "a", "python", 100),)
    reading = node.driver.metrics()

    with_them = sampler.frame(reading, node.reconciler, epoch=1, boot_id="b", seq=1, processes=seen)
    between = sampler.frame(reading, node.reconciler, epoch=1, boot_id="b", seq=2)

    assert (with_them.processes, between.processes) == (seen, None)
    assert decode(encode(with_them)) == with_them
