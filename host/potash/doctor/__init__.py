"""What this machine has of what Potash needs, and the command that mends what it lacks.

Each check is a function that looks and changes nothing. None imports what it checks: whatever is
broken must not take the doctor with it.
"""

from potash.doctor.finding import Finding, Report, State
from potash.doctor.machine import confinement, cpu, disk, memory, python, socket_folder
from potash.doctor.software import compiler, guest, kvm, packages, qemu

__all__ = [
    "Finding",
    "Report",
    "State",
    "compiler",
    "confinement",
    "cpu",
    "disk",
    "guest",
    "kvm",
    "memory",
    "packages",
    "python",
    "qemu",
    "socket_folder",
]
