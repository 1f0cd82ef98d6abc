"""Latency hiding on the tensor accelerator, and ResNet-18 end to end.

Published: T. Moreau et al., "VTA: An Open Hardware-Software Stack for Deep Learning", figures 15
and 16. Times are those of the accelerator's timing model, for the core of that paper.
"""

from potash.experiment import Point
from potash.models.networks import resnet18
from potash.models.resnet import LAYERS
from potash.vta.inference import time_nodes
from potash.vta.layers import Tiles, Timed, timed
from potash_device.vta.config import CORES
from potash_device.vta.timing.parameters import PYNQ

CORE = CORES["paper"]
MULTIPLIERS = CORE.batch * CORE.block_in * CORE.block_out
OFFLOADED = [name for name in LAYERS if name != "C1"]
"""The paper's processor computes C1, whose three channels fill 3 of 16 lanes."""
PUBLISHED_PEAK = {1: 0.70, 2: 0.88}
"""Section 5, on figure 15: the peak of compute utilisation, without and with virtual threads."""


def modelled(point: Point) -> dict[str, float]:
    """Utilisation, throughput and time of one layer, or of several."""
    work, threads = str(point["work"]), int(point["threads"])
    if work == "convolutions":
        layers = found(threads, OFFLOADED)
        cycles = sum(one.timing.cycles * LAYERS[one.name].times for one in layers)
        products = sum(products_of(one.name) * LAYERS[one.name].times for one in layers)
        # The whole network's schedules have as many threads as is best, which is two.
        return columns(cycles, products) | (network() if threads == 2 else {})
    if work.startswith("peak"):
        tiles = Tiles.FIXED if "fixed" in work else Tiles.SCHEDULED
        best = max(found(threads, OFFLOADED, tiles), key=lambda one: one.timing.utilisation)
        return columns(best.timing.cycles, products_of(best.name))
    (layer,) = found(threads, [work])
    return {
        **columns(layer.timing.cycles, products_of(work)),
        "operations_per_byte": layer.timing.intensity,
    }


def published(point: Point) -> dict[str, float] | None:
    """The peaks; the paper has the layers in a picture, and end to end only bounds."""
    if str(point["work"]).startswith("peak"):
        return {"used": PUBLISHED_PEAK[int(point["threads"])]}
    return None


def found(threads: int, names: list[str], tiles: Tiles = Tiles.SCHEDULED) -> list[Timed]:
    """Layers that have a schedule with so many virtual threads."""
    return [one for one in timed(names, CORE, PYNQ, tiles) if one.threads == threads]


def network() -> dict[str, float]:
    """The whole network with TensorFlow Lite's exact arithmetic, all of it on the accelerator."""
    spent = [
        (layer.node.operator, layer.time.cycles)
        for layer in time_nodes(resnet18(), CORE, PYNQ).layers
        if layer.time is not None
    ]
    first, *offloaded = [cycles for operator, cycles in spent if operator == "CONV_2D"]
    cycles = {"C1": first, "exact": sum(offloaded), "network": sum(count for _, count in spent)}
    return {f"{name}_ms": count / PYNQ.clock * 1e3 for name, count in cycles.items()}


def products_of(name: str) -> int:
    """Multiplications of a layer."""
    return LAYERS[name].shape.products


def columns(cycles: int, products: int) -> dict[str, float]:
    """Used share of the multipliers, GOP/s and ms."""
    seconds = cycles / PYNQ.clock
    return {
        "used": products / (cycles * MULTIPLIERS),
        "gops": 2 * products / seconds / 1e9,
        "ms": seconds * 1e3,
    }
