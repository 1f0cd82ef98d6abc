"""The board: all hardware of one controller, and its interface to the firmware. It makes no
decisions. Boards of one NVM subsystem share their storage.

BAR 0: registers, doorbells from 1000h (which a host can map if the settings say so), the MSI-X
table at 2000h and its pending bits at 3000h.
BAR 2: the controller memory buffer, if there is one. BAR 4: memory that the firmware shares."""

import errno
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

from nvme_spec.registers import Capabilities, CommandSets
from potash_device.controller.cmb import ControllerMemoryBuffer
from potash_device.controller.dma import DmaEngine
from potash_device.controller.doorbell_page import DoorbellPage
from potash_device.controller.interrupts import InterruptLines
from potash_device.controller.queue_set import QueueSet
from potash_device.controller.registers import RegisterFile, SavedRegisters
from potash_device.controller.saved_queues import SavedQueues, load_queues, save_queues
from potash_device.pcie import layout
from potash_device.pcie.bar_memory import BarMemory
from potash_device.pcie.config_space import BarLayout, ConfigSpace
from potash_device.register_bytes import RegisterBytes
from potash_device.settings import MAX_QUEUE_PAIRS, BoardSettings
from potash_device.storage import Storage
from potash_device.trace import Trace
from pyvfio_user.device import Region
from pyvfio_user.irqs import InterruptLines as ClientLines
from pyvfio_user.irqs import Irq
from pyvfio_user.memory import AddressSpace
from pyvfio_user.migration import Migration
from pyvfio_user.protocol import IrqFlags, PciIrq, PciRegion

log = logging.getLogger(__name__)

BAR = BarLayout(size=0x4000, msix_table=0x2000, msix_pending=0x3000)

MAX_QUEUE_ENTRIES = 4096


class BoardMigration(Migration, Protocol):
    """Migration of a board with its firmware."""

    def reset(self, *, as_they_were: bool) -> None:
        """The slot is reset: no migration goes on any more, and the device runs. Raises OSError
        where it cannot, or has to have its media `as_they_were` and another has used them."""


class SavedBoard(NamedTuple):
    """The state that `Board.save` returns."""

    config_space: bytes
    msix_table: bytes
    registers: SavedRegisters
    queues: SavedQueues
    dma: bool
    """Transfers are allowed, but for Bus Master Enable."""
    pending: tuple[int, ...]
    """Vectors whose interrupts the host may not have received."""


class Board:
    """The hardware of one controller; a `pyvfio_user` device towards the host.

    `trace` is that of the storage, unless the controller has one of its own. Raises ValueError for
    more queue pairs than BAR 0 has doorbells for.
    """

    pci = True

    def __init__(
        self, settings: BoardSettings, storage: Storage, trace: Trace | None = None
    ) -> None:
        if not 1 <= settings.queue_pairs <= MAX_QUEUE_PAIRS:
            raise ValueError(
                f"a board has 1 to {MAX_QUEUE_PAIRS} I/O queue pairs, not {settings.queue_pairs}"
            )
        self.settings = settings
        self.storage = storage
        self.trace = storage.trace if trace is None else trace
        vectors = settings.queue_pairs + 1
        self.interrupts = InterruptLines(vectors, self.trace)
        self.dma = DmaEngine()
        self.queues = QueueSet(self.dma)
        self.cmb = None if settings.cmb is None else ControllerMemoryBuffer(settings.cmb)
        self.registers = RegisterFile(
            _capabilities(settings),
            vectors,
            self.interrupts,
            maskable=bool(settings.identity.msi_vectors),
            cmb=self.cmb,
            on_cmb=self._cmb_moved,
        )
        self.reset_line: Callable[[], None] = lambda: None
        """Pulled when the host resets the whole function; the firmware sets what that does."""
        self.memory_bar = _memory_bar(settings)
        bars = {PciRegion.BAR2: self.cmb, PciRegion.BAR4: self.memory_bar}
        self._bars: dict[int, BarMemory] = {bar: one for bar, one in bars.items() if one}
        bar_sizes = {bar: one.size for bar, one in self._bars.items()}
        if settings.map_doorbells:
            self.queues.page = DoorbellPage(BAR.size)
            self._bars[PciRegion.BAR0] = self.queues.page
        self._bars_are_new = True
        """No host has accessed the present contents of the BARs."""
        self.migration: BoardMigration | None = None
        """The migration of the device, which the firmware implements."""
        self._config_space = ConfigSpace(
            settings.identity, BAR, vectors, self._function_level_reset, bar_sizes
        )
        self._msix_table = _msix_table(vectors)
        eventfd = IrqFlags.EVENTFD | IrqFlags.NORESIZE
        irqs: dict[int, Irq] = {PciIrq.MSIX: Irq(vectors, eventfd)}
        if settings.identity.msi_vectors:
            irqs[PciIrq.MSI] = Irq(settings.identity.msi_vectors, eventfd)
        self.irqs: Mapping[int, Irq] = irqs

    @property
    def regions(self) -> Mapping[int, Region]:
        """BARs and configuration space, as the next host gets them."""
        return {
            PciRegion.BAR0: Region(BAR.size),
            **{bar: one.region for bar, one in self._bars.items()},
            PciRegion.CONFIG: Region(layout.CONFIG_SPACE_SIZE),
        }

    def function_reset(self, *, keep_cmb: bool = False) -> None:
        """Registers and queues as after power-on; no transfer and no interrupt is left behind.

        Memory in BARs is empty; the controller memory buffer stays where it is for `keep_cmb`.
        """
        self.dma.stop()
        self.queues.clear()
        self.interrupts.clear()
        for memory in self._bars.values():
            memory.clear()
        self.registers.reset(keep_cmb=keep_cmb)
        self.reset_line()

    def _function_level_reset(self, *, keep_cmb: bool = True) -> None:
        """Follow a reset of configuration space with a `function_reset`."""
        self._msix_table = _msix_table(self.interrupts.vectors)
        self._follow_config_space()
        self.function_reset(keep_cmb=keep_cmb)

    def _cmb_moved(self) -> None:
        """Addresses name another part of the controller memory buffer, or none any more."""
        if self.cmb is not None:
            self.dma.place(self.cmb)
            self.queues.unbind()

    def _follow_config_space(self) -> None:
        """The host has written to configuration space, or a reset has."""
        peers = self.settings.peers
        if peers is not None and self.memory_bar is not None:
            peers.publish(self._config_space.memory_address(PciRegion.BAR4))
        self._follow_bus_master()

    def _follow_bus_master(self) -> None:
        """Without Bus Master Enable nothing is read or written in the host's memory, interrupts
        included; what holds a view of it lets go."""
        allowed = self._config_space.bus_master
        if allowed == self.dma.mastering:
            return
        self.dma.master(allowed)
        self.interrupts.master(allowed)
        if not allowed:
            self.queues.unbind()

    def save(self) -> SavedBoard:
        """Everything that a host has changed of the hardware, but for memory and media."""
        return SavedBoard(
            self._config_space.save(),
            self._msix_table.save(),
            self.registers.save(),
            save_queues(self.queues),
            self.dma.started,
            self.interrupts.save(),
        )

    def load(self, saved: SavedBoard) -> None:
        """Go on from what was saved. Raises ValueError where that makes no sense, or is of another
        device; the function has to be reset then."""
        vectors = self.interrupts.vectors
        if not all(0 <= one < vectors for one in saved.pending):
            raise ValueError("there are no such interrupts")
        self._config_space.load(saved.config_space)
        self._msix_table.load(saved.msix_table)
        self.registers.load(saved.registers)
        load_queues(self.queues, self.dma, saved.queues, pairs=vectors, entries=MAX_QUEUE_ENTRIES)
        if saved.dma:
            self.dma.start()
        self._follow_config_space()
        self.interrupts.load(saved.pending)

    # What the vfio-user server calls.

    def attached(self, memory: AddressSpace, lines: ClientLines) -> None:
        if not self._bars_are_new:
            self._renew_bars()
            self.reset()
            raise OSError(errno.EAGAIN, "this host was offered the memory of the one before")
        self._bars_are_new = not self._bars
        self.dma.connect(memory)
        kinds = tuple(self.irqs)

        def signal(vector: int) -> bool:
            # A host enables MSI-X or MSI, not both; the other kind hears nothing.
            for kind in kinds:
                if lines.trigger(kind, vector):
                    return True
            return False

        self.interrupts.connect(signal)
        log.info("a host has attached")

    def detached(self) -> None:
        try:
            self._renew_bars()
        except OSError as error:  # of now, perhaps: the next host has to come again
            log.error("the memory of BARs cannot be replaced: %s", error)
        with suppress(OSError):  # the next host gets the error when it resets the device
            self._reset(as_they_were=True)
        self.dma.connect(None)
        self.interrupts.disconnect()
        log.info("the host has detached")

    def _renew_bars(self) -> None:
        """Have the memory that a host has mapped be nobody else's. Raises OSError."""
        if self.settings.peers is not None:
            self.settings.peers.withdraw()
        for memory in self._bars.values():
            memory.renew()
        self._bars_are_new = True

    def reset(self) -> None:
        """The slot's reset: everything back to power-on. Raises OSError where the drive is not
        here, but in another process."""
        self._reset(as_they_were=False)

    def _reset(self, *, as_they_were: bool) -> None:
        self._config_space.reset()
        self._function_level_reset(keep_cmb=False)
        if self.migration is not None:
            self.migration.reset(as_they_were=as_they_were)

    def memory_changed(self) -> None:
        """The host maps or unmaps memory: no view may outlive this call."""
        self.dma.forget()
        self.queues.unbind()

    def stops_transfers(self, region: int, offset: int, data: bytes) -> bool:
        """True if a write ends Bus Master Enable, resets the function, or moves the controller
        memory buffer; any other write to BAR 0 is only queued for the firmware."""
        if region == PciRegion.BAR0:
            return self.registers.moves_cmb(offset, len(data))
        return region == PciRegion.CONFIG and self._config_space.stops(offset, data)

    def irqs_changed(self, index: int) -> None:
        if index in self.irqs:
            self.interrupts.deliver_pending()

    def region_read(self, region: int, offset: int, count: int) -> bytes:
        if region == PciRegion.CONFIG:
            return self._config_space.read(offset, count)
        if region != PciRegion.BAR0:
            return self._bars[region].read(offset, count)
        if offset < BAR.msix_table:
            return self.registers.host_read(offset, count)
        if offset < BAR.msix_pending:
            return self._msix_table.read(offset - BAR.msix_table, count)
        start = offset - BAR.msix_pending
        return self.interrupts.pending_bits()[start : start + count].ljust(count, b"\0")

    def region_write(self, region: int, offset: int, data: bytes) -> None:
        if region == PciRegion.CONFIG:
            self._config_space.write(offset, data)
            self._follow_config_space()
        elif region != PciRegion.BAR0:
            self._bars[region].write(offset, data)
        elif offset < BAR.msix_table:
            if self.trace.sink is not None:
                self.trace.sink("board.host_write", {"offset": offset, "data": data.hex()})
            self.registers.host_write(offset, data)
        elif offset < BAR.msix_pending:
            self._msix_table.write(offset - BAR.msix_table, data)


def _memory_bar(settings: BoardSettings) -> BarMemory | None:
    """The memory in BAR 4, if there is any; that which peers may copy from if the user shares it.
    Raises OSError without memory."""
    size, peers = settings.memory_bar, settings.peers
    if not size:
        return None
    return BarMemory(size, None if peers is None else peers.claim(size))


def _msix_table(vectors: int) -> RegisterBytes:
    """The table after a reset: every vector masked (PCI Local Bus Specification 3.0, 6.8.2.9).

    It stands there to be read and written: a vfio-user client tells of its vectors, masks included,
    by DEVICE_SET_IRQS.
    """
    size = layout.MSIX_TABLE_ENTRY_SIZE
    table = RegisterBytes(vectors * size)
    for at in range(0, vectors * size, size):
        table.define(at, size, 0, writable=(1 << 8 * size) - 1)
        table.put(at + layout.MSIX_VECTOR_CONTROL, 4, layout.MSIX_MASKED)
    return table


def _capabilities(settings: BoardSettings) -> Capabilities:
    return Capabilities(
        mqes_z=MAX_QUEUE_ENTRIES - 1,
        cqr=1,
        to=settings.ready_timeout,
        nssrs=1,
        css=CommandSets.NVM | CommandSets.IO_COMMAND_SETS,
        cmbs=settings.cmb is not None,
    )
