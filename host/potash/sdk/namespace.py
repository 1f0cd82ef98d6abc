"""A namespace: its blocks.

NVM Command Set Specification 1.0, section 3.
"""

from functools import cached_property
from typing import Unpack

from nvme_spec.commands import PRACT, ReadWrite
from nvme_spec.identify.capabilities import DPS_TYPE
from nvme_spec.identify.structures import Cns, IdentifyNamespace, NvmCommandSetNamespace
from nvme_spec.opcodes import IoOpcode
from nvme_spec.placement import VENDOR_DIRECTIVE
from potash.sdk.commands import AnyNamespace, Dwords, Fields, encoded, pieces_of
from potash.sdk.errors import DeviceMisbehaved, InvalidRequest
from potash.sdk.progress import Progress, silent
from potash.sdk.transport import Buffer, PendingCommand

MIN_BLOCK_SIZE = 512
MAX_BLOCKS = 1 << 16
"""Blocks in one Read or Write: NLB has 16 bits."""


class Namespace(AnyNamespace):
    """One namespace of a device. Its commands raise what `Device`'s do."""

    def identify(self) -> IdentifyNamespace:
        """The Identify Namespace data structure."""
        return IdentifyNamespace(self.device.identify_data(Cns.NAMESPACE, self.nsid))

    @cached_property
    def block_size(self) -> int:
        """Bytes of a logical block; read once, as every transfer needs it."""
        found = self.identify().block_size
        if not MIN_BLOCK_SIZE <= found <= self.device.max_transfer:
            raise DeviceMisbehaved(f"the device has blocks of {found} bytes")
        return found

    @cached_property
    def _protected(self) -> bool:
        """True if blocks have metadata, which the drive inserts and strips. Raises InvalidRequest
        for metadata that is more than protection information."""
        found = self.identify()
        index = found.format_index_upper << 4 | found.format_index
        size = found.lbaf[index].ms
        if not size:
            return False
        guard = NvmCommandSetNamespace(self._structure()).elbaf[index].pif
        if not found.dps & DPS_TYPE or size != (16 if guard else 8):
            raise InvalidRequest(
                f"namespace {self.nsid} has {size} bytes of metadata a block, which this does not"
                " move; format it without, or with protection information alone"
            )
        return True

    def _fields(self, lba: int, blocks: int, hint: int = 0, dsm: int = 0) -> Dwords:
        """Dwords of a Read or a Write, with tags that fit protection information of type 1."""
        prinfo, dtype = PRACT if self._protected else 0, VENDOR_DIRECTIVE if hint else 0
        fields = encoded(
            ReadWrite(lba, blocks - 1, prinfo=prinfo, dtype=dtype, dsm=dsm, dspec=hint & 0xFFFF)
        )
        if self._protected:
            fields["cdw14"] = lba & 0xFFFF_FFFF
        elif hint >> 16:
            fields["cdw3"] = hint & 0xFFFF_0000
        return fields

    @property
    def capacity(self) -> int:
        """Bytes of the namespace."""
        return self.identify().nsze * self.block_size

    def submit(self, opcode: int, **fields: Unpack[Fields]) -> PendingCommand:
        """Send an I/O command to this namespace, as `Device.submit` does."""
        fields["nsid"] = self.nsid
        return self.device.submit(opcode, **fields)

    def read(self, lba: int, count: int, *, progress: Progress = silent) -> bytes:
        """`count` blocks from block `lba`."""
        size = self.block_size
        pieces: list[bytes] = []
        submitted = (
            self.submit(
                IoOpcode.READ, data_in_length=blocks * size, **self._fields(lba + start, blocks)
            )
            for start, blocks in pieces_of(count, self._blocks_per_command)
        )
        for completion in self.device.completions(submitted):
            pieces.append(completion.data)
            progress("reading blocks", min(1.0, len(pieces) * self._blocks_per_command / count))
        return b"".join(pieces)

    def write(
        self,
        lba: int,
        data: Buffer,
        *,
        hint: int = 0,
        attributes: int = 0,
        progress: Progress = silent,
    ) -> None:
        """Write whole blocks from block `lba`; InvalidRequest when `data` ends inside one.

        A drive whose translation layer uses hints takes `hint`, a number of 32 bits of the host's
        own, and `attributes`, the Dataset Management field of Write (NVM Command Set 1.0, 3.2.6).
        """
        size = self.block_size
        if not 0 <= hint < 1 << 32 or (hint >> 16 and self._protected):
            raise InvalidRequest("a hint has 32 bits, and 16 beside protection information")
        view = memoryview(data).cast("B")
        count, rest = divmod(len(view), size)
        if rest:
            raise InvalidRequest(f"{len(view)} bytes are not a whole number of {size}-byte blocks")
        submitted = (
            self.submit(
                IoOpcode.WRITE,
                data_out=view[start * size : (start + blocks) * size],
                **self._fields(lba + start, blocks, hint, attributes),
            )
            for start, blocks in pieces_of(count, self._blocks_per_command)
        )
        for done, _ in enumerate(self.device.completions(submitted), 1):
            progress("writing blocks", min(1.0, done * self._blocks_per_command / count))

    def flush(self) -> None:
        """Wait until everything that was written is on the media."""
        self.submit(IoOpcode.FLUSH).result()

    @property
    def _blocks_per_command(self) -> int:
        return min(MAX_BLOCKS, self.device.max_transfer // self.block_size)
