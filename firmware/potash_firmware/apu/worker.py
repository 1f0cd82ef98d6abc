"""A worker: the confined process in which programs run, one execution after another.

For an accelerator, programs run in the memory of its buffers: the worker reads the input from the
media and leaves the output in that memory. It never writes media: a program's writes are gathered
there, and the RPU performs them after the job. For a compute namespace, programs run on memory
ranges that are mapped. A worker may be killed, or crash, at any moment: nothing outside relies on
it to finish.

What the next execution of the same program needs is kept: the linked program, the table of its
helpers and its machine. What the next execution does not name is closed and unmapped before it
starts.

The board's worker: Alkali CSD platform documentation, section 3.4 (APU Software).
"""

import errno
import logging
import os
import resource
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from csd_spec.descriptors import LogEntryType
from csd_spec.program import Context, Level
from potash_device.trace import COMPUTE
from potash_firmware import bpf
from potash_firmware.apu import channel
from potash_firmware.apu.blocks import Blocks, MediaReadError, read_media
from potash_firmware.apu.channel import ExecuteJob, FromWorker, JobExecuted, Line, Ready
from potash_firmware.apu.compile_service import CompileClient
from potash_firmware.apu.config import Config
from potash_firmware.apu.queries import BlockSource, MemorySource, Queries, request_in
from potash_firmware.apu.work_counter import WorkCounter
from potash_firmware.bpf import reserve
from potash_firmware.mailbox import returned, tag_of, untagged
from potash_firmware.mailbox.device_programs import DeviceProgram
from potash_firmware.mailbox.messages import (
    Execute,
    Executed,
    Outcome,
)
from potash_firmware.mailbox.shared import (
    SLOT_SIZE,
    Counters,
    Row,
    SharedMemory,
    Word,
    add,
    unshared_row,
)
from potash_firmware.mailbox.values import ReadJobValue, ReadValue

if TYPE_CHECKING:
    from potash_firmware.apu.models import Models

log = logging.getLogger(__name__)

LOG_TYPES: dict[bpf.FaultKind, LogEntryType] = {
    bpf.FaultKind.OUT_OF_BOUNDS: LogEntryType.MEMORY_FAULT,
    bpf.FaultKind.READ_ONLY: LogEntryType.MEMORY_FAULT,
    bpf.FaultKind.UNALIGNED: LogEntryType.MEMORY_FAULT,
    bpf.FaultKind.INSTRUCTION_LIMIT: LogEntryType.LIMIT_EXCEEDED,
    bpf.FaultKind.CALL_DEPTH: LogEntryType.LIMIT_EXCEEDED,
}
"""The type of the log entry of a fault; other faults are logged as ACCELERATOR_ERROR."""

LEVELS = {Level.INFO: LogEntryType.PROGRAM_OUTPUT, Level.ERROR: LogEntryType.ACCELERATOR_ERROR}
"""The type of the log entry of a text that a program logs."""

CLOSED = -1
"""In place of a descriptor whose contents have been read."""

FAILURES = (bpf.Fault, bpf.ProgramError, ValueError, MediaReadError, MemoryError)
"""The failures of programs; any other exception is an error of the firmware."""


class Setup(NamedTuple):
    """The surroundings of a worker that runs programs, on `engine`."""

    service: socket.socket
    config: Config
    engine: bpf.Engine
    compiler: CompileClient
    counters: Counters | None = None


class Worker:
    """A worker of any kind: it receives executions, runs them, and reports."""

    largest: ClassVar[int] = channel.MAX_MESSAGE
    """Size of the largest message that it receives, in bytes."""

    def __init__(self, service: socket.socket, config: Config) -> None:
        self._service = service
        self._config = config
        self._counter: WorkCounter | None = None
        self._descriptors: dict[int, int] = {}
        """Descriptors of what the last execution named, by handle."""
        self._last = b""
        """The datagram of the last execution without its tag."""
        self._tag = b""
        """The bytes of that tag."""
        self._again: Callable[[], int] | None = None
        """Runs the last execution again, where nothing but that is to be done for another one like
        it."""

    def serve(self) -> None:
        """Run one execution after another, until the other end is closed."""
        try:
            self._send(Ready())
            while True:
                data, descriptors, flags, _ = socket.recv_fds(
                    self._service, self.largest, channel.MOST_DESCRIPTORS
                )
                if not data:
                    return
                if flags & socket.MSG_CTRUNC:  # it would use memory in place of other memory
                    raise OSError(errno.EMFILE, "descriptors of an execution did not arrive")
                self._receive(data, descriptors)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the service has exited, or does not need this worker any more

    def _receive(self, data: bytes, descriptors: Sequence[int]) -> None:
        last, self._last, self._tag = self._last, untagged(data), tag_of(data)
        if self._again is None or self._last != last or descriptors:
            self._perform(channel.decode_execution(data), descriptors)
            return
        try:
            answer = returned(self._tag, self._again())
        except Exception as error:  # noqa: BLE001 - `_failed` reports it
            answer = channel.encode(self._failed(channel.decode_execution(data), error))
        self._service.send(answer, socket.MSG_NOSIGNAL)
        self._clear()

    def _perform(self, message: Execute, descriptors: Sequence[int]) -> None:
        self._again = None
        named, has = message.named, self._descriptors
        for handle in has.keys() - named:
            self._release(handle)
            self._close(handle)
            del has[handle]
        new = sorted(named - has.keys())
        has.update(zip(new, descriptors[: len(new)], strict=True))
        others = descriptors[len(new) :]
        counter = self._counter
        if counter is not None:
            self._choose_row(message)
            counter.begin()
        try:
            data = contents(others[0]) if message.data_length else b""
            answer = self._execute(message, data, others[1:] if message.data_length else others)
        except Exception as error:  # noqa: BLE001 - `_failed` reports it
            answer = self._failed(message, error)
        finally:
            for descriptor in others:
                os.close(descriptor)
        if counter is not None:
            for first in range(0, len(counter.reads), channel.RANGES_AT_ONCE):
                reads = tuple(counter.reads[first : first + channel.RANGES_AT_ONCE])
                self._send(channel.BlocksRead(reads))
            answer = replace(answer, work=counter.work)
        self._send(answer)
        self._clear()

    def _failed(self, message: Execute, error: Exception) -> Executed:
        """Report why an execution has failed; the answer to it."""
        self._again = None
        if not isinstance(error, FAILURES):
            log.error("an error of the firmware in an execution", exc_info=error)
            self._release(message.program)  # it may be half prepared
        refused = isinstance(error, (bpf.ProgramError, ValueError))
        self._report(error)
        return Executed(message.tag, Outcome.REFUSED if refused else Outcome.FAULTED)

    def _execute(self, message: Execute, data: bytes, descriptors: Sequence[int]) -> Executed:
        """Run a program. Raises one of `FAILURES`."""
        raise NotImplementedError

    def _release(self, handle: int) -> None:
        """Unmap memory, or drop a program, which the next execution does not name."""

    def _close(self, handle: int) -> None:
        """Close the descriptor of memory or a program, unless that has happened."""
        descriptor, self._descriptors[handle] = self._descriptors[handle], CLOSED
        if descriptor != CLOSED:
            os.close(descriptor)

    def _clear(self) -> None:
        """Clear the memory of an execution, when it has been answered."""

    def _choose_row(self, message: Execute) -> None:
        """Select the row of counters in which an execution reports its modelled time."""

    def _send(self, message: FromWorker) -> None:
        self._service.send(channel.encode(message), socket.MSG_NOSIGNAL)

    def _log(self, level: Level, text: str) -> None:
        self._send(Line(LEVELS[level], text[: channel.TEXT_LIMIT]))

    def _print(self, text: str) -> None:
        self._log(Level.INFO, text)

    def _report(self, error: Exception) -> None:
        """Send the log line about an execution that has failed."""
        kind, text = LogEntryType.ACCELERATOR_ERROR, str(error)
        if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
            memory, _ = resource.getrlimit(resource.RLIMIT_DATA)
            kind = LogEntryType.LIMIT_EXCEEDED
            text = f"the job takes more memory than the {memory >> 20} MiB that it may have"
        elif isinstance(error, bpf.Fault):
            kind = LOG_TYPES.get(error.kind, kind)
        elif isinstance(error, MediaReadError):
            kind = LogEntryType.INVALID_INPUT_BUFFER
        self._send(Line(kind, text[: channel.TEXT_LIMIT]))


class Checker(Worker):
    """Links and verifies a program, and does not run it."""

    def _execute(self, message: Execute, data: bytes, descriptors: Sequence[int]) -> Executed:
        try:
            image = contents(self._descriptors[message.program])
            program = bpf.load_program(image, frame_size=self._config.limits.frame_size)
        except MemoryError:
            raise bpf.ProgramError("it takes too much memory to check") from None
        return Executed(message.tag, Outcome.RETURNED, program.run_time.priority)


class ProgramWorker(Worker):
    """A worker that runs programs; models and modelled work are counted in `row`."""

    def __init__(self, setup: Setup, row: Row | None) -> None:
        super().__init__(setup.service, setup.config)
        self._engine = setup.engine
        if setup.config.processor is not None:
            self._counter = WorkCounter(setup.config.processor, row)
        self._instructions = None if self._counter is None else self._counter.instructions
        self._models_row = row
        self._queries = Queries(self._counter)
        self._compiler = setup.compiler
        self._prepared_for: bpf.Engine | None = None
        """The engine that the program is ready to run on."""
        self._services = bpf.Services(
            self._print,
            lambda *views: self._models.infer_apu(*views),
            lambda *views: self._models.infer_vta(*views),
            log=self._log,
            load_model=lambda model, processor: self._models.load(model, processor),
            called=None if self._counter is None else self._counter.called,
            read_values=self._read_values,
        )

    @cached_property
    def _models(self) -> "Models":
        """The models, imported when a program first runs one."""
        from potash_device.vta import engines
        from potash_firmware.apu.models import Meter, Models

        self._compiler.runs_models()
        engines.before_fast = self._compiler.kernels
        config, row = self._config, self._models_row
        count_cycles = config.count_cycles and row is not None
        meter = Meter(row, count_cycles=count_cycles, counter=self._counter)
        return Models(config.vta, meter, self._compiler.model, config.vta_threads)

    def _read_values(self, request: bpf.ValueRequest) -> int:
        """Have the RPU read a value, or keys, and wait for it."""
        self._send(self._value_message(request))
        data = self._service.recv(channel.MAX_MESSAGE)
        if not data:
            raise ConnectionResetError("the service has exited")
        read = channel.decode_value(data)
        request.target[: len(read.data)] = read.data
        return read.result

    def _value_message(self, request: bpf.ValueRequest) -> ReadValue | ReadJobValue:
        """The message of a request. Raises ValueError for a target that no value can be copied
        to."""
        raise NotImplementedError

    def _value_fields(
        self, request: bpf.ValueRequest
    ) -> tuple[int, int, int, bytes, bool, int, int]:
        """The fields of the message of a request, but for the place of the target."""
        room = min(len(request.target), SLOT_SIZE)  # no value is longer
        at, moved = (0, 0) if self._counter is None else self._counter.position
        tag = int.from_bytes(self._tag, "little")
        return tag, request.nsid, room, request.key, request.lists, at, moved

    def _run_on_engine(self, run: Callable[[bpf.Engine], bpf.Outcome]) -> bpf.Outcome:
        """Have `run` run a program, for which it prepares it if it has not; on the interpreter if
        the configured engine does not take the program."""
        try:
            return run(self._prepared_for or self._engine)
        except bpf.EngineUnavailable as error:
            log.warning("a program runs in the interpreter: %s", error)
            return run(bpf.Engine.INTERPRETER)


class JobWorker(ProgramWorker):
    """The worker of an accelerator, whose memory has the descriptor `arena`."""

    def __init__(self, setup: Setup, accelerator: int, arena: int) -> None:
        config, counters = setup.config, setup.counters
        place = [item.id for item in config.accelerators].index(accelerator)
        row = None if counters is None else counters.row(place)
        super().__init__(setup, row)
        self._row = unshared_row() if row is None else row
        self._accelerator = config.accelerators[place]
        self._plan = plan = self._accelerator.plan
        self._arena = SharedMemory.adopt(arena, plan.size)
        self._memory = reserve.share(arena, plan.writes_offset)
        """The part of the arena that programs may access, mapped where nothing else is."""
        self._namespaces = {item.nsid: item for item in config.namespaces}
        self._services = replace(
            self._services,
            read_blocks=self._read_blocks,
            write_blocks=lambda *blocks: self._blocks.write(*blocks),
        )
        self._blocks = Blocks((), {}, {}, memoryview(b""))
        self._image = b""
        self._program: bpf.Program | None = None
        self._prepared: bpf.Prepared | None = None

    def _execute(self, message: Execute, data: bytes, descriptors: Sequence[int]) -> Executed:
        assert isinstance(message, ExecuteJob)
        plan, media = self._plan, dict(zip(message.namespaces, descriptors, strict=True))
        with COMPUTE.span("worker.job", accelerator=self._accelerator.id):
            if message.is_chained:
                output = self._memory[plan.output_offset :][: message.input_length]
                self._memory[plan.input_offset :][: len(output)] = output
            self._arena.discard(plan.output_offset, plan.data_offset - plan.output_offset)
            gathered = self._arena.view[plan.writes_offset : plan.writes_offset + plan.writes_size]
            ranges = message.output_ranges, message.unreadable
            self._blocks = Blocks(message.granted, self._namespaces, media, gathered, *ranges)
            if message.program == DeviceProgram.QUERY:
                made = self._query(message, media, data)
                return JobExecuted(message.tag, Outcome.RETURNED, made, output_length=made)
            if self._program is None:  # as after a query
                self._queries.drop()
                if self._descriptors[message.program] != CLOSED:
                    self._image = contents(self._descriptors[message.program])
                    self._close(message.program)
                frame_size = self._accelerator.frame_size
                self._program = bpf.load_program(self._image, frame_size=frame_size)
            if self._counter is not None:
                self._counter.declare(self._program.run_time, message.input_length)
            self._read_input(message, media)
            self._arena.discard(plan.writes_offset, plan.size - plan.writes_offset)
            outcome = self._run(self._program, message, Context(data))
        written = self._blocks.written() if message.granted else ()
        for first in range(0, len(written), channel.RANGES_AT_ONCE):
            self._send(channel.Gathered(written[first : first + channel.RANGES_AT_ONCE]))
        length = message.output_length if outcome.output_length is None else outcome.output_length
        ended = message.tag, Outcome.RETURNED, outcome.return_value
        return JobExecuted(*ended, output_length=length, instructions=outcome.instructions)

    def _query(self, job: ExecuteJob, media: Mapping[int, int], arguments: bytes) -> int:
        """Write a piece of a query's result to the output buffer; returns its bytes."""
        self._read_input(job, media)
        given = self._memory[self._plan.input_offset :][: job.input_length]
        source: BlockSource | MemorySource = MemorySource(given, self._counter)
        if job.granted:  # then there is no input
            source = BlockSource(job.granted, self._namespaces, self._read_blocks)
        output = self._memory[self._plan.output_offset :][: job.output_length]
        file = job.granted, job.unreadable, job.input_ranges, job.input_length
        return self._queries.piece(request_in(arguments), source, output, file)

    def _run(self, program: bpf.Program, job: ExecuteJob, context: Context) -> bpf.Outcome:
        if self._prepared is not None and not self._prepared.suits(context):
            self._prepared = None

        def run(engine: bpf.Engine) -> bpf.Outcome:
            with COMPUTE.span("bpf.program", engine=engine.value):
                if self._prepared is None or self._prepared_for is not engine:
                    self._prepared = None  # its memory is used again
                    self._prepared = self._prepare(program, context, engine)
                    self._prepared_for = engine
                return self._prepared.run(job.input_length, job.output_length, context)

        return self._run_on_engine(run)

    def _prepare(self, program: bpf.Program, context: Context, engine: bpf.Engine) -> bpf.Prepared:
        return bpf.Prepared(
            program,
            self._memory,
            input_size=self._accelerator.input_size,
            output_size=self._accelerator.output_size,
            services=self._services,
            context=context,
            instruction_limit=self._config.limits.instructions,
            frame_size=self._accelerator.frame_size,
            engine=engine,
            counters=self._instructions,
        )

    def _release(self, handle: int) -> None:
        self._program = self._prepared = self._prepared_for = None

    def _read_input(self, job: ExecuteJob, media: Mapping[int, int]) -> None:
        """Read the ranges of local storage into the input buffer."""
        at = self._plan.input_offset
        with COMPUTE.span("worker.input", bytes=job.input_length, ranges=len(job.input_ranges)):
            for item in job.input_ranges:
                if self._counter is not None:
                    self._counter.read(item.nsid, item.first, item.length)
                add(self._row, Word.READ, item.length)
                view = self._memory[at : at + item.length]
                read_media(media[item.nsid], item.nsid, item.first, view)
                at += item.length

    def _value_message(self, request: bpf.ValueRequest) -> ReadJobValue:
        fields = self._value_fields(request)
        return ReadJobValue(*fields, request.offset, self._accelerator.id)

    def _read_blocks(self, nsid: int, lba: int, count: int, into: memoryview) -> int:
        length = self._blocks.read(nsid, lba, count, into)
        add(self._row, Word.READ, length)
        if self._counter is not None:
            self._counter.read(nsid, lba * self._namespaces[nsid].block_size, length)
        return length


def contents(descriptor: int) -> bytes:
    """The contents of a memfd."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
