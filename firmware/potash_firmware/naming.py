"""Names of commands for users, from the standard and the accelerator command set."""

from collections.abc import Mapping
from enum import IntEnum

import csd_spec.opcodes
from nvme_spec.computational import ComputeOpcode
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.key_value import KeyValueOpcode
from nvme_spec.memory_commands import MemoryOpcode
from nvme_spec.opcodes import AdminOpcode, IoOpcode

UNKNOWN = "unknown"
"""The name of opcodes that no document names."""


def _names(opcodes: type[IntEnum], prefix: str = "") -> Mapping[int, str]:
    return {int(one): prefix + one.name.lower() for one in opcodes}


_ADMIN = {**_names(AdminOpcode), **_names(csd_spec.opcodes.AdminOpcode, "accelerator_")}
_IO = {**_names(IoOpcode), **_names(csd_spec.opcodes.IoOpcode, "accelerator_")}
_OTHERS: Mapping[int, Mapping[int, str]] = {
    CommandSet.KEY_VALUE: _names(KeyValueOpcode),
    CommandSet.MEMORY: {**_names(MemoryOpcode), **_names(csd_spec.opcodes.ValueOpcode)},
    CommandSet.COMPUTE: {**_names(ComputeOpcode), **_names(csd_spec.opcodes.ChainOpcode)},
}
"""I/O commands of namespaces without blocks, by command set."""


CommandNames = Mapping[tuple[bool, int, int], str]
"""Names of an extension's commands, by whether they are Admin commands, command set (0 for those),
and opcode."""


def command_name(opcode: int, *, admin: bool, csi: int = CommandSet.NVM) -> str:
    """A command's name in lower case with underscores; `UNKNOWN` where it has none."""
    return (_ADMIN if admin else _OTHERS.get(csi, _IO)).get(opcode, UNKNOWN)
