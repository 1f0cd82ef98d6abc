"""An accelerator: its commands, and a whole job as one call.

Alkali CSD platform documentation, section 4.4 (the order of a host application's commands).
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple

from csd_spec.descriptors import Accelerator as Description
from csd_spec.descriptors import AcceleratorStatus, LogEntry, LogPage
from csd_spec.opcodes import DWORD_SIZE, LOG_PAGE
from csd_spec.status import StatusId
from csd_spec.traffic import TrafficLog
from potash.sdk import targets
from potash.sdk.accelerator_commands import AcceleratorCommands, argument_bytes
from potash.sdk.commands import Commands
from potash.sdk.errors import (
    CommandFailed,
    DeviceGone,
    InvalidRequest,
    JobFailed,
    JobTimeout,
    PotashError,
    is_fault,
    of_last_job,
    printed,
)
from potash.sdk.namespace import Namespace
from potash.sdk.progress import Progress, silent
from potash.sdk.transport import Buffer

MAX_FAILED_POLLS = 100
"""Polls in a row that may fail before `wait` gives up: ten seconds of the longest pause."""
EVENT_PAUSE = 1.0
"""Seconds between two polls, at most, where an event reports the job's end."""


class _Placeholder(Enum):
    """Stands for a value that is known only when the job starts."""

    INPUT_LENGTH = "length"


INPUT_LENGTH: Final = _Placeholder.INPUT_LENGTH
"""An argument that becomes the input's own length in bytes, without any padding."""

Argument = Buffer | int | _Placeholder
"""One argument: its bytes, a number of 32 bits, or INPUT_LENGTH (such a number, too)."""


class JobResult(NamedTuple):
    """A job's output, its status, and the accelerator's log of it.

    `output` is empty if the output is in a file on the drive. `measured` is how long the job took
    as this host has seen it, in nanoseconds; `status.modelled` how long it took in modelled time, 0
    where that is not modelled. `traffic` is what the drive has moved meanwhile for everybody,
    program, input and output included, and when commands and jobs completed in modelled time; None
    for a drive without that log page.
    """

    output: bytes
    status: AcceleratorStatus
    log: tuple[LogEntry, ...]
    measured: int = 0
    traffic: TrafficLog | None = None

    @property
    def printed(self) -> list[str]:
        """The lines that the program printed."""
        return printed(self.log)


class Accelerator(AcceleratorCommands):
    """One accelerator of a device: its commands, and `run` for a whole job."""

    def __init__(
        self,
        device: Commands,
        description: Description,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(device, description)
        self._clock = clock
        self._sleep = sleep

    def run(
        self,
        program: targets.Content,
        input: targets.Content | targets.Source,
        *,
        args: Iterable[Argument] = (),
        then: Iterable[tuple[targets.Content, Iterable[Argument]]] = (),
        output: targets.Sink | None = None,
        local: targets.LocalStorage | None = None,
        timeout: float | None = None,
        firmware_id: int = 0,
        progress: Progress = silent,
        report: Callable[[str], None] = lambda step: None,
    ) -> JobResult:
        """Run a program on an input: everything from enabling the subsystem to its output.

        The accelerator is reset first. The program sees the input padded with zeroes to a dword,
        on the drive to a page. An interrupt stops the job.

        Args:
            program: an ELF file: its bytes or its path.
            input: bytes, the path of a file, or a `FileSource` for a file on the drive.
            args: the program's arguments.
            then: programs and their arguments that run after it, each on the output of the one
                before, by one command (`start_chain`).
            output: a `FileSink` for a file on the drive; without one the result has the output.
            local: blocks of the drive for input and output, instead of the accelerator's buffers.
            timeout: seconds after which the job is stopped.
            firmware_id: the firmware slot that the program is stored in; the next ones have the
                programs of `then`.
            progress: called repeatedly with the current step and its progress.
            report: called with a line for each step.

        Raises:
            CommandFailed: the device refused a command.
            JobFailed: the job failed.
            JobTimeout: it was stopped after `timeout` seconds.
            PotashError: any other failure; if it can be detected in time, nothing was written to
                the drive.
            OSError: a file cannot be read or written.
        """
        source: targets.Source = (
            input if isinstance(input, targets.Source) else targets.BufferSource(input)
        )
        sink = targets.Sink() if output is None else output
        if local is not None:
            if isinstance(input, targets.Source) or output is not None:
                raise InvalidRequest("local storage takes the input's bytes and gives the output's")
            namespace = Namespace(self.device, self.device.nsid)
            source = blocks = targets.BlockSource(namespace, input, local)
            sink = targets.BlockSink(namespace, blocks, local)
        reporter = targets.Reporter(report, progress)
        started = still_written = False
        before: TrafficLog | None = None
        with suppress(CommandFailed):
            before = self.device.traffic()
        try:
            given = [(program, args), *then]
            images = [targets.content_of(item) for item, _ in given]
            report(
                f"identify: accelerator {self.id} with {self.input_size} bytes of input"
                f" and {self.output_size} of output"
            )
            source.prepare(self)
            sink.prepare(self, source.size)
            steps = [
                (number, [argument_bytes(source.size if v is INPUT_LENGTH else v) for v in values])
                for number, (_, values) in enumerate(given, firmware_id)
            ]
            self.require_idle(report)
            self.reset()
            if not all(images):
                raise InvalidRequest("the program is an empty file; build it first")
            for number, image in enumerate(images, firmware_id):
                self.send_firmware(image, number, progress=progress)
                report(f"send {len(image)} bytes of firmware as {number}")
            source.attach(self, reporter)
            sink.attach(self, reporter)
            self.select(firmware_id)
            report(f"select firmware {firmware_id}")
            try:
                began = self._clock()
                if len(steps) > 1:
                    self.start_chain(steps)
                else:
                    self.start(args=steps[0][1])
                started = True
                report("start" if len(steps) == 1 else f"start a chain of {len(steps)} steps")
                status = self.wait(timeout, progress=progress)
                measured = round((self._clock() - began) * 1e9)
            except BaseException as error:
                if not started and isinstance(error, CommandFailed):
                    raise  # there is no job, or it is another host's
                still_written = True  # also if an interrupt comes while the job is stopped
                still_written = not self._ended(error)
                if isinstance(error, JobTimeout):
                    raise JobTimeout(f"the job was stopped after {timeout:g} s") from error
                raise
            log = self.log()
            entries = of_last_job(log.entries)
            if is_fault(entries):
                raise self._failure(status, log)
            report(f"done: {status.produced} bytes of output, return value {status.return_value}")
            source.confirm()
            collected = sink.collect(self, status.produced, reporter)
            traffic = None if before is None else self.device.traffic(before)
            return JobResult(collected, status, entries, measured, traffic)
        finally:
            source.close()
            sink.close(still_written=still_written)

    def run_again(
        self,
        args: Iterable[Buffer | int] = (),
        *,
        timeout: float | None = None,
        progress: Progress = silent,
    ) -> AcceleratorStatus:
        """Run the active firmware on the input that is configured; the status at its end.

        The output is in the output buffer. An error or an interrupt stops the job. Raises what
        `run` does.
        """
        self.start(args=args)
        try:
            status = self.wait(timeout, progress=progress)
        except BaseException as error:
            self._ended(error)
            if isinstance(error, JobTimeout):
                raise JobTimeout(f"the job was stopped after {timeout:g} s") from error
            raise
        log = self.log()
        if is_fault(of_last_job(log.entries)):
            raise self._failure(status, log)
        return status

    def require_idle(self, report: Callable[[str], None] = lambda step: None) -> None:
        """Enable the subsystem. Raises PotashError where another job runs."""
        self.enable()
        report("enable the accelerator subsystem")
        if self.status().status == StatusId.RUNNING:
            raise PotashError(f"accelerator {self.id} is busy with another job; wait or stop it")

    def _ended(self, error: BaseException) -> bool:
        """Stop a job after an error; returns whether it is certain to have ended."""
        if isinstance(error, (JobFailed, DeviceGone)):
            return True
        try:
            self.stop()
        except DeviceGone:
            return True
        except PotashError:
            return False
        return True

    def wait(
        self,
        timeout: float | None = None,
        *,
        poll: tuple[float, float] = (0.002, 0.1),
        progress: Progress = silent,
    ) -> AcceleratorStatus:
        """Wait until the job is done, at most `timeout` seconds; returns its status.

        Over vfio-user an event reports the job's end. The status is polled in any case: the pause
        between two polls doubles from the first of `poll` to the second, in seconds, or with events
        to one second; `progress` is called before each. A device with the profile `alkali` reports
        a failed job as done; `run` detects that from the log. A poll that fails without
        Do Not Retry, as it does while the application processor restarts, is repeated.

        Raises JobFailed, with the entries of the log, if the job failed, was stopped or does not
        exist, and JobTimeout if it is still running.
        """
        deadline = None if timeout is None else self._clock() + timeout
        pause, longest = poll
        if self.device.reports_events:
            self._acknowledge()
            self.device.await_event(0)
            longest = max(longest, EVENT_PAUSE)
        failures = 0
        while True:
            try:
                status = self.status()
                if status.status == StatusId.DONE:
                    return status
                if status.status != StatusId.RUNNING:
                    raise self._failure(status, self.log())
                failures = 0
            except CommandFailed as error:
                failures += 1
                if error.dnr or failures > MAX_FAILED_POLLS:
                    raise
            left = pause if deadline is None else deadline - self._clock()
            if left <= 0:
                raise JobTimeout(f"accelerator {self.id} still runs after {timeout:g} s; stop it")
            progress("running", None)
            self._pause(min(pause, left))
            pause = min(2 * pause, longest)

    def _pause(self, seconds: float) -> None:
        """Sleep, or wait for an event where there are events."""
        if not self.device.reports_events:
            self._sleep(seconds)
        elif self.device.await_event(seconds):
            self._acknowledge()

    def _acknowledge(self) -> None:
        """Enable the event for the next job's end: read its log page without retaining the event.

        NVM Express Base Specification 2.0, section 5.2 (Asynchronous Event Request command).
        """
        with suppress(CommandFailed):
            self.device.log_page(LOG_PAGE, DWORD_SIZE, lsi=self.id)

    def _failure(self, status: AcceleratorStatus, log: LogPage) -> JobFailed:
        if status.status == StatusId.IDLE:
            reason = f"accelerator {self.id} has no job; start one"
        elif status.status == StatusId.STOPPED:
            reason = f"the job on accelerator {self.id} was stopped"
        else:
            texts = [entry.text.strip() for entry in log.entries if entry.text]
            because = f": {texts[-1]}" if texts else ""
            reason = f"the job on accelerator {self.id} failed{because}"
        return JobFailed(reason, status, log)
