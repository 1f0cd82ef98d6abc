"""The core's registers."""

import pytest

from potash_device.vta.config import Config, MemoryId
from potash_device.vta.core import Control, Core, Register, RegisterError
from potash_device.vta.isa import (
    Dependencies,
    Finish,
    Gemm,
    Instruction,
    Load,
    Store,
    encode_stream,
)
from potash_device.vta.simulator import Event
from potash_device.vta.stream import Order, StreamError

BASE = 0x1000


@pytest.fixture
def core() -> Core:
    return Core.create(Config.default(), 4096)


def start(core: Core, *instructions: Instruction) -> None:
    stream = encode_stream(instructions, core.config)
    core.dram[: len(stream)] = stream
    core.write(Register.INSNS, BASE)
    core.write(Register.INSN_COUNT, len(instructions))
    core.write(Register.CONTROL, Control.START)


def test_registers_are_where_the_driver_expects_them() -> None:
    assert [(r.name, r.value) for r in Register] == [
        ("CONTROL", 0x00),
        ("INSN_COUNT", 0x10),
        ("INSNS", 0x18),
    ]
    assert (Control.START, Control.DONE) == (1, 2)


def test_done_is_set_by_a_stream_that_ends(core: Core) -> None:
    assert core.read(Register.CONTROL) == 0
    start(core, Finish())
    assert core.read(Register.CONTROL) == Control.DONE
    core.write(Register.CONTROL, 0)
    assert core.read(Register.CONTROL) == Control.DONE


def test_a_stream_moves_data(core: Core) -> None:
    core.dram[1024:1040] = bytes(range(240, 256))
    rectangle = {"y_size": 1, "x_size": 1, "x_stride": 1}
    start(
        core,
        Load(
            memory_type=MemoryId.ACC_8BIT,
            dram_base=(BASE + 1024) // 16,
            dependencies=Dependencies.PUSH_NEXT,
            **rectangle,
        ),
        Store(
            memory_type=MemoryId.OUT,
            dram_base=(BASE + 2048) // 16,
            dependencies=Dependencies.POP_PREV,
            **rectangle,
        ),
        Finish(),
    )
    assert bytes(core.dram[2048:2064]) == bytes(range(240, 256))


def test_an_error_is_raised_and_latched_until_the_next_start(core: Core) -> None:
    start(core, Finish())
    with pytest.raises(StreamError, match="does not end with FINISH") as caught:
        start(core, Load(memory_type=MemoryId.INP))
    assert core.error is caught.value
    assert core.read(Register.CONTROL) == 0
    start(core, Finish())
    assert core.error is None
    assert core.read(Register.CONTROL) == Control.DONE


def test_no_instructions_are_an_error(core: Core) -> None:
    with pytest.raises(StreamError, match="instruction 0"):
        start(core)


def test_an_address_outside_dram_is_an_error(core: Core) -> None:
    core.write(Register.INSNS, 2**64 - 16)
    core.write(Register.INSN_COUNT, 1)
    with pytest.raises(StreamError, match="is not in DRAM"):
        core.write(Register.CONTROL, Control.START)


@pytest.mark.parametrize("register", [Register.INSN_COUNT, Register.INSNS])
def test_some_registers_can_only_be_written(core: Core, register: Register) -> None:
    with pytest.raises(RegisterError, match=f"{register.name} cannot be read"):
        core.read(register)


@pytest.mark.parametrize("offset", [0x04, 0x08, 0x20, -1])
def test_an_unknown_register_is_refused(core: Core, offset: int) -> None:
    with pytest.raises(RegisterError, match="no register at"):
        core.read(offset)
    with pytest.raises(RegisterError, match="no register at"):
        core.write(offset, 0)


@pytest.mark.parametrize(
    ("register", "value"),
    [(Register.INSN_COUNT, 1 << 32), (Register.INSNS, 1 << 64), (Register.CONTROL, -1)],
)
def test_a_value_that_is_too_wide_is_refused(core: Core, register: int, value: int) -> None:
    with pytest.raises(RegisterError, match="does not fit"):
        core.write(register, value)


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="no VTA engine 'quick'; there is auto, fast, readable"):
        Core.create(Config.default(), 4096, engine="quick")


def test_reset_forgets_everything_but_dram(core: Core) -> None:
    start(core, Finish())
    core.reset()
    assert core.read(Register.CONTROL) == 0
    assert core.error is None
    assert core.dram[0] == 3  # FINISH is still there, the registers that led to it are not
    with pytest.raises(StreamError):
        core.write(Register.CONTROL, Control.START)


def test_the_watchdog_is_the_makers_choice() -> None:
    core = Core(Config.default(), memoryview(bytearray(4096)), step_limit=10)
    start(core, Gemm(uop_end=1, iter_out=10), Finish())
    with pytest.raises(StreamError, match="more than 10 micro-ops"):
        start(core, Gemm(uop_end=1, iter_out=11), Finish())


def test_events_reach_a_listener(core: Core) -> None:
    events: list[Event] = []
    core.trace = events.append
    start(core, Finish())
    assert events == [Event(0, Finish())]
    core.trace = None
    start(core, Finish())
    assert len(events) == 1


def test_a_stream_need_not_lie_in_dram(core: Core) -> None:
    core.execute((3).to_bytes(16, "little"))
    assert core.read(Register.CONTROL) == Control.DONE
    assert not any(core.dram)
    with pytest.raises(
        StreamError, match="instruction 1: the stream ends after 4 of its bytes"
    ) as e:
        core.execute(bytes(20))
    assert core.error is e.value
    assert core.read(Register.CONTROL) == 0


def test_the_order_is_the_makers_choice() -> None:
    waits_in_vain = Load(memory_type=MemoryId.INP, dependencies=Dependencies.POP_NEXT)
    dram = memoryview(bytearray(4096))
    start(Core(Config.default(), dram, order=Order.PROGRAM), waits_in_vain, Finish())
    with pytest.raises(StreamError, match="deadlock"):
        start(Core(Config.default(), dram), waits_in_vain, Finish())
