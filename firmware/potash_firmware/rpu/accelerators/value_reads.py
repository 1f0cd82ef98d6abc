"""Values of key value namespaces for running programs, which the APU requests for them.

A worker has no access to the store. A value is read as Retrieve reads it, by the media executor to
a private buffer, which is copied to memory that the RPU shares with the program: a memory range of
its execution, or its accelerator's arena. A few bytes are sent with the answer. Nothing is copied
once the execution has ended.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from nvme_spec.key_value import LIST_HEADER_SIZE, LONGEST_KEY
from nvme_spec.status import NvmeError, Status
from potash_firmware.mailbox.values import (
    NO_RANGE,
    JobValueRead,
    ReadJobValue,
    ReadValue,
    ValueRead,
)
from potash_firmware.rpu.accelerators.apu_link import ApuLink
from potash_firmware.rpu.compute.runs import ExecuteCommand
from potash_firmware.rpu.compute.state import Compute
from potash_firmware.rpu.namespaces.inventory import Namespaces
from potash_firmware.rpu.namespaces.key_value import KeyValueNamespace
from potash_firmware.rpu.namespaces.memory import MemoryNamespace
from potash_firmware.rpu.reservations import Access
from potash_firmware.rpu.scheduler import Scheduler, Steps
from potash_firmware.rpu.statistics import Statistics
from potash_firmware.rpu.value_work import AT_ONCE, LISTED_COST, ValueAccess, listed

if TYPE_CHECKING:  # they take NumPy, as in the controller
    from potash_firmware.rpu.timing.jobs import JobTime
    from potash_firmware.rpu.timing.values import ValueTime

_ERRORS: dict[int, int] = {
    Status.KV_KEY_DOES_NOT_EXIST: errno.ENOENT,
    Status.INVALID_NAMESPACE: errno.ENODEV,
    Status.NAMESPACE_NOT_REACHABLE: errno.EACCES,
    Status.ASYMMETRIC_ACCESS_INACCESSIBLE: errno.EACCES,
    Status.ASYMMETRIC_ACCESS_PERSISTENT_LOSS: errno.EACCES,
    Status.RESERVATION_CONFLICT: errno.EACCES,
    Status.INVALID_FIELD: errno.EINVAL,
    Status.INVALID_KEY_SIZE: errno.EINVAL,
    Status.UNRECOVERED_ERROR: errno.EIO,
}
"""The errors of requests, by the status of a command. Another status is that of a namespace that no
command may use now: EBUSY."""


@dataclass(eq=False, repr=False)
class ValueReads:
    """The requests of programs for values, of which each program has one at a time."""

    apu: ApuLink
    compute: Compute
    namespaces: Namespaces
    values: ValueAccess
    scheduler: Scheduler
    statistics: Statistics
    value_time: ValueTime | None
    job_time: JobTime | None

    def start(self, message: ReadValue | ReadJobValue) -> None:
        """Do what `message` requests, and answer it."""
        self.scheduler.start(self._serve(message))

    def _serve(self, message: ReadValue | ReadJobValue) -> Steps[None]:
        port = self.apu.port
        try:
            data, result = yield from self._read(message)
        except NvmeError as error:
            data, result = b"", -_ERRORS.get(error.status, errno.EBUSY)
        if port is None or self.apu.port is not port:
            return  # the APU that asked is lost
        self.statistics.moved += len(data)
        if isinstance(message, ReadJobValue) or message.range != NO_RANGE:
            target = self._target(message)
            if target is None or len(target) < len(data):
                result = -errno.ECANCELED
            else:
                target[: len(data)] = data
            data = b""
        if isinstance(message, ReadJobValue):
            self.apu.send(JobValueRead(message.tag, result, data, message.accelerator))
        else:
            self.apu.send(ValueRead(message.tag, result, data))

    def _read(self, message: ReadValue | ReadJobValue) -> Steps[tuple[bytes, int]]:
        """The bytes for the target, and the result. Raises NvmeError."""
        run, key, room = self._run(message), message.key, message.room
        namespace = self.values.readable(
            Access.OTHER if message.lists else Access.READ,  # as for List and Retrieve
            message.nsid,
            None if run is None else run.command.entry.nsid,
        )
        store = namespace.media
        if message.lists:
            if room < LIST_HEADER_SIZE:
                raise NvmeError(Status.INVALID_FIELD, f"{room} bytes have no room for a list")
            self._charge(message, namespace, 0)
            get = partial(listed, store, key, room)
            keys = yield from self.values.work(namespace, key, get, room * LISTED_COST)
            return keys, int.from_bytes(keys[:LIST_HEADER_SIZE], "little")
        if not 1 <= len(key) <= LONGEST_KEY:
            raise NvmeError(Status.INVALID_KEY_SIZE, f"a key has 1 to {LONGEST_KEY} bytes")
        self._charge(message, namespace, room)
        # Programs mostly have more room than a value needs: few bytes take no executor.
        few = min(room, AT_ONCE) if store.path is None else room
        found = yield from self._retrieve(namespace, key, few)
        if len(found[0]) < min(room, found[1]):
            found = yield from self._retrieve(namespace, key, room)
        return found

    def _retrieve(
        self, namespace: KeyValueNamespace, key: bytes, length: int
    ) -> Steps[tuple[bytes, int]]:
        """The first `length` bytes of a value, and its size. Raises NvmeError."""
        retrieve = partial(namespace.media.retrieve, key, length)
        found = yield from self.values.work(namespace, key, retrieve, length)
        if found is None:
            raise NvmeError(Status.KV_KEY_DOES_NOT_EXIST, f"key {key.hex()} does not exist")
        return found

    def _charge(
        self, message: ReadValue | ReadJobValue, namespace: KeyValueNamespace, length: int
    ) -> None:
        """Have a program wait for the flash, where time is modelled."""
        if self.value_time is not None and self.job_time is not None:
            if isinstance(message, ReadJobValue):
                timed = self.job_time.job(message.accelerator)
            else:
                run = self._run(message)
                timed = None if run is None else run.timed
            if timed is not None:
                place = message.at, message.moved
                self.value_time.add_reads(timed, namespace, message.key, length, *place)

    def _run(self, message: ReadValue | ReadJobValue) -> ExecuteCommand | None:
        """The command of the execution that makes a request; None of a job, or if it has ended."""
        if isinstance(message, ReadJobValue):
            return None
        return self.compute.run_of(self.apu.engine.execution(message.tag))

    def _target(self, message: ReadValue | ReadJobValue) -> memoryview | None:
        """The memory that a value is copied to; None if nothing may be copied there any more."""
        area = None
        if isinstance(message, ReadJobValue):
            there = message.accelerator in self.apu.buffers.arenas
            if there and not self.apu.is_resetting(self.namespaces.number):
                area = self.apu.buffers.arena(message.accelerator)
        elif (run := self._run(message)) is not None and message.range < len(run.ranges):
            item = run.ranges[message.range]
            namespace = self.namespaces.attached.get(item.nsid)
            if isinstance(namespace, MemoryNamespace):
                area = namespace.memory.bytes[item.start : item.start + item.length]
        return None if area is None else area[message.offset : message.offset + message.room]
