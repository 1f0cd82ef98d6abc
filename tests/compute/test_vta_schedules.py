"""Schedules leave what numpy says, for any shape on any core; and what they choose."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from potash_device.vta import timing
from potash_device.vta.config import Config, MemoryId
from potash_device.vta.core import Core
from potash_device.vta.fast import compiling
from potash_device.vta.isa import AluOpcode
from potash_device.vta.timing.parameters import PYNQ
from potash_firmware.vta_runtime import Buffer, Runtime
from potash_firmware.vta_runtime.schedules import (
    TILE,
    Channels,
    Conv2d,
    Convolution,
    Elementwise,
    Epilogue,
    Extent,
    Outer,
    Plane,
    ScheduleError,
    Step,
    Tile,
    conv2d,
    elementwise,
    layouts,
    search,
)
from potash_firmware.vta_runtime.schedules.tiles import THREADS, fits
from support.vta import CONFIGS, LARGE, ONE, TINY, unpack_nchw

Array = NDArray[Any]

DEFAULT = Config.default()
CLIPPED = (Step(AluOpcode.MAX, -128), Step(AluOpcode.MIN, 127))
SCALED = (Step(AluOpcode.ADD, Channels(0)), Step(AluOpcode.SHR, 4), *CLIPPED)
RESNET_3X3 = {
    "C2": Conv2d(1, 64, 56, 56, 64, (3, 3), (1, 1), (1, 1, 1, 1)),
    "C4": Conv2d(1, 64, 56, 56, 128, (3, 3), (2, 2), (0, 1, 0, 1)),
    "C12": Conv2d(1, 512, 7, 7, 512, (3, 3), (1, 1), (1, 1, 1, 1)),
}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tilings that other runs found are not asked for."""
    compiling.cache_folder()  # the engine is compiled already
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp()))


def convolved(images: Array, weights: Array, shape: Conv2d) -> Array:
    """The sums [N][O][H][W], as the definition says them: output by output."""
    top, bottom, left, right = shape.padding
    padded = np.pad(images, ((0, 0), (0, 0), (top, bottom), (left, right))).astype(np.int64)
    size = (shape.images, shape.out_channels, shape.out_height, shape.out_width)
    found = np.zeros(size, np.int64)
    for y, x in np.ndindex(size[2:]):
        first, start = y * shape.stride[0], x * shape.stride[1]
        rows = slice(first, first + (shape.kernel[0] - 1) * shape.dilation[0] + 1)
        columns = slice(start, start + (shape.kernel[1] - 1) * shape.dilation[1] + 1)
        seen = padded[:, :, rows, columns][:, :, :: shape.dilation[0], :: shape.dilation[1]]
        found[:, :, y, x] = np.tensordot(seen, weights.astype(np.int64), ([1, 2, 3], [1, 2, 3]))
    return found


def put(runtime: Runtime, values: Array) -> Buffer:
    buffer = runtime.alloc(values.nbytes)
    buffer.view[:] = values.tobytes()
    return buffer


def unpacked(plan: Convolution, output: Buffer) -> Array:
    shape, config = plan.shape, plan.config
    packed = np.frombuffer(output.view, layouts.value_type(config, MemoryId.OUT)).reshape(
        shape.groups(config),
        shape.out_blocks(config),
        shape.out_height,
        shape.out_width,
        config.batch,
        config.block_out,
    )
    return unpack_nchw(packed, shape.images, shape.out_channels)


def packed_values(values: Array, config: Config, memory: MemoryId) -> Array:
    """Values contiguous in elements [n][BATCH][BLOCK_OUT], one image of as many pixels."""
    size = config.batch * config.block_out
    whole = np.zeros(-(-values.size // size) * size, values.dtype)
    whole[: values.size] = values
    images = whole.reshape(-1, config.batch, config.block_out).transpose(1, 2, 0)[:, :, None]
    return layouts.pack_like_output(images, config, memory)


def run(plan: Convolution, images: Array, weights: Array, bias: Array, engine: str) -> Array:
    with Runtime(Core.create(plan.config, 1 << 24, engine=engine)) as vta:
        output = vta.alloc(plan.output_bytes)
        plan.emit(
            vta,
            put(vta, layouts.pack_nchw(images, plan.config)),
            put(vta, layouts.pack_oihw(weights, plan.config)),
            output,
            channels=[put(vta, layouts.pack_channels(bias, plan.config))],
        )
        vta.synchronize()
        return unpacked(plan, output)


def check(plan: Convolution, engine: str = "fast") -> None:
    """A plan whose epilogue is `SCALED`."""
    shape = plan.shape
    random = np.random.default_rng(shape.products)
    images = random.integers(
        -8, 8, (shape.images, shape.in_channels, shape.height, shape.width), np.int8
    )
    weights = random.integers(-8, 8, (shape.out_channels, shape.in_channels, *shape.kernel))
    bias = random.integers(-1000, 1000, shape.out_channels)
    sums = convolved(images, weights, shape) + bias[:, None, None]
    expected = np.clip(sums >> 4, -128, 127)
    np.testing.assert_array_equal(run(plan, images, weights, bias, engine), expected)


@st.composite
def shapes(draw: Any) -> Conv2d:
    """Convolutions that numpy is not long busy with."""
    small, size, channels = st.integers(1, 3), st.integers(1, 14), st.integers(1, 40)
    pair = st.tuples(small, small)
    pads = st.tuples(*[st.one_of(small, st.integers(0, 20))] * 4)
    try:
        shape = Conv2d(
            images=draw(small),
            in_channels=draw(channels),
            height=draw(size),
            width=draw(size),
            out_channels=draw(channels),
            kernel=draw(st.tuples(st.integers(1, 4), st.integers(1, 4))),
            stride=draw(pair),
            padding=draw(pads),
            dilation=draw(pair),
        )
    except ScheduleError:
        assume(False)
    assume(shape.products < 200_000)
    return shape


class TestConvolutions:
    @settings(max_examples=35, deadline=None)
    @given(shapes(), st.sampled_from([one for one in CONFIGS if one != ONE]), st.data())
    def test_any_tiling_on_any_core(self, shape: Conv2d, config: Config, data: Any) -> None:
        tile = Tile(
            data.draw(st.integers(1, shape.out_height)),
            data.draw(st.integers(1, shape.out_width)),
            data.draw(st.integers(1, shape.out_blocks(config))),
            data.draw(st.integers(1, shape.in_blocks(config))),
            data.draw(st.sampled_from([shape.kernel, (1, shape.kernel[1]), (1, 1)])),
            data.draw(st.sampled_from(THREADS)),
            data.draw(st.sampled_from(Outer)),
        )
        assume(fits(shape, tile, Epilogue(SCALED), config))
        check(Convolution(shape, config, tile, Epilogue(SCALED)))

    @settings(max_examples=5, deadline=None)
    @given(shapes(), st.sampled_from([one for one in CONFIGS if one != ONE]))
    def test_the_tiling_that_is_chosen(self, shape: Conv2d, config: Config) -> None:
        assume(shape.products < 50_000)
        check(conv2d(shape, config, SCALED))

    @pytest.mark.parametrize("threads", THREADS)
    @pytest.mark.parametrize(
        "shape",
        [
            Conv2d(1, 3, 30, 30, 16, (7, 7), (2, 2), (2, 3, 2, 3)),
            Conv2d(1, 3, 3, 3000, 16, (3, 3), (1, 1), (1, 1, 1, 1)),
            Conv2d(1, 16, 40, 40, 16, (3, 3), (1, 1), (18, 18, 18, 18), (18, 18)),
            Conv2d(1, 32, 9, 9, 32, (1, 1), (2, 2)),
        ],
        ids=["three-channels", "a-wide-row", "more-padding-than-a-load-has", "skipped-rows"],
    )
    def test_what_is_easily_forgotten(self, shape: Conv2d, threads: int) -> None:
        plan = conv2d(shape, DEFAULT, SCALED, threads=threads)
        assert plan.tile.threads == threads
        check(plan)

    def test_a_core_with_one_element_of_everything(self) -> None:
        shape = Conv2d(1, 2, 3, 3, 2, (2, 2))
        plan = conv2d(shape, ONE)
        random = np.random.default_rng(0)
        images = random.integers(-3, 3, (1, 2, 3, 3), np.int8)
        weights = random.integers(-3, 3, (2, 2, 2, 2), np.int8)
        with Runtime(Core.create(ONE, 1 << 16, engine="readable")) as vta:
            output = vta.alloc(plan.output_bytes)
            left, right = layouts.pack_nchw(images, ONE), layouts.pack_oihw(weights, ONE)
            plan.emit(vta, put(vta, left), put(vta, right), output)
            vta.synchronize()
            np.testing.assert_array_equal(unpacked(plan, output), convolved(images, weights, shape))
        with pytest.raises(ScheduleError, match="too small for the convolution's epilogue"):
            conv2d(shape, ONE, SCALED)

    def test_the_readable_engine_finds_the_tokens_sufficient(self) -> None:
        shape = Conv2d(1, 32, 8, 8, 32, (3, 3), (1, 1), (1, 1, 1, 1))
        tile = Tile(4, 8, 1, 1, (3, 3), 2)
        check(Convolution(shape, DEFAULT, tile, Epilogue(SCALED)), "readable")

    def test_a_plan_can_read_what_one_before_it_in_the_stream_stores(self) -> None:
        shape = Conv2d(1, 16, 12, 12, 16, (3, 3), (1, 1), (1, 1, 1, 1))
        plan = Convolution(
            shape, DEFAULT, Tile(4, 12, 1, 1, (3, 3)), Epilogue((Step(AluOpcode.SHR, 6), *CLIPPED))
        )
        random = np.random.default_rng(1)
        images = random.integers(-8, 8, (1, 16, 12, 12), np.int8)
        weights = random.integers(-8, 8, (16, 16, 3, 3), np.int8)
        with Runtime(Core.create(DEFAULT, 1 << 20, engine="readable")) as vta:
            first, second = vta.alloc(plan.output_bytes), vta.alloc(plan.output_bytes)
            factors = put(vta, layouts.pack_oihw(weights, DEFAULT))
            plan.emit(vta, put(vta, layouts.pack_nchw(images, DEFAULT)), factors, first)
            plan.emit(vta, first, factors, second)
            vta.synchronize()
            found = unpacked(plan, second)
        between = np.clip(convolved(images, weights, shape) >> 6, -128, 127)
        expected = np.clip(convolved(between, weights, shape) >> 6, -128, 127)
        np.testing.assert_array_equal(found, expected)

    def test_steps_use_values_in_between(self) -> None:
        shape = Conv2d(1, 16, 6, 6, 32, (1, 1))
        steps = (
            # Plane 2 becomes half of the sums, and the tile sums + halves.
            Step(AluOpcode.MUL, 0, target=Plane(2)),
            Step(AluOpcode.ADD, TILE, target=Plane(2)),
            Step(AluOpcode.SHR, 1, target=Plane(2)),
            Step(AluOpcode.ADD, Plane(2)),
            Step(AluOpcode.MIN, Channels(0)),
            Step(AluOpcode.MAX, Channels(1)),
        )
        plan = conv2d(shape, DEFAULT, steps)
        random = np.random.default_rng(2)
        images = random.integers(-4, 4, (1, 16, 6, 6), np.int8)
        weights = random.integers(-4, 4, (32, 16, 1, 1), np.int8)
        high, low = random.integers(50, 127, 32), random.integers(-127, -50, 32)
        with Runtime(Core.create(DEFAULT, 1 << 20)) as vta:
            output = vta.alloc(plan.output_bytes)
            plan.emit(
                vta,
                put(vta, layouts.pack_nchw(images, DEFAULT)),
                put(vta, layouts.pack_oihw(weights, DEFAULT)),
                output,
                channels=[put(vta, layouts.pack_channels(one, DEFAULT)) for one in (high, low)],
            )
            vta.synchronize()
            packed = np.frombuffer(output.view, np.int8).reshape(1, 2, 6, 6, 1, 16)
        sums = convolved(images, weights, shape)
        wide = (-1, 1, 1)
        expected = np.clip(sums + (sums >> 1), low.reshape(wide), high.reshape(wide))
        np.testing.assert_array_equal(unpack_nchw(packed, 1, 32), expected)

    def test_buffers_that_are_missing_are_named(self) -> None:
        plan = conv2d(Conv2d(1, 16, 4, 4, 16, (1, 1)), DEFAULT, SCALED)
        with Runtime(Core.create(DEFAULT, 1 << 16)) as vta:
            buffer = vta.alloc(4096)
            with pytest.raises(ScheduleError, match="has 1 vectors, not 0"):
                plan.emit(vta, buffer, buffer, buffer)
            assert not vta.instructions


@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 60),
    st.sampled_from([one for one in CONFIGS if one != ONE]),
)
def test_a_matrix_product(rows: int, columns: int, depth: int, config: Config) -> None:
    shape = Conv2d(rows, depth, 1, 1, columns, (1, 1))
    plan = conv2d(shape, config, (Step(AluOpcode.SHR, 3), *CLIPPED))
    random = np.random.default_rng(rows)
    left = random.integers(-8, 8, (rows, depth), np.int8)
    right = random.integers(-8, 8, (columns, depth), np.int8)
    with Runtime(Core.create(config, 1 << 24)) as vta:
        output = vta.alloc(plan.output_bytes)
        plan.emit(
            vta,
            put(vta, layouts.pack_nchw(left[:, :, None, None], config)),
            put(vta, layouts.pack_oihw(right[:, :, None, None], config)),
            output,
        )
        vta.synchronize()
        found = unpacked(plan, output)[:, :, 0, 0]
    sums = left.astype(np.int64) @ right.T
    np.testing.assert_array_equal(found, np.clip(sums >> 3, -128, 127))


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 100_000),
    st.sampled_from([one for one in CONFIGS if one not in (ONE, LARGE)]),
    st.sampled_from([None, 1, 2]),
    st.lists(st.sampled_from([MemoryId.ACC, MemoryId.ACC_8BIT]), min_size=2, max_size=3),
)
def test_an_elementwise_operation(
    count: int, config: Config, threads: int | None, kinds: list[MemoryId]
) -> None:
    count = min(count, 40 * config.batch * config.block_out * 16)
    random = np.random.default_rng(count)
    tensors = [random.integers(-128, 128, count) for _ in kinds]
    steps = [Step(AluOpcode.ADD, Plane(number)) for number in range(1, len(kinds))]
    steps += [Step(AluOpcode.MUL, 181), Step(AluOpcode.SHR, 8), *CLIPPED]
    size = config.batch * config.block_out
    plan = elementwise(Extent(1, 1, 1, -(-count // size)), config, kinds, steps, threads=threads)
    with Runtime(Core.create(config, 1 << 24)) as vta:
        output = vta.alloc(plan.output_bytes)
        packed = [
            put(vta, packed_values(values, config, kind))
            for values, kind in zip(tensors, kinds, strict=True)
        ]
        plan.emit(vta, packed, output)
        vta.synchronize()
        found = np.frombuffer(output.view, layouts.value_type(config, MemoryId.OUT))[:count]
    np.testing.assert_array_equal(found, np.clip(sum(tensors) * 181 >> 8, -128, 127))


class TestElementwiseRefusals:
    def test_of_what_has_no_schedule(self) -> None:
        kinds, hundred = [MemoryId.ACC], Extent(1, 1, 1, 100)
        with pytest.raises(ScheduleError, match="needs a tensor"):
            elementwise(hundred, DEFAULT, [], CLIPPED)
        with pytest.raises(ScheduleError, match="no room for the planes"):
            elementwise(hundred, ONE, kinds * 2, [Step(AluOpcode.ADD, Plane(1))])
        with pytest.raises(ScheduleError, match="is of ACC or ACC_8BIT"):
            elementwise(hundred, DEFAULT, [MemoryId.INP], CLIPPED)
        with pytest.raises(ScheduleError, match="does not fit into the accumulators"):
            large = Extent(1, 1, 1, 1 << 20)
            Elementwise(large, DEFAULT, Epilogue(CLIPPED, (MemoryId.ACC,)), large)


@pytest.mark.parametrize(
    "changes", [{"images": 0}, {"stride": (0, 1)}, {"padding": (0, -1, 0, 0)}, {"kernel": (6, 1)}]
)
def test_a_convolution_that_does_not_exist_is_refused(changes: dict[str, Any]) -> None:
    values: dict[str, Any] = {
        "images": 1,
        "in_channels": 1,
        "height": 5,
        "width": 5,
        "out_channels": 1,
        "kernel": (3, 3),
    }
    Conv2d(**values)
    with pytest.raises(ScheduleError):
        Conv2d(**{**values, **changes})


def test_a_number_that_no_instruction_has_is_refused() -> None:
    Step(AluOpcode.ADD, -(1 << 15))
    with pytest.raises(ScheduleError, match="32768 is no number of 16 bits"):
        Step(AluOpcode.ADD, 1 << 15)


class TestChoice:
    @pytest.mark.parametrize("name", RESNET_3X3)
    def test_two_virtual_threads_hide_the_loads(self, name: str) -> None:
        # The paper has 70 % of the core's peak at best without hiding latency, and 88 % with it.
        used = {}
        for threads in THREADS:
            plan = conv2d(
                RESNET_3X3[name], DEFAULT, (Step(AluOpcode.SHR, 5), *CLIPPED), threads=threads
            )
            stream = search.stream_of(plan)
            used[threads] = timing.run(DEFAULT, PYNQ, stream).utilisation
        assert used[1] < used[2]
        assert used[2] > 0.75

    @pytest.mark.parametrize("threads", THREADS)
    def test_what_is_timed_is_what_an_empty_core_gets(self, threads: int) -> None:
        shape = RESNET_3X3["C12"]
        steps = (Step(AluOpcode.ADD, Channels(0)), Step(AluOpcode.SHR, 5), *CLIPPED)
        plan = conv2d(shape, DEFAULT, steps, threads=threads)
        with Runtime(Core.create(DEFAULT, 1 << 24)) as runtime:
            sizes = [plan.input_bytes, plan.weight_bytes, plan.output_bytes]
            sizes.append(plan.output.blocks * DEFAULT.element_bytes(MemoryId.ACC))
            image, weights, output, *channels = map(runtime.alloc, sizes)
            plan.emit(runtime, image, weights, output, channels=channels)
            assert search.stream_of(plan) == runtime.take()

    def test_the_cost_that_is_given_decides(self) -> None:
        shape = RESNET_3X3["C12"]
        longest = max(
            search.likeliest(shape, DEFAULT, Epilogue(), PYNQ),
            key=lambda tile: len(search.stream_of(Convolution(shape, DEFAULT, tile))),
        )
        tile = search.best_tile(
            shape, DEFAULT, Epilogue(), PYNQ, cost=lambda config, p, stream: -len(stream)
        )
        assert tile == longest

    def test_long_streams_are_not_timed(self) -> None:
        shape = Conv2d(1, 16, 512, 512, 16, (64, 64), depthwise=True)

        def cost(*_: object) -> float:
            pytest.fail("a long stream was made")

        tile = search.best_tile(shape, DEFAULT, Epilogue(), PYNQ, cost=cost)
        plan = Convolution(shape, DEFAULT, tile)
        assert plan.steps == len(plan.tiles()) * len(plan.parts()) > search.MOST_TIMED

    def test_what_was_found_is_asked_for_only_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shape = Conv2d(1, 16, 5, 5, 16, (3, 3))
        first = search.best_tile(shape, TINY, Epilogue(), PYNQ)
        monkeypatch.setattr(search, "likeliest", lambda *_: pytest.fail("looked again"))
        assert search.best_tile(shape, TINY, Epilogue(), PYNQ) == first

    @pytest.mark.parametrize(
        "kept",
        [
            None,
            [],
            {"rows": 1},
            {
                "rows": 99,
                "columns": 99,
                "out_blocks": 99,
                "in_blocks": 99,
                "taps": [3, 3],
                "threads": 1,
                "outer": "image",
            },
            {
                "rows": 1,
                "columns": 1,
                "out_blocks": 1,
                "in_blocks": 1,
                "taps": [4, 4],
                "threads": 1,
                "outer": "image",
            },
            {
                "rows": 1,
                "columns": 1,
                "out_blocks": 1,
                "in_blocks": 0.5,
                "taps": [3, 3],
                "threads": 1,
                "outer": "image",
            },
        ],
    )
    def test_a_cache_that_was_meddled_with_is_not_believed(
        self, kept: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shape = Conv2d(1, 16, 5, 5, 16, (3, 3))
        expected = search.best_tile(shape, TINY, Epilogue(), PYNQ)
        monkeypatch.setattr(search.TILINGS, "load", lambda name: json.dumps(kept).encode())
        assert search.best_tile(shape, TINY, Epilogue(), PYNQ) == expected

    @pytest.mark.parametrize("kept", [b"", b"\xff", b"[" * 100_000, b"[1]"])
    def test_what_is_no_tiling_is_no_answer(
        self, kept: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shape = Conv2d(1, 16, 5, 5, 16, (3, 3))
        expected = search.best_tile(shape, TINY, Epilogue(), PYNQ)
        monkeypatch.setattr(search.TILINGS, "load", lambda name: kept)
        assert search.best_tile(shape, TINY, Epilogue(), PYNQ) == expected

    def test_what_was_found_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shape = Conv2d(1, 16, 6, 7, 16, (3, 3))
        expected = search.best_tile(shape, TINY, Epilogue(), PYNQ)
        monkeypatch.setattr(search, "likeliest", None)
        assert search.best_tile(shape, TINY, Epilogue(), PYNQ) == expected
