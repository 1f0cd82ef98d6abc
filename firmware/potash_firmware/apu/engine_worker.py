"""The worker of a compute namespace: programs run on memory ranges, which are mapped."""

from collections.abc import Sequence

from csd_spec.run_times import NOT_DECLARED
from potash_device.trace import COMPUTE
from potash_firmware import bpf
from potash_firmware.apu.queries import MemorySource
from potash_firmware.apu.worker import ProgramWorker, Setup, contents
from potash_firmware.bpf import reserve
from potash_firmware.bpf.engine import base_of
from potash_firmware.bpf.machine import Placed
from potash_firmware.mailbox.messages import FIRST_HANDLE, Execute, Executed, MemoryRange, Outcome
from potash_firmware.mailbox.shared import unshared_row
from potash_firmware.mailbox.values import MAX_OWN, ReadValue


class EngineWorker(ProgramWorker):
    """A worker of a compute namespace; executions report their modelled time in the counters."""

    largest = 4096

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, None)
        self._counters = setup.counters
        self._space = reserve.Space()
        self._base = base_of(setup.engine, self._space.address)
        self._program = 0
        self._placed: Placed | None = None
        self._run_time = NOT_DECLARED
        self._ready_for: tuple[int, tuple[MemoryRange, ...]] | None = None
        """The program and the ranges that are in place."""

    def _choose_row(self, message: Execute) -> None:
        assert self._counter is not None
        row = unshared_row()
        if self._counters is not None and message.row:
            row = self._counters.row(len(self._config.accelerators) - 1 + message.row)
        self._counter.row = row

    def _execute(self, message: Execute, data: bytes, descriptors: Sequence[int]) -> Executed:
        with COMPUTE.span("worker.execution", namespace=message.nsid):
            return Executed(message.tag, Outcome.RETURNED, self._run(message, data))

    def _run(self, message: Execute, data: bytes) -> int:
        if (message.program, message.ranges) != self._ready_for:
            self._prepare(message)
        if self._placed is not None:
            if self._counter is not None:
                self._counter.declare(self._run_time, sum(map(len, self._space.views)))
            return self._run_placed(self._placed, message, data)
        from potash_firmware.apu import device_programs  # NumPy takes its time to load

        program, views = message.program, self._space.views
        if self._counter is not None:
            self._counter.moved(device_programs.bytes_moved(program, views, message.parameters))
            self._counter.declare(device_programs.run_time(program), sum(map(len, views)))
        return device_programs.run(
            program, views, message.parameters, data, self._services.infer_vta, self._query
        )

    def _query(self, request: bytes | memoryview, file: memoryview, output: memoryview) -> int:
        return self._queries.piece(request, MemorySource(file, self._counter), output)

    def _value_message(self, request: bpf.ValueRequest) -> ReadValue:
        fields, size = self._value_fields(request), len(request.target)
        for index, (first, length) in enumerate(self._space.places):
            offset = request.offset - first
            if 0 <= offset <= length - size:
                return ReadValue(*fields, offset, index)
        if size > MAX_OWN:
            raise ValueError(f"more than {MAX_OWN} bytes are read into one memory range only")
        return ReadValue(*fields)

    def _prepare(self, message: Execute) -> None:
        """Place the program that an execution names, and map its ranges."""
        self._ready_for = None
        self._queries.drop()
        if self._placed is None or self._program != message.program:
            self._drop_program()
            if message.program >= FIRST_HANDLE:
                image = contents(self._descriptors[message.program])
                frame_size = self._config.limits.frame_size
                program = bpf.load_program(image, frame_size=frame_size)
                self._placed = Placed(program, self._space, frame_size, self._base)
                self._run_time = program.run_time
        self._program = message.program
        self._space.show(
            [
                reserve.Extent(self._descriptors[item.handle], item.offset, item.length)
                for item in message.ranges
            ]
        )
        self._prepared_for = None
        self._ready_for = message.program, message.ranges

    def _run_placed(self, placed: Placed, message: Execute, data: bytes) -> int:
        def run(engine: bpf.Engine) -> bpf.Outcome:
            if self._prepared_for is not engine:
                self._prepared_for = None
                limit = self._config.limits.instructions
                placed.prepare(self._services, limit, engine, self._instructions)
                self._prepared_for = engine
            return placed.run(message.parameters, data)

        value = self._run_on_engine(run).return_value
        if not data and self._counter is None and COMPUTE.sink is None:
            self._again = lambda: self._run_on_engine(run).return_value
        return value

    def _drop_program(self) -> None:
        self._ready_for, self._program, self._placed = None, 0, None
        self._space.begin(0)

    def _release(self, handle: int) -> None:
        self._ready_for = None
        self._space.hide()
        if handle == self._program:
            self._drop_program()

    def _clear(self) -> None:
        if self._placed is not None:
            self._placed.clear()
