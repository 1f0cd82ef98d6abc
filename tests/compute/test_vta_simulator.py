"""Loads and stores, and what the simulator says while it runs."""

import numpy as np
import pytest

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.isa import Dependencies, Gemm, Load, Store
from potash_device.vta.simulator import Event
from potash_device.vta.stream import StreamError
from support.vta import BASE, Bench, acc_pattern


@pytest.fixture
def bench() -> Bench:
    return Bench()


class TestLoad:
    def test_a_strided_rectangle_with_pads(self, bench: Bench) -> None:
        inp = np.arange(1, 12 * 8 + 1, dtype=np.int8).reshape(12, 2, 4)
        bench.put(64, inp)
        bench.simulator.inp[:] = 77
        bench.run(
            Load(
                memory_type=MemoryId.INP,
                sram_base=1,
                dram_base=bench.element(MemoryId.INP, 64),
                y_size=2,
                x_size=2,
                x_stride=5,
                y_pad_0=1,
                y_pad_1=1,
                x_pad_0=1,
                x_pad_1=0,
            )
        )
        zero, old = np.zeros((2, 4)), np.full((2, 4), 77)
        # rows of one pad and two elements: a row of pads, elements 0 1, elements 5 6, pads
        expected = [old, zero, zero, zero, zero, inp[0], inp[1], zero, inp[5], inp[6]]
        expected += [zero, zero, zero, old, old, old]
        np.testing.assert_array_equal(bench.simulator.inp, np.stack(expected))

    def test_pads_after_the_rows(self, bench: Bench) -> None:
        wgt = np.arange(-128, 2 * 32 - 128, dtype=np.int8).reshape(2, 8, 4)
        bench.put(0, wgt)
        bench.simulator.wgt[:] = 1
        bench.run(
            Load(
                memory_type=MemoryId.WGT,
                dram_base=bench.element(MemoryId.WGT, 0),
                y_size=2,
                x_size=1,
                x_stride=1,
                x_pad_1=2,
            )
        )
        np.testing.assert_array_equal(bench.simulator.wgt[0], wgt[0])
        np.testing.assert_array_equal(bench.simulator.wgt[3], wgt[1])
        assert not bench.simulator.wgt[[1, 2, 4, 5]].any()
        assert (bench.simulator.wgt[6:] == 1).all()

    def test_rows_may_overlap_in_dram_and_repeat(self, bench: Bench) -> None:
        acc = np.arange(3 * 16, dtype=np.int32).reshape(3, 2, 8) - 7
        bench.put(0, acc)
        base = bench.element(MemoryId.ACC, 0)
        bench.run(
            Load(memory_type=MemoryId.ACC, dram_base=base, y_size=2, x_size=2, x_stride=1),
            Load(
                memory_type=MemoryId.ACC,
                sram_base=4,
                dram_base=base + 2,
                y_size=3,
                x_size=1,
                x_stride=0,
            ),
        )
        np.testing.assert_array_equal(bench.simulator.acc[:7], acc[[0, 1, 1, 2, 2, 2, 2]])

    def test_eight_bit_values_are_sign_extended_into_acc(self, bench: Bench) -> None:
        values = np.array([-128, -1, 0, 1, 127, *range(11)], np.int8)
        bench.put(16, values)
        bench.run(
            Load(
                memory_type=MemoryId.ACC_8BIT,
                sram_base=3,
                dram_base=bench.element(MemoryId.ACC_8BIT, 16),
                y_size=1,
                x_size=1,
                x_stride=1,
            )
        )
        assert bench.simulator.acc[3].ravel().tolist() == [-128, -1, 0, 1, 127, *range(11)]

    def test_micro_ops(self, bench: Bench) -> None:
        bench.put(4, np.array([0x12345678, 0xFFFFFFFF], "<u4"))
        bench.run(
            Load(
                memory_type=MemoryId.UOP,
                sram_base=6,
                dram_base=bench.element(MemoryId.UOP, 4),
                y_size=1,
                x_size=2,
                x_stride=2,
            )
        )
        assert bench.simulator.uop[6:].tolist() == [0x12345678, 0xFFFFFFFF]

    def test_no_columns_is_no_operation_whatever_else_it_says(self, bench: Bench) -> None:
        bench.simulator.acc[:] = 5
        bench.run(
            Load(
                memory_type=MemoryId.ACC,
                sram_base=65535,
                dram_base=0,
                y_size=9,
                y_pad_0=15,
                x_pad_1=15,
            ),
            Store(memory_type=MemoryId.UOP, y_size=3, dram_base=0),
        )
        assert (bench.simulator.acc == 5).all()

    def test_no_rows_still_pad(self, bench: Bench) -> None:
        bench.simulator.acc[:] = 5
        bench.run(Load(memory_type=MemoryId.ACC, sram_base=2, x_size=2, y_pad_0=1, y_pad_1=1))
        assert (bench.simulator.acc == 0).all(axis=(1, 2)).nonzero()[0].tolist() == [2, 3, 4, 5]

    def test_buffers_keep_their_contents_between_streams(self, bench: Bench) -> None:
        bench.simulator.acc[:] = acc_pattern()
        bench.run()
        np.testing.assert_array_equal(bench.simulator.acc, acc_pattern())
        bench.simulator.reset()
        assert not bench.simulator.acc.any()


class TestStore:
    def test_the_low_eight_bits_are_stored(self, bench: Bench) -> None:
        numbers = [0, 127, 128, 255, 256, -1, -128, -129, 2**31 - 1, -(2**31), 0x1234, -0x1234]
        numbers += [1, 2, 3, 4]
        bench.simulator.acc[2] = np.array(numbers, np.int64).astype(np.int32).reshape(2, 8)
        bench.run(
            Store(
                memory_type=MemoryId.OUT,
                sram_base=2,
                dram_base=bench.element(MemoryId.OUT, 32),
                y_size=1,
                x_size=1,
                x_stride=1,
            )
        )
        assert list(bench.dram[32:48]) == [number & 0xFF for number in numbers]
        assert not any(bench.dram[:32])
        assert not any(bench.dram[48:64])

    def test_rows_are_packed_on_the_chip_and_apart_in_dram(self, bench: Bench) -> None:
        bench.simulator.acc[:] = np.arange(16)[:, None, None] + 1
        bench.run(
            Store(
                memory_type=MemoryId.OUT,
                sram_base=4,
                dram_base=bench.element(MemoryId.OUT, 0),
                y_size=2,
                x_size=2,
                x_stride=3,
            )
        )
        assert list(bench.dram[: 6 * 16 : 16]) == [5, 6, 0, 7, 8, 0]

    def test_wider_outputs_keep_more_bits(self) -> None:
        bench = Bench(Config(log_out_width=4))
        bench.simulator.acc[0, 0, :2] = [0x12345, -2]
        bench.run(
            Store(
                memory_type=MemoryId.OUT,
                dram_base=bench.element(MemoryId.OUT, 0),
                y_size=1,
                x_size=1,
                x_stride=1,
            )
        )
        assert bytes(bench.dram[:4]) == b"\x45\x23\xfe\xff"


def test_events_come_in_the_order_of_execution(bench: Bench) -> None:
    events: list[Event] = []
    bench.simulator.trace = events.append
    store = Store(memory_type=MemoryId.OUT)
    load = Load(memory_type=MemoryId.INP, dependencies=Dependencies.PUSH_NEXT)
    gemm = Gemm(dependencies=Dependencies.POP_PREV)
    bench.run(store, gemm, load)
    assert [event.index for event in events] == [2, 1, 3, 0]
    assert [event.instruction for event in events][:2] == [load, gemm]


def test_a_stream_may_lie_anywhere_in_dram(bench: Bench) -> None:
    bench.dram[0:16] = (3).to_bytes(16, "little")
    bench.simulator.run(BASE, 1)
    with pytest.raises(StreamError):
        bench.simulator.run(BASE + 16, 1)
