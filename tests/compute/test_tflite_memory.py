"""The places of tensors that are never needed together, as for ResNet-18 in batches of 24."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from potash.models.resnet import LAYERS
from potash_device.vta.config import Config
from potash_device.vta.core import Core
from potash_firmware.apu.models import DRAM_BYTES
from potash_firmware.vta_runtime import Buffer, Runtime, Share
from potash_firmware.vta_runtime.buffers import Need, places, settle

IMAGES, BLOCK = 24, 16


def image(size: int, channels: int) -> Share:
    """A tensor, with a margin of two pixels."""
    return Share(IMAGES * (size + 2) ** 2 * -(-channels // BLOCK) * BLOCK)


def resnet18() -> Iterator[list[Buffer]]:
    """What each node of ResNet-18 needs (He et al., "Deep Residual Learning for Image Recognition",
    table 1)."""
    x, y = image(224, 3), image(112, 64)
    yield [x]
    yield [x, y]
    x = image(56, 64)
    yield [y, x]
    for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512)):
        for block in range(2):
            shortcut, inner, outer, total = x, *(image(size, channels) for _ in range(3))
            yield [x, inner]
            yield [inner, outer]
            if size < 56 and not block:
                shortcut = image(size, channels)
                yield [x, shortcut]
            yield [outer, shortcut, total]
            x = total
    y = Share(IMAGES * 512)
    yield [x, y]
    yield [y, Share(IMAGES * 1008)]


def test_a_large_batch_takes_what_two_of_its_tensors_take() -> None:
    steps = list(resnet18())
    every = {one for step in steps for one in step}
    assert sum(one.size for one in every) > 1.5 * DRAM_BYTES
    alive = max(sum(one.size for one in step) for step in steps)
    weights = sum(one.times * one.channels * one.outputs * one.kernel**2 for one in LAYERS.values())
    with Runtime(Core.create(Config.default(), DRAM_BYTES)) as runtime:
        taken = []

        def allocate(size: int) -> Buffer:
            taken.append(runtime.alloc(size))
            return taken[-1]

        settle(steps, allocate, Config.default().alignment)
        (whole,) = taken
        assert whole.size <= 1.02 * alive
        assert whole.size + weights + 512 * 1000 < DRAM_BYTES
        whole.free()


needs = st.builds(
    lambda size, first, length: Need(size, first, first + length),
    st.integers(1, 999),
    st.integers(0, 9),
    st.integers(0, 9),
)


@given(st.lists(needs, max_size=12))
def test_what_is_needed_together_has_places_of_its_own(needs: list[Need]) -> None:
    begins, total = places(needs, 64)
    assert all(begin % 64 == 0 for begin in begins)
    ends = [begin + one.size for begin, one in zip(begins, needs, strict=True)]
    assert total == max(ends, default=0)
    for one, other in itertools.combinations(range(len(needs)), 2):
        apart = ends[one] <= begins[other] or ends[other] <= begins[one]
        met = needs[one].first <= needs[other].last and needs[other].first <= needs[one].last
        assert apart or not met
