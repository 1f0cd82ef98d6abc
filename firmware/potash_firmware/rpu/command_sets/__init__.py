"""The I/O commands, by command set."""

from csd_spec.opcodes import ChainOpcode, ValueOpcode
from csd_spec.opcodes import IoOpcode as AcceleratorOpcode
from nvme_spec.computational import ComputeOpcode
from nvme_spec.identify.capabilities import CommandSet, Oncs
from nvme_spec.key_value import KeyValueOpcode
from nvme_spec.logs import CommandEffects
from nvme_spec.memory_commands import MemoryOpcode
from nvme_spec.opcodes import IoOpcode
from potash_firmware.rpu.command_sets import compute, key_value, reservations, zoned
from potash_firmware.rpu.command_sets.memory import access, values
from potash_firmware.rpu.command_sets.memory import copy as memory_copy
from potash_firmware.rpu.command_sets.nvm import copy, optional, read_write
from potash_firmware.rpu.dispatch import (
    NamespaceUse,
    Row,
    Table,
    accelerator_command,
    send_peer_data,
    table,
)
from potash_firmware.rpu.reservations import Access

READ, WRITE, OTHER = Access.READ, Access.WRITE, Access.OTHER
ONE = NamespaceUse.ONE
_WRITES = CommandEffects.LBCC

_RESERVATIONS = table(
    *(
        Row(opcode, handler, OTHER, ONE, capability=Oncs.RESERVATIONS)
        for opcode, handler in (
            (IoOpcode.RESERVATION_REGISTER, reservations.register),
            (IoOpcode.RESERVATION_REPORT, reservations.report),
            (IoOpcode.RESERVATION_ACQUIRE, reservations.acquire),
            (IoOpcode.RESERVATION_RELEASE, reservations.release),
        )
    )
)
"""The commands of reservations, which check themselves what others hold."""

_BLOCK_COMMANDS = table(
    Row(IoOpcode.FLUSH, read_write.flush, WRITE, NamespaceUse.ONE_OR_ALL),
    Row(IoOpcode.WRITE, read_write.write, WRITE, ONE, _WRITES),
    Row(IoOpcode.READ, read_write.read, READ, ONE),
    Row(
        IoOpcode.WRITE_UNCORRECTABLE,
        optional.write_uncorrectable,
        WRITE,
        ONE,
        _WRITES,
        Oncs.WRITE_UNCORRECTABLE,
    ),
    Row(IoOpcode.COMPARE, optional.compare, READ, ONE, capability=Oncs.COMPARE),
    Row(IoOpcode.WRITE_ZEROES, optional.write_zeroes, WRITE, ONE, _WRITES, Oncs.WRITE_ZEROES),
    Row(
        IoOpcode.DATASET_MANAGEMENT,
        optional.dataset_management,
        WRITE,
        ONE,
        _WRITES,
        Oncs.DATASET_MANAGEMENT,
    ),
    Row(IoOpcode.VERIFY, optional.verify, READ, ONE, capability=Oncs.VERIFY),
    Row(IoOpcode.COPY, copy.copy, WRITE, ONE, _WRITES, Oncs.COPY),
    Row(AcceleratorOpcode.SEND_DATA, accelerator_command, OTHER),
    Row(AcceleratorOpcode.READ_DATA, accelerator_command, OTHER),
    Row(AcceleratorOpcode.SEND_PEER_DATA, send_peer_data, OTHER),
    Row(AcceleratorOpcode.SEND_FIRMWARE, accelerator_command, OTHER),
    Row(AcceleratorOpcode.READ_FIRMWARE, accelerator_command, OTHER),
    Row(AcceleratorOpcode.LOCAL_INPUT, accelerator_command, OTHER, ONE),
    Row(AcceleratorOpcode.LOCAL_OUTPUT, accelerator_command, OTHER, ONE),
    Row(AcceleratorOpcode.APPEND_LOCAL_INPUT, accelerator_command, OTHER, ONE),
    Row(AcceleratorOpcode.APPEND_LOCAL_OUTPUT, accelerator_command, OTHER, ONE),
    Row(AcceleratorOpcode.GRANT_LOCAL_STORAGE, accelerator_command, OTHER, ONE),
    Row(AcceleratorOpcode.CONTROL, accelerator_command, OTHER, effects=_WRITES),
)
"""Control writes blocks when a job's output does."""
IO_COMMANDS: Table = {**_BLOCK_COMMANDS, **_RESERVATIONS}
"""Every command of namespaces with blocks."""

MEMORY_COMMANDS = table(
    Row(MemoryOpcode.FLUSH, access.flush, WRITE, ONE),
    Row(MemoryOpcode.MEMORY_COPY, memory_copy.copy, WRITE, ONE, _WRITES),
    Row(MemoryOpcode.MEMORY_READ, access.read, READ, ONE),
    Row(MemoryOpcode.MEMORY_FILL, access.fill, WRITE, ONE, _WRITES),
    Row(MemoryOpcode.MEMORY_WRITE, access.write, WRITE, ONE, _WRITES),
    Row(ValueOpcode.COPY_VALUES, values.copy_values, WRITE, ONE, _WRITES),
)
"""Every command of memory namespaces."""

COMPUTE_COMMANDS = table(
    Row(ComputeOpcode.FLUSH, access.flush, WRITE, ONE),
    Row(ComputeOpcode.EXECUTE_PROGRAM, compute.execute_program, OTHER, ONE, _WRITES),
    Row(ChainOpcode.EXECUTE_CHAIN, compute.execute_chain, OTHER, ONE, _WRITES),
)
"""Every command of compute namespaces."""

_KEY_VALUE_ROWS = table(
    Row(KeyValueOpcode.FLUSH, key_value.flush, WRITE, ONE),
    Row(KeyValueOpcode.STORE, key_value.store, WRITE, ONE, _WRITES),
    Row(KeyValueOpcode.RETRIEVE, key_value.retrieve, READ, ONE),
    Row(KeyValueOpcode.LIST, key_value.list_keys, OTHER, ONE),
    Row(KeyValueOpcode.DELETE, key_value.delete, WRITE, ONE, _WRITES),
    Row(KeyValueOpcode.EXIST, key_value.exist, OTHER, ONE),
)
KEY_VALUE_COMMANDS: Table = {**_KEY_VALUE_ROWS, **_RESERVATIONS}
"""Every command of key value namespaces."""

_ZONE_ROWS = table(
    Row(IoOpcode.WRITE, zoned.write, WRITE, ONE, _WRITES),
    Row(IoOpcode.READ, zoned.read, READ, ONE),
    Row(IoOpcode.WRITE_UNCORRECTABLE, zoned.write_uncorrectable, WRITE, ONE, _WRITES),
    Row(IoOpcode.COMPARE, zoned.compare, READ, ONE),
    Row(IoOpcode.WRITE_ZEROES, zoned.write_zeroes, WRITE, ONE, _WRITES),
    Row(IoOpcode.VERIFY, zoned.verify, READ, ONE),
    Row(IoOpcode.ZONE_MANAGEMENT_SEND, zoned.zone_management_send, WRITE, ONE, _WRITES),
    Row(IoOpcode.ZONE_MANAGEMENT_RECEIVE, zoned.zone_management_receive, READ, ONE),
    Row(IoOpcode.ZONE_APPEND, zoned.zone_append, WRITE, ONE, _WRITES),
)
_BLOCKS_ALONE = {AcceleratorOpcode.LOCAL_OUTPUT, AcceleratorOpcode.APPEND_LOCAL_OUTPUT}
"""Commands that zoned namespaces lack: the blocks of a job's output are not known when writes are
ordered."""

ZONED_COMMANDS: Table = {
    **{opcode: row for opcode, row in IO_COMMANDS.items() if opcode not in _BLOCKS_ALONE},
    **_ZONE_ROWS,
}
"""Every command of zoned namespaces."""

COMMANDS: dict[CommandSet, Table] = {
    CommandSet.NVM: IO_COMMANDS,
    CommandSet.KEY_VALUE: KEY_VALUE_COMMANDS,
    CommandSet.ZONED: ZONED_COMMANDS,
    CommandSet.MEMORY: MEMORY_COMMANDS,
    CommandSet.COMPUTE: COMPUTE_COMMANDS,
}
"""Every I/O command that the device supports."""
