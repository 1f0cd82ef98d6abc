"""The states of a migration: when a drive stops and continues, and which process owns the media.

A drive that is to stop fetches no more commands, and finishes those that it has: on the media, in
the APU, with what has to be flushed. Commands that wait for the host alone are in the state. Then
the firmware does nothing at all, and another process may have the media.

Source: `vfio-user.rst`, section "VFIO_DEVICE_FEATURE_MIG_DEVICE_STATE".
"""

import errno
import logging
from collections.abc import Callable
from concurrent.futures import Future

from nvme_spec.status import NvmeError
from potash_device.media.errors import MediaError
from potash_firmware.rpu.commands import Commands
from potash_firmware.rpu.controller import Controller
from potash_firmware.rpu.deadlines import NO_TIMER, Timer
from potash_firmware.rpu.interrupts import Interrupts
from potash_firmware.rpu.lifecycle import Lifecycle
from potash_firmware.rpu.migration import saved
from potash_firmware.rpu.namespaces.flushing import Flushed, flushing
from pyvfio_user.device import finish
from pyvfio_user.migration import State
from pyvfio_user.protocol import Buffer

log = logging.getLogger(__name__)

PATIENCE = 4.0
"""Seconds in which a drive comes to rest, or goes on: QEMU waits for 5 for an answer."""


class Migration:
    """The migration of one drive, as `pyvfio_user.migration.Migration` has it.

    `woken` is called when the drive goes on after it was stopped.
    """

    pre_copy = False

    def __init__(
        self,
        controller: Controller,
        lifecycle: Lifecycle,
        commands: Commands,
        interrupts: Interrupts,
        woken: Callable[[], None],
    ) -> None:
        self.stopped = False
        """The firmware is to do nothing: not even what time brings."""
        self.owns_media = True
        self.jobs_run: Callable[[], bool] = lambda: False
        """Returns True while accelerators run jobs, which the mailbox does not show."""
        self.end_apu: Callable[[], None] = lambda: None
        """Ends the APU's process, and waits for that; another one may start afterwards."""
        self._controller = controller
        self._board = controller.board
        self._lifecycle = lifecycle
        self._commands = commands
        self._interrupts = interrupts
        self._woken = woken
        self._timers = controller.timers
        self.stopping: Future[None] | None = None
        """The reply that waits for the drive to stop: no command is to be fetched meanwhile."""
        self._starting: Future[None] | None = None
        self._patience: Timer = NO_TIMER
        self._keep_alive = (0, 0)
        """The rest of the Keep Alive Timer, in milliseconds."""
        self._flush: Future[list[Flushed]] | None = None
        self._for_good = False
        self._data = memoryview(b"")
        self._received = bytearray()
        self._taken_over = False
        """The drive was given a state with which it has not gone on yet."""
        self._record: int | None = None
        """The sidecar's record when the media were released; None where they were never owned."""

    def wait_for_media(self) -> None:
        """The media are another process's, which is going to hand them over."""
        self.stopped, self.owns_media = True, False

    # Calls of the vfio-user server.

    @property
    def initial(self) -> State:
        return State.STOP if self.stopped else State.RUNNING

    def change(self, before: State, after: State) -> Future[None] | None:
        match before, after:
            case State.RUNNING, State.STOP:
                return self.stop()
            case State.STOP, State.STOP_COPY:
                self._data = memoryview(self.save())
                self.let_go()
            case State.STOP_COPY, State.STOP:
                self._data = memoryview(b"")
            case State.STOP, State.RESUMING:
                self._received = bytearray()
            case State.RESUMING, State.STOP:
                received, self._received = self._received, bytearray()
                return self.load(received)
            case State.STOP, State.RUNNING:
                self.go_on()
        return None

    def read(self, size: int) -> bytes:
        piece, self._data = self._data[:size], self._data[size:]
        return bytes(piece)

    def write(self, data: bytes) -> None:
        most = saved.STATE_LIMIT + saved.memory_size(self._controller)
        if len(self._received) + len(data) > most:
            raise OSError(errno.EFBIG, "the state is too large for this drive")
        self._received += data

    def reset(self, *, as_they_were: bool) -> None:
        """The slot is reset: the drive runs. Raises MediaError where its media cannot be had, or
        are not `as_they_were`: a drive that has moved on may come back, and is not to be found
        running by then because its host has left it meanwhile."""
        self.stopping = self._starting = None
        self._taken_over = False
        self._data = memoryview(b"")
        self._received = bytearray()
        if not self.stopped or self._for_good:
            return
        self._keep_alive = (0, 0)
        try:
            self._take(as_they_were=as_they_were)
        except MediaError as error:
            log.warning("the drive does not run: %s", error.strerror)
            raise
        self._wake()

    # Stopping.

    @property
    def starting(self) -> bool:
        """The APU is waited for that is to begin with what was loaded."""
        return self._starting is not None

    @property
    def timeout(self) -> float | None:
        """Seconds until a drive that has stopped gives up waiting; None while it does not wait."""
        return None if self._starting is None else self._timers.left(self._patience)

    def stop(self) -> Future[None] | None:
        """Come to rest; None where the drive is at rest."""
        if self.stopped:
            return None
        self.stopping, self._flush = Future(), None
        self._patience = self._timers.after(PATIENCE)
        return self.stopping

    def rest(self) -> None:
        """The drive is stopped, and does nothing but notice that the APU has started."""
        self._board.registers.host_writes.clear()  # nobody should write to a stopped device
        pending = self._starting
        if pending is None:
            return
        for message in self._controller.apu.messages():
            log.error("an APU that was asked nothing has said %s", message)
        if self._controller.apu.started or not self._timers.left(self._patience):
            self._starting = None
            finish(pending)

    def service(self) -> None:
        """The firmware has done what there was to do."""
        pending = self.stopping
        if pending is None:
            return
        busy = self._busy()
        if not busy and self._flush is None:
            busy = "a flush"
            record = self._controller.persistence.record()
            flush_all = flushing(self._controller.namespaces.stored.values())

            def flush() -> list[Flushed]:
                ended = flush_all()
                record()
                return ended

            self._flush = self._controller.media_work.submit(flush)
        elif not busy and self._flush is not None:
            lost = any(error is not None for _, error in self._flush.result())
            if lost:  # the next process would not know
                self._refuse(pending, errno.EIO, "what was written cannot be flushed")
                return
            self.stopping = None
            self._pause()
            log.info("the drive has stopped")
            finish(pending)
            return
        if not self._timers.left(self._patience):
            self._refuse(pending, errno.EBUSY, f"it is busy with {busy}")

    def _refuse(self, pending: Future[None], error: int, why: str) -> None:
        self.stopping = None
        log.warning("the drive cannot be stopped now: %s", why)
        self._woken()
        finish(pending, error)

    def _busy(self) -> str:
        """The work that has to end first; none for an idle drive."""
        controller, outstanding = self._controller, self._controller.outstanding
        waiting = len(outstanding) - controller.reports.events.waiting - len(outstanding.fused)
        reasons = {
            "registers": self._board.registers.host_writes,
            "commands": waiting or outstanding.aborted,
            "completions": any(queue.staged for queue in self._board.queues.completions.values()),
            "media": controller.media_work.unfinished or controller.persistence.saving,
            "operations": not controller.operations.idle,
            "a shutdown": self._lifecycle.flushing,
            "programs": controller.compute.executions,
            "accelerators": controller.write_backs or not controller.apu.idle or self.jobs_run(),
        }
        return next((what for what, there in reasons.items() if there), "")

    # The state and the media.

    def save(self) -> bytes:
        """The state of a drive that has stopped."""
        return saved.save(self._controller, self._lifecycle, self._interrupts)

    def let_go(self, *, for_good: bool = False) -> None:
        """Let another process have the media, which are not to come back if it is `for_good`."""
        self._for_good = for_good
        if self.owns_media:
            self._record = self._board.storage.sidecar.number
            self._board.storage.drive.let_go()
            self.owns_media = False

    def go_on(self) -> None:
        """Run again. Raises MediaError where the media are another process's, or have been."""
        self._take(as_they_were=True)
        if self._taken_over:  # who had the media before cannot go on from now on
            self._controller.persistence.mark_as_taken()
            self._taken_over = False
        self._wake()

    def load(self, state: Buffer) -> Future[None] | None:
        """Take a state, and be stopped with it, when the accelerators are there with theirs.

        Raises OSError; the drive is as after a reset then, with what outlives one as it was, and
        the media are nobody's.
        """
        controller = self._controller
        try:
            loadable = saved.Loadable(controller, state)
        except Exception as error:  # noqa: BLE001 - see _refused
            raise self._refused(error) from None
        taken = not self.owns_media
        try:
            if taken:
                self._board.storage.drive.take()
                self.owns_media = True
            loadable.check_media(self._board)
            # Once to see whether it can be loaded, before anything is replaced that a reset leaves.
            self._board.function_reset()
            loadable.load(controller, self._lifecycle, self._commands)
            self._board.function_reset()
            if loadable.has_accelerators:
                controller.apu.take_over()
                self.end_apu()
            loadable.fill(controller)
            self._board.storage.sidecar.load()
            self._board.storage.flash.load()
            for part in controller.persistence.parts:
                part.restore()
            loadable.load(controller, self._lifecycle, self._commands)
            loadable.load_lasting(controller)
        except Exception as error:  # noqa: BLE001 - see _refused
            self._board.function_reset()
            if taken and self.owns_media:
                self._board.storage.drive.let_go()
                self.owns_media = False
            raise self._refused(error) from None
        self._taken_over = True
        self._pause()
        log.info("the drive has been handed over")
        if not loadable.has_accelerators:
            return None
        self._patience = self._timers.after(PATIENCE)
        self._starting = Future()
        return self._starting

    def _refused(self, error: Exception) -> OSError:
        # Whatever is raised: the client that gave the state is not to end the device by it.
        foreseen = isinstance(error, ValueError | NvmeError | OSError)
        if not isinstance(error, OSError):
            error = OSError(errno.EINVAL, str(error)).with_traceback(error.__traceback__)
        log.error("a state is refused: %s", error.strerror, exc_info=None if foreseen else error)
        return error

    def _take(self, *, as_they_were: bool) -> None:
        """Have the media again. Raises MediaError.

        Where another process has changed them, that is one, too, if they are to be `as_they_were`;
        else it is as if power came now, as it is with media that were never here.
        """
        if self.owns_media:
            return
        board = self._board
        board.storage.drive.take()
        board.storage.sidecar.load()
        if board.storage.sidecar.number != self._record:
            if as_they_were and self._record is not None:
                board.storage.drive.let_go()
                raise MediaError(errno.ESTALE, "another device has used the drive since")
            board.storage.flash.load()
            self._controller.persistence.power_on()
        self.owns_media = True

    def _pause(self) -> None:
        """Nothing happens from now on: a host that is paused, too, is not to be taken for dead."""
        self.stopped = True
        self._keep_alive = self._controller.keep_alive.save()

    def _wake(self) -> None:
        self.stopped = False
        self._controller.keep_alive.load(self._keep_alive)
        if self._board.queues.shadow is not None:
            self._board.queues.shadow.poll_again()
        self._woken()
