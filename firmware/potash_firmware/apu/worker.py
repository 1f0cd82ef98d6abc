"""A worker: the process in which one accelerator's programs run, one after the other.

It reads its input from the media itself and leaves its output in the arena; it never writes media.
It may be killed, or crash, at any moment: nothing outside it depends on its getting to an end.

Alkali CSD platform documentation, section 3.4 (APU Software).
"""

import logging
import os
import socket
from collections.abc import Mapping, Sequence

from csd_spec.program import Context
from potash_device.trace import COMPUTE
from potash_firmware import bpf
from potash_firmware.apu import channel
from potash_firmware.apu.blocks import Blocks, MediaReadError, read_media
from potash_firmware.apu.config import AcceleratorConfig, NamespaceConfig
from potash_firmware.apu.inference import Inference
from potash_firmware.apu.model import ByteRange
from potash_firmware.apu.reporting import Reporter
from potash_firmware.apu.work_counter import WorkCounter
from potash_firmware.bpf import reserve
from potash_firmware.mailbox.shared import SharedMemory

log = logging.getLogger(__name__)

MOST_DESCRIPTORS = 128
"""That come with a job: one for its contents, and one for each namespace that it names."""


def serve(
    end: socket.socket,
    config: AcceleratorConfig,
    namespaces: Sequence[NamespaceConfig],
    arena: int,
    models: Inference,
    engine: bpf.Engine,
    counter: WorkCounter | None = None,
) -> None:
    """Run the jobs that come through `end`, until nobody is at its other side.

    `arena` is the descriptor of the accelerator's memory. Jobs count in `counter`, if there is one.
    """
    memory = SharedMemory.adopt(arena, config.plan.size)
    known = {item.nsid: item for item in namespaces}
    reporter = Reporter(end)
    worker = _Worker(reporter, config, memory, models, known, engine, counter)
    reporter.serve(worker.perform, channel.MAX_MESSAGE, MOST_DESCRIPTORS)


class _Worker:
    def __init__(
        self,
        reporter: Reporter,
        config: AcceleratorConfig,
        arena: SharedMemory,
        models: Inference,
        namespaces: Mapping[int, NamespaceConfig],
        engine: bpf.Engine,
        counter: WorkCounter | None,
    ) -> None:
        self._counter = counter
        self._reporter = reporter
        self._config = config
        self._arena = arena
        self._memory = reserve.share(arena.fd, config.plan.writes_offset)
        """What of the arena programs may reach, mapped where nothing else is."""
        self._models = models
        self._namespaces = namespaces
        self._media: Mapping[int, int] = {}
        self._engine = engine

    def perform(self, data: bytes, fds: list[int]) -> None:
        job = channel.decode_run(data)
        self._media = dict(zip(job.namespaces, fds[1:], strict=True))
        with os.fdopen(fds[0], "rb") as contents:
            image = contents.read(job.image_length)
            arguments = contents.read(job.arguments_length)
        counter = self._counter
        if counter is not None:
            counter.begin()
        with COMPUTE.span("worker.job", accelerator=self._config.id):
            answer = self._run(job, image, arguments)
        for fd in self._media.values():
            os.close(fd)
        if counter is not None:
            for first in range(0, max(len(counter.reads), 1), channel.RANGES_AT_ONCE):
                reads = tuple(counter.reads[first : first + channel.RANGES_AT_ONCE])
                self._reporter.send(channel.Counted(counter.work, reads))
        self._reporter.send(answer)

    def _run(self, job: channel.Run, image: bytes, arguments: bytes) -> channel.FromWorker:
        plan = self._config.plan
        try:
            program = bpf.load_program(image, frame_size=self._config.frame_size)
            with COMPUTE.span("worker.input", bytes=job.input_length, ranges=len(job.input_ranges)):
                self._read_input(job)
            self._arena.discard(plan.output_offset, plan.data_offset - plan.output_offset)
            self._arena.discard(plan.writes_offset, plan.size - plan.writes_offset)
            try:
                outcome, written = self._execute(job, program, arguments, self._engine)
            except bpf.EngineUnavailable as error:
                log.warning("a program runs in the interpreter: %s", error)
                outcome, written = self._execute(job, program, arguments, bpf.Engine.INTERPRETER)
        except (MemoryError, bpf.Fault, bpf.ProgramError, MediaReadError) as error:
            self._reporter.failure(error)
            return channel.Faulted()
        for first in range(0, len(written), channel.RANGES_AT_ONCE):
            self._reporter.send(channel.Gathered(written[first : first + channel.RANGES_AT_ONCE]))
        length = outcome.output_length
        return channel.Returned(
            outcome.return_value,
            job.output_length if length is None else length,
            outcome.instructions,
        )

    def _execute(
        self, job: channel.Run, program: bpf.Program, arguments: bytes, engine: bpf.Engine
    ) -> tuple[bpf.Outcome, tuple[ByteRange, ...]]:
        """How the program ended, and what it wants written."""
        plan, models = self._config.plan, self._models
        blocks = Blocks(
            job.granted,
            self._namespaces,
            self._media,
            self._arena.view[plan.writes_offset : plan.writes_offset + plan.writes_size],
            job.output_ranges,
            job.unreadable,
        )
        counter, read = self._counter, blocks.read
        if counter is not None:
            read = counter.reading(read, lambda nsid: self._namespaces[nsid].block_size)
        services = bpf.Services(
            self._reporter.print,
            models.infer_apu,
            models.infer_vta,
            log=self._reporter.log,
            read_blocks=read,
            write_blocks=blocks.write,
            load_model=models.load,
            called=None if counter is None else counter.called,
        )
        with COMPUTE.span("bpf.program", engine=engine.value):
            outcome = bpf.run_program(
                program,
                self._memory,
                input_size=self._config.input_size,
                output_size=self._config.output_size,
                input_length=job.input_length,
                output_length=job.output_length,
                services=services,
                context=Context(arguments),
                instruction_limit=job.instructions,
                frame_size=self._config.frame_size,
                engine=engine,
                tally=None if counter is None else counter.tally,
            )
        return outcome, blocks.written()

    def _read_input(self, job: channel.Run) -> None:
        """Bring the ranges of local storage into the input buffer."""
        at = self._config.plan.input_offset
        for item in job.input_ranges:
            view = self._memory[at : at + item.length]
            if self._counter is not None:
                self._counter.read(item.nsid, item.first, item.length)
            read_media(self._media[item.nsid], item.nsid, item.first, view)
            at += item.length


def check(end: socket.socket, frame_size: int) -> None:
    """Link and verify the program that comes through `end`, in a confined process."""
    data, fds, _, _ = socket.recv_fds(end, channel.MAX_MESSAGE, 1)
    if not data:
        return
    with os.fdopen(fds[0], "rb") as contents:
        image = contents.read(channel.decode_check(data).image_length)
    answer: channel.Sound | channel.Refused = channel.Sound()
    try:
        bpf.load_program(image, frame_size=frame_size)
    except bpf.ProgramError as error:
        answer = channel.Refused(str(error)[: channel.TEXT_LIMIT])
    except MemoryError:
        answer = channel.Refused("it takes too much memory to check")
    end.send(channel.encode(answer), socket.MSG_NOSIGNAL)
