"""A compute namespace's worker: programs on memory ranges, one execution after the other.

What one execution names is all that this process has: descriptors of it come with the order, and go
when an order comes that does not name them. While the next one names the same, its program stays
compiled and its ranges stay mapped.
"""

import logging
import os
import socket
from collections.abc import Callable
from dataclasses import replace

from potash_device.trace import COMPUTE
from potash_firmware import bpf
from potash_firmware.apu import channel
from potash_firmware.apu.channel import Perform
from potash_firmware.apu.config import Limits
from potash_firmware.apu.inference import Inference
from potash_firmware.apu.reporting import Reporter
from potash_firmware.apu.work_counter import WorkCounter
from potash_firmware.bpf.engine import base_of
from potash_firmware.bpf.ranged import Extent, Placed, Window
from potash_firmware.bpf.reserve import Space
from potash_firmware.mailbox import execution
from potash_firmware.mailbox.counters import Row, unshared_row
from potash_firmware.mailbox.device_programs import DeviceProgram

log = logging.getLogger(__name__)

MOST_DESCRIPTORS = execution.MAX_RANGES + 2
"""That come with an order: of its memory, its program and its data."""


def serve(
    end: socket.socket,
    models: Inference,
    limits: Limits,
    engine: bpf.Engine,
    counter: WorkCounter | None = None,
    row: Callable[[int], Row] = lambda _: unshared_row(),
) -> None:
    """Do what is ordered through `end`, until nobody is at its other side.

    Executions count in `counter`, if there is one, and say so in the `row` that they name.
    """
    reporter = Reporter(end)
    worker = _Worker(reporter, models, limits, engine, counter, row)
    reporter.serve(worker.perform, channel.MAX_PERFORM, MOST_DESCRIPTORS)


class _Worker:
    def __init__(
        self,
        reporter: Reporter,
        models: Inference,
        limits: Limits,
        engine: bpf.Engine,
        counter: WorkCounter | None,
        row: Callable[[int], Row],
    ) -> None:
        self._counter = counter
        self._row = row
        self._tally = None if counter is None else counter.tally
        self._reporter = reporter
        self._models = models
        self._limits = limits
        self._engine = engine
        space = Space()
        self._window = Window(space, base_of(engine, space.address))
        self._has: dict[int, int] = {}
        """Descriptors of what the last order named, by serial number."""
        self._program = 0
        self._placed: Placed | None = None
        self._ready_for: tuple[int, tuple[execution.MemoryRange, ...]] | None = None
        """The program and the ranges that are in place."""
        self._prepared = False
        """An engine is ready to run that program on them."""
        self._services = bpf.Services(
            reporter.print,
            models.infer_apu,
            models.infer_vta,
            log=reporter.log,
            load_model=models.load,
            called=None if counter is None else counter.called,
        )

    def perform(self, data: bytes, fds: list[int]) -> None:
        order = channel.decode_perform(data)
        self._take(order, fds)
        contents = _contents(fds[-1]) if order.execute.data_length else b""
        counter = self._counter
        if counter is not None:
            counter.row = self._row(order.execute.row)
            counter.begin()
        with COMPUTE.span("worker.execution", namespace=order.execute.nsid):
            answer = self._execute(order.execute, contents)
        if counter is not None:
            answer = replace(answer, work=counter.work)
        self._reporter.send(answer)
        # Nobody waits for this.
        if self._placed is not None:
            self._placed.clear()

    def _take(self, order: Perform, fds: list[int]) -> None:
        """Keep what the order names, and nothing else."""
        named = order.execute.named
        gone = self._has.keys() - named
        if gone:
            self._ready_for = None
            self._window.hide()
        for serial in gone:
            if serial == self._program:
                self._forget()
            os.close(self._has.pop(serial))
        self._has.update(zip(order.new, fds, strict=False))

    def _execute(self, job: execution.Execute, data: bytes) -> execution.Executed:
        try:
            return execution.Executed(job.tag, execution.Outcome.RETURNED, self._run(job, data))
        except (bpf.ProgramError, ValueError) as error:
            return self._failed(job, execution.Outcome.REFUSED, error)
        except Exception as error:
            if not isinstance(error, (bpf.Fault, MemoryError)):
                log.exception("an execution met a mistake of the firmware")
            return self._failed(job, execution.Outcome.FAULTED, error)

    def _run(self, job: execution.Execute, data: bytes) -> int:
        if (job.program, job.ranges) != self._ready_for:
            self._prepare(job)
        if self._placed is not None:
            return self._run_placed(self._placed, job, data)
        from potash_firmware.apu import device_programs  # NumPy takes its time to load

        program = DeviceProgram(job.program)
        if self._counter is not None:
            views = self._window.views
            self._counter.moved(device_programs.moved(program, views, job.parameters))
        return device_programs.run(program, self._window.views, job.parameters, data, self._models)

    def _prepare(self, job: execution.Execute) -> None:
        """Have the program placed and the ranges mapped that an execution names."""
        self._ready_for = None
        placed = self._placed if self._program == job.program else None
        if placed is None:
            self._forget()
            if job.program >= execution.FIRST_SERIAL:
                image, frame = _contents(os.dup(self._has[job.program])), self._limits.frame_size
                self._placed = placed = Placed(
                    bpf.load_program(image, frame_size=frame), self._window, frame
                )
        self._program = job.program
        self._window.show(
            [Extent(self._has[one.serial], one.offset, one.length) for one in job.ranges]
        )
        self._prepared = False
        self._ready_for = job.program, job.ranges

    def _run_placed(self, placed: Placed, job: execution.Execute, data: bytes) -> int:
        limit = self._limits.instructions
        try:
            if not self._prepared:
                placed.prepare(self._services, limit, self._engine, self._tally)
                self._prepared = True
            return placed.run(job.parameters, data).return_value
        except bpf.EngineUnavailable as error:
            log.warning("a program runs in the interpreter: %s", error)
            placed.prepare(self._services, limit, bpf.Engine.INTERPRETER, self._tally)
            return placed.run(job.parameters, data).return_value

    def _forget(self) -> None:
        self._ready_for, self._program, self._placed = None, 0, None
        self._window.begin(0)

    def _failed(
        self, job: execution.Execute, outcome: execution.Outcome, error: Exception
    ) -> execution.Executed:
        self._reporter.failure(error)
        return execution.Executed(job.tag, outcome)


def _contents(descriptor: int) -> bytes:
    """All that is in a memfd, which is closed."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()
