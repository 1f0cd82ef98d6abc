"""What a worker's tensor accelerator does, as it is counted and told."""

import base64
import os
from collections.abc import Mapping

import pytest

from potash.models.networks import make
from potash.vta.inference import time_nodes
from potash_device.trace import COMPUTE
from potash_device.vta import timing
from potash_device.vta.config import CORES, Config, MemoryId
from potash_device.vta.core import Core
from potash_device.vta.isa import encode_stream
from potash_device.vta.stream import StreamError
from potash_device.vta.timing import parameters
from potash_firmware.apu.models import Meter, Models
from potash_firmware.mailbox.shared import Counters, Word, unshared_row
from potash_firmware.vta_runtime import Runtime

CONFIG = Config.default()
DRAM = 1 << 20


def run_once(runtime: Runtime) -> bytes:
    """Load something and end; gives the stream."""
    buffer = runtime.alloc(4096)
    runtime.load_2d(buffer, MemoryId.INP, sram=0, offset=0, x_size=4)
    stream = runtime.take()
    runtime.core.execute(stream)
    buffer.free()
    return stream


@pytest.mark.parametrize("counted", [True, False])
def test_streams_are_counted_and_their_cycles_if_that_is_wanted(counted: bool) -> None:
    row = unshared_row()
    core = Core.create(CONFIG, DRAM)
    Meter(row, count_cycles=counted).attach(core)
    with Runtime(core) as runtime:
        stream = run_once(runtime)
        core.execute(stream)
    # The readable clock, which is the specification, while the meter may take another.
    cycles = timing.run(CONFIG, parameters.PYNQ, stream, compiled=False).cycles
    assert row[Word.STREAMS] == 2
    assert row[Word.INSTRUCTIONS] == 2 * len(stream) // 16
    assert row[Word.CYCLES] == (2 * cycles if counted else 0)


def test_a_stream_that_fails_is_not_counted() -> None:
    row = unshared_row()
    core = Core.create(CONFIG, DRAM)
    Meter(row).attach(core)
    with pytest.raises(StreamError):
        core.execute(b"\xff" * 16)
    assert row[Word.STREAMS] == 0


def test_a_stream_in_dram_is_told_as_the_driver_put_it_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[str, Mapping[str, object]]] = []
    monkeypatch.setattr(COMPUTE, "sink", lambda point, known: told.append((point, known)))
    core = Core.create(CONFIG, DRAM)
    Meter().attach(core)
    with Runtime(core) as runtime:
        buffer = runtime.alloc(4096)
        runtime.load_2d(buffer, MemoryId.INP, sram=0, offset=0, x_size=4)
        wanted = b"".join(
            one.to_bytes(16, "little") for one in _words(runtime)
        )  # what `synchronize` goes on to end
        runtime.synchronize()
    (core_point, about), (point, known) = told
    assert (core_point, about["config"]) == ("vta.core", CONFIG.to_mapping())
    assert point == "vta.stream"
    stream = base64.b64decode(str(known["stream"]))
    assert stream[: len(wanted)] == wanted
    assert stream[-16:][0] & 7 == 3, "FINISH is opcode 3"


def _words(runtime: Runtime) -> list[int]:
    # The last one may still be given a dependence.
    data = encode_stream(runtime.instructions[:-1], CONFIG)
    return [int.from_bytes(data[at : at + 16], "little") for at in range(0, len(data), 16)]


def test_nobody_who_does_not_watch_pays_for_a_span() -> None:
    assert COMPUTE.sink is None
    assert COMPUTE.span("a", x=1) is COMPUTE.span("b")


def test_a_span_says_when_it_began_and_how_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, Mapping[str, object]]] = []
    monkeypatch.setattr(COMPUTE, "sink", lambda point, known: told.append((point, known)))
    with pytest.raises(KeyError), COMPUTE.span("outer", x=1), COMPUTE.span("inner"):
        raise KeyError
    assert [point for point, _ in told] == ["inner", "outer"]
    inner, outer = (known for _, known in told)
    assert (outer["x"], outer["error"], inner["error"]) == (1, "KeyError", "KeyError")
    began = inner["began"], outer["began"]
    assert isinstance(began[0], float) and isinstance(began[1], float)
    assert began[1] <= began[0]


def test_rows_are_shared_and_apart() -> None:
    with Counters.create(130) as mine, Counters.adopt(os.dup(mine.fd), 130) as others:
        others.row(129)[Word.DONE] = (1 << 64) - 1
        others.row(0)[Word.CYCLES] += 5
        assert mine.row(129)[Word.DONE] == (1 << 64) - 1
        assert mine.row(0)[Word.CYCLES] == 5
        assert sum(sum(mine.row(place)) for place in range(1, 129)) == 0


@pytest.mark.parametrize("core", CORES)
def test_a_model_s_cycles_are_the_sum_of_those_of_its_nodes(core: str) -> None:
    model, row = make("conv-conv-add"), unshared_row()
    models = Models(CORES[core].to_mapping(), Meter(row, count_cycles=True))
    output = memoryview(bytearray(4096))
    for _ in range(2):
        models.infer_vta(memoryview(model), memoryview(bytes(300)), output)
    nodes = time_nodes(model, CORES[core], parameters.PYNQ).layers
    assert row[Word.CYCLES] == 2 * sum(node.time.cycles for node in nodes if node.time)
