"""What commands are called, for people: as the standard and the accelerator command set say."""

import csd_spec.opcodes
from nvme_spec.computational import EXECUTE_PROGRAM
from nvme_spec.identify.capabilities import CommandSet
from nvme_spec.memory_commands import MemoryOpcode
from nvme_spec.opcodes import AdminOpcode, IoOpcode

UNKNOWN = "unknown"
"""What opcodes are called that no document names."""

_ADMIN = {
    **{int(one): one.name.lower() for one in AdminOpcode},
    **{int(one): f"accelerator_{one.name.lower()}" for one in csd_spec.opcodes.AdminOpcode},
}
_IO = {
    **{int(one): one.name.lower() for one in IoOpcode},
    **{int(one): f"accelerator_{one.name.lower()}" for one in csd_spec.opcodes.IoOpcode},
}
_OTHERS: dict[int, dict[int, str]] = {
    CommandSet.MEMORY: {
        int(one): one.name.lower() if one == MemoryOpcode.FLUSH else f"memory_{one.name.lower()}"
        for one in MemoryOpcode
    },
    CommandSet.COMPUTE: {IoOpcode.FLUSH: "flush", EXECUTE_PROGRAM: "execute_program"},
}
"""I/O commands of namespaces without blocks, by command set."""


def command_name(opcode: int, *, admin: bool, csi: int = CommandSet.NVM) -> str:
    """A command's name in lower case with underscores; `UNKNOWN` where it has none."""
    return (_ADMIN if admin else _OTHERS.get(csi, _IO)).get(opcode, UNKNOWN)
