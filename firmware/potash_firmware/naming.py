"""What commands are called, for people: as the standard and the accelerator command set say."""

import csd_spec.opcodes
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


def command_name(opcode: int, *, admin: bool) -> str:
    """A command's name in lower case with underscores; `UNKNOWN` where it has none."""
    return (_ADMIN if admin else _IO).get(opcode, UNKNOWN)
