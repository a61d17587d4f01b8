"""How a holder would reach a simulated partition: the same variables and nodes as on a real host."""

from __future__ import annotations

from nodeagent.drivers.base import Access
from nodeagent.simulation.devices.device import SimulatedDevice, SimulatedShare
from nodeagent.simulation.hardware import GpuInstance

# Minors of /dev/nvidia-caps are fixed: two for the driver, then 15 instances of 1 + 8 nodes for each GPU.
CAPS_BEFORE, CAPS_PER_INSTANCE, CAPS_PER_GPU = 3, 9, 135
NVIDIA_COMMON = ("/dev/nvidiactl", "/dev/nvidia-uvm")


def access_to(device: SimulatedDevice, partition: str, instance: GpuInstance | None) -> Access:
    """Return environment and device nodes for one partition."""
    if device.fact.vendor == "hygon":
        return _hygon(device, device.parts[partition])
    nodes = (*NVIDIA_COMMON, f"/dev/nvidia{device.fact.index}")
    if instance is not None:
        return Access(
            {"CUDA_VISIBLE_DEVICES": partition}, (*nodes, *_capabilities(device.fact.index, instance.id))
        )
    return Access(_nvidia_env(device, device.parts[partition]), nodes)


def _capabilities(gpu: int, gi_id: int) -> tuple[str, str]:
    minor = CAPS_BEFORE + gpu * CAPS_PER_GPU + gi_id * CAPS_PER_INSTANCE
    return f"/dev/nvidia-caps/nvidia-cap{minor}", f"/dev/nvidia-caps/nvidia-cap{minor + 1}"


def _nvidia_env(device: SimulatedDevice, part: SimulatedShare) -> dict[str, str]:
    env = {"CUDA_VISIBLE_DEVICES": device.fact.uuid}
    if part.shape.mode == "mps":
        env["CUDA_MPS_PIPE_DIRECTORY"] = f"/run/berth/mps/{device.fact.uuid}"
        env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, part.shape.share_milli // 10))
        env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={part.shape.memory_mib}M"
    elif part.shape.mode == "memlimit":
        env["BERTH_MEMORY_LIMIT_MIB"] = str(part.shape.memory_mib)
    return env


def _hygon(device: SimulatedDevice, part: SimulatedShare) -> Access:
    env = {"HIP_VISIBLE_DEVICES": str(device.fact.index)}
    if part.shape.mode != "exclusive":
        env["BERTH_SHARE_PERCENT"] = f"{part.shape.share_milli / 10:g}"
        env["BERTH_MEMORY_LIMIT_MIB"] = str(part.shape.memory_mib)
    return Access(env, ("/dev/kfd", "/dev/mkfd", f"/dev/dri/renderD{128 + device.fact.index}"))
