"""Twelve small programs as people run them on GPUs, each in a process of its own: ``python -m … NAME``.

It says ``ready`` when its first steps are done, answers each line ``SECONDS`` with steps per second over that time, and
ends with its input. It goes on for a moment before and after what it counts, so that two that are told to run at the
same instant disturb each other all the time. Needs PyTorch with CUDA, which is no dependency of Berth.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

EDGE_S = 0.2
Step = Callable[[], object]


def large_product(torch: Any) -> Step:
    """Multiply matrices that fill the tensor cores."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return lambda: a @ a


def small_products(torch: Any) -> Step:
    """Multiply many small matrices one by one: launching them is what takes the time."""
    a = torch.randn(256, 256, device="cuda")

    def step() -> None:
        for _ in range(50):
            a @ a

    return step


def copy(torch: Any) -> Step:
    """Copy memory on the device: bandwidth and nothing else."""
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    return lambda: b.copy_(a)


def gather(torch: Any) -> Step:
    """Look up random rows of a large table, as recommenders do."""
    table = torch.randn(8_000_000, 64, device="cuda")
    rows = torch.randint(0, 8_000_000, (1_000_000,), device="cuda")
    return lambda: table[rows].sum(0)


def sort(torch: Any) -> Step:
    """Sort sixteen million numbers."""
    a = torch.randn(1 << 24, device="cuda")
    return lambda: torch.sort(a)


def transform(torch: Any) -> Step:
    """Transform a field there and back, as simulations do."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.complex64)
    return lambda: torch.fft.ifft2(torch.fft.fft2(a))


def images(torch: Any, batch: int = 64) -> Step:
    """Train a convolutional network."""
    nn = torch.nn
    sizes, layers = (3, 64, 128, 256, 512), []
    for before, after in pairwise(sizes):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100)).cuda()
    x = torch.randn(batch, 3, 224, 224, device="cuda")
    return _training(torch, net, x, torch.randint(0, 100, (batch,), device="cuda"))


def waits_for_data(torch: Any) -> Step:
    """Train the same network with a loader that is slower than the device."""
    step = images(torch, 32)

    def slow() -> None:
        time.sleep(0.02)
        step()

    return slow


def language(torch: Any) -> Step:
    """Train a transformer of six layers."""
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
    net = torch.nn.TransformerEncoder(layer, 6).cuda().bfloat16()
    x = torch.randn(8, 512, 1024, device="cuda", dtype=torch.bfloat16)
    best = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step() -> None:
        best.zero_grad()
        net(x).float().square().mean().backward()
        best.step()

    return step


def answers(torch: Any) -> Step:
    """Produce one word after the other with a model that reads all of its weights for each."""
    layers = [torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(24)]

    def step() -> None:
        x = torch.randn(1, 8192, device="cuda", dtype=torch.bfloat16)
        for layer in layers:
            x = torch.nn.functional.gelu(x @ layer) * 0.01

    return step


def sequences(torch: Any) -> Step:
    """Train a recurrent network: many short kernels that wait for each other."""
    net = torch.nn.LSTM(512, 512, 2, batch_first=True).cuda()
    x = torch.randn(64, 100, 512, device="cuda")
    best = torch.optim.SGD(net.parameters(), lr=1e-4)

    def step() -> None:
        best.zero_grad()
        net(x)[0].square().mean().backward()
        best.step()

    return step


def tables(torch: Any) -> Step:
    """Train a small network on a table: never more than a corner of the device."""
    nn = torch.nn
    net = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    ).cuda()
    return _training(
        torch, net, torch.randn(256, 64, device="cuda"), torch.randint(0, 10, (256,), device="cuda")
    )


def _training(torch: Any, net: Any, x: Any, wanted: Any) -> Step:
    best, loss = torch.optim.SGD(net.parameters(), lr=0.01), torch.nn.CrossEntropyLoss()

    def step() -> None:
        best.zero_grad()
        loss(net(x), wanted).backward()
        best.step()

    return step


PROGRAMS: dict[str, Callable[[Any], Step]] = {
    program.__name__: program
    for program in (
        large_product, small_products, copy, gather, sort, transform,
        images, waits_for_data, language, answers, sequences, tables,
    )
}  # fmt: skip


def main(name: str) -> None:
    """Serve one program on the device that CUDA_VISIBLE_DEVICES names."""
    torch = import_module("torch")
    step = PROGRAMS[name](torch)

    def run(seconds: float) -> float:
        begun, steps = time.perf_counter(), 0
        while (passed := time.perf_counter() - begun) < seconds:
            step()
            torch.cuda.synchronize()
            steps += 1
        return steps / passed if steps else 0.0

    run(1.0)
    print("ready", flush=True)
    for line in sys.stdin:
        run(EDGE_S)
        speed = run(float(line))
        run(EDGE_S)
        print(speed, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
