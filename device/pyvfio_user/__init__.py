"""vfio-user for Python: serve a device to a virtual machine, or use one, over a UNIX socket.

A device is a class with a few callbacks. This one turns text in its client's memory to upper case:
the client writes the text's address and length to the device, which interrupts it when it is done.

    import errno
    import select
    import struct

    from pyvfio_user import Irq, Region, Server


    class Shouter:
        pci = False
        regions = {0: Region(16)}
        irqs = {0: Irq(1)}

        def attached(self, memory, lines):
            self.memory, self.lines = memory, lines

        def detached(self):
            self.memory = self.lines = None

        def region_read(self, region, offset, count):
            return bytes(count)

        def region_write(self, region, offset, data):
            if (offset, len(data)) != (0, 16):
                raise OSError(errno.EINVAL, "address and length come in one write")
            where = struct.unpack("<QQ", data)
            text = self.memory.view(*where, write=True)
            text[:] = bytes(self.memory.view(*where)).upper()
            self.memory.store([text])
            self.lines.trigger(0, 0)

        def reset(self): ...
        def memory_changed(self): ...  # it keeps no views, so it has none to drop
        def irqs_changed(self, index): ...


    def serve(path):
        with Server(path, Shouter(), on_disconnect=print) as server:
            while True:
                select.select([server], [server] if server.wants_write() else [], [])
                while server.step(): ...

`protocol` and `payloads` are the protocol as data, without sockets; `connection`, `session` and
`server` serve it; `memory` and `irqs` are what a device gets of its client, and `dma_messages`
reaches memory that cannot be mapped; `migration` moves a device's state; `client` is the other
side. Only the standard library is used, and Linux.

Source: `docs/interop/vfio-user.rst` in QEMU's sources.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyvfio_user.client import Client, VfioUserError
    from pyvfio_user.device import Device, IoEventFd, Pending, Region
    from pyvfio_user.irqs import InterruptLines, Irq
    from pyvfio_user.mapped import MappedRegion
    from pyvfio_user.memory import AccessFault, AddressSpace
    from pyvfio_user.migration import Migration
    from pyvfio_user.payloads import Area, RegionType
    from pyvfio_user.protocol import IrqFlags, IrqSetFlags, PciIrq, PciRegion, ProtocolError
    from pyvfio_user.sealed_memory import SealedMemory
    from pyvfio_user.server import Server

__all__ = [
    "AccessFault",
    "AddressSpace",
    "Area",
    "Client",
    "Device",
    "InterruptLines",
    "IoEventFd",
    "Irq",
    "IrqFlags",
    "IrqSetFlags",
    "MappedRegion",
    "Migration",
    "PciIrq",
    "PciRegion",
    "Pending",
    "ProtocolError",
    "Region",
    "RegionType",
    "SealedMemory",
    "Server",
    "VfioUserError",
]

_MODULES = {
    "client": ("Client", "VfioUserError"),
    "device": ("Device", "IoEventFd", "Pending", "Region"),
    "irqs": ("InterruptLines", "Irq"),
    "mapped": ("MappedRegion",),
    "memory": ("AccessFault", "AddressSpace"),
    "migration": ("Migration",),
    "payloads": ("Area", "RegionType"),
    "protocol": ("IrqFlags", "IrqSetFlags", "PciIrq", "PciRegion", "ProtocolError"),
    "sealed_memory": ("SealedMemory",),
    "server": ("Server",),
}


def __getattr__(name: str) -> object:
    """Import what is used when it is used: a client needs no server, nor the other way round."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
