"""The choice of a QEMU that runs the guest, and the options of its machine.

The vfio-user client is in QEMU from 10.1 on, and 10.1.0 itself cannot use it; an installed QEMU is
used when it is new enough and was built with `vfio-user-pci`, otherwise one from the Debian
archive, which is unpacked into the cache and run with its own loader.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from potash.sdk.errors import PotashError
from potash.vm.frames import PORT
from potash.vm.packages import program_command

PROGRAM = "qemu-system-x86_64"
CLIENT = "vfio-user-pci"
OLDEST = (10, 1, 1)
ROOT_PORTS = 24
"""Empty PCI Express slots, `rp0` and on, that drives are plugged into while the machine runs."""


class Accelerator(Enum):
    """The accelerator that executes the guest's instructions, and the processor that the guest then
    sees.

    The emulated processor does not advertise fast string instructions, with which Linux would copy
    and clear memory byte by byte.
    """

    KVM = ("kvm", "host")
    TCG = ("tcg,thread=multi", "max,erms=off,fsrm=off,fsrs=off")


class Memory(Enum):
    """The backend of the guest's memory: QEMU's object for it, as an argument of `-object`.

    A device maps only the first, and reaches the others by messages (DMA_READ and DMA_WRITE).
    """

    MEMFD = "memory-backend-memfd,share=on"
    UNSEALED = "memory-backend-memfd,share=on,seal=off"
    SHM = "memory-backend-shm,share=on"
    FILE = "memory-backend-file,mem-path=/dev/shm,share=on"
    PRIVATE = "memory-backend-ram"
    """The memory of a plain `-m`."""


@dataclass(frozen=True)
class Shape:
    """The machine's size: memory in MiB, processors, and the backend of its memory."""

    memory: int
    cpus: int
    backend: Memory = Memory.MEMFD


@dataclass(frozen=True)
class Qemu:
    """A QEMU: the words that start it and what it calls its version."""

    command: tuple[str, ...]
    version: str


def parse_version(text: str) -> tuple[int, ...] | None:
    """The number in the output of `--version`, "QEMU emulator version 10.1.2 (Debian ...)"."""
    found = re.search(r"version (\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(number) for number in found.groups()) if found else None


def suitable(version_text: str, devices_text: str) -> bool:
    """True for a QEMU that can use a vfio-user device, by its output for `--version` and `-device
    help`."""
    version = parse_version(version_text)
    return version is not None and version >= OLDEST and f'"{CLIENT}"' in devices_text


def installed() -> Qemu | None:
    """The system's own QEMU; None where there is none that is suitable."""
    path = shutil.which(PROGRAM)
    if path is None:
        return None
    try:
        version = _ask((path,), "--version")
        if not suitable(version, _ask((path,), "-device", "help")):
            return None
    except PotashError:
        return None
    return Qemu((path,), _first_line(version))


def unpacked(tree: Path) -> Qemu:
    """The QEMU of an unpacked tree. Raises PotashError where it does not run here, or is too
    old."""
    command = (
        *program_command(tree, f"usr/bin/{PROGRAM}"),
        "-L",
        str(tree / "usr/share/qemu"),
        "-L",
        str(tree / "usr/share/seabios"),
    )
    version = _ask(command, "--version")
    if not suitable(version, _ask(command, "-device", "help")):
        raise PotashError(
            f"the Debian archive's {_first_line(version)} cannot use a vfio-user device: "
            f"{'.'.join(map(str, OLDEST))} or newer is wanted"
        )
    return Qemu(command, _first_line(version))


def bare_machine(accelerator: Accelerator, shape: Shape) -> list[str]:
    """The options of an empty machine, whose clocks all stand still while it is stopped."""
    accel, processor = accelerator.value
    return [
        *("-M", "q35,memory-backend=ram,smm=off"),
        *("-object", f"{shape.backend.value},id=ram,size={shape.memory}M"),
        *("-m", f"{shape.memory}M"),
        *("-smp", str(shape.cpus)),
        *("-accel", accel),
        *("-cpu", processor),
        *("-rtc", "clock=vm"),
        *("-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none"),
    ]


def root_ports() -> list[str]:
    """The options of the slots that drives are plugged into, with addresses for memory in BARs."""
    options: list[str] = []
    for number in range(ROOT_PORTS):
        place = f"slot={number + 1},chassis={number + 1}"
        options += ["-device", f"pcie-root-port,id=rp{number},{place},pref64-reserve=4G"]
    return options


def machine_arguments(
    kernel: Path, initrd: Path, accelerator: Accelerator, shape: Shape
) -> list[str]:
    """The options that describe the machine; equal options may exchange a frozen machine's state,
    and so may those that differ in the memory's backend alone."""
    # Root may map a device's registers although its driver has them: `nvme show-regs` does. Memory
    # is cleared when it is freed, as zeros take no space in a snapshot and no time to resume.
    append = "console=ttyS0 quiet panic=-1 mitigations=off iomem=relaxed init_on_free=1"
    options = bare_machine(accelerator, shape)
    if accelerator is Accelerator.TCG:
        # Without AVX, whose state the dynamic linker and the kernel would keep saving: Python
        # starts in 0.8 s of processor time instead of 0.95.
        options[options.index("-cpu") + 1] += ",avx=off,avx2=off,xsave=off"
    return [
        *options,
        *("-kernel", str(kernel)),
        *("-initrd", str(initrd)),
        *("-append", append),
        *("-device", "virtio-serial-pci,id=serial"),
        *root_ports(),
    ]


DEVICE_MONITOR = "device-monitor"
"""The prefix of the names of further monitors."""


def monitor_arguments(monitors: Sequence[Path]) -> list[str]:
    """The options for further monitors, each at a socket that QEMU makes."""
    options: list[str] = []
    for number, path in enumerate(monitors):
        escaped = str(path.absolute()).replace(",", ",,")
        name = f"{DEVICE_MONITOR}{number}"
        options += ["-chardev", f"socket,id={name},path={escaped},server=on,wait=off"]
        options += ["-mon", f"chardev={name},mode=control"]
    return options


def channel_arguments(monitor: int, control: int, console: int) -> list[str]:
    """The options that join the machine to the descriptors that it is started with."""
    return [
        *("-chardev", f"socket,id=monitor,fd={monitor}"),
        *("-qmp", "chardev:monitor"),
        *("-chardev", f"socket,id=control,fd={control}"),
        *("-device", f"virtserialport,bus=serial.0,chardev=control,name={PORT}"),
        *("-chardev", f"file,id=console,path=/proc/self/fd/{console},append=on"),
        *("-serial", "chardev:console"),
    ]


def _ask(command: tuple[str, ...], *arguments: str) -> str:
    try:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PotashError(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise PotashError(f"QEMU does not run: {said[-1]}")
    return done.stdout


def _first_line(text: str) -> str:
    return (text.splitlines() or [""])[0]
