"""The page of supported commands, log pages and features, generated from the firmware's tables.

`python docs/site/supported_page.py` prints it: every command, log page and feature, and every
field and bit of Identify. Commands, log pages and features come from the firmware's tables; the
fields of Identify come from a device that is created in memory.

Source of the lists: NVM Express Base Specification 2.0, figures 138, 202, 273, 275 and 317; NVM
Command Set Specification 1.0, figures 18 and 97.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from enum import IntEnum, IntFlag
from textwrap import fill
from time import monotonic
from typing import Any

import supported_texts

import csd_spec.opcodes
from nvme_spec import computational, memory_commands
from nvme_spec.features import FeatureId
from nvme_spec.identify.capabilities import (
    FRMW_SLOTS_SHIFT,
    CommandSet,
    Ctratt,
    Dlfeat,
    Dpc,
    Dsto,
    Fna,
    Frmw,
    Fuses,
    Hctma,
    Lpa,
    Mc,
    Nsfeat,
    Nvmsr,
    Oacs,
    Oaes,
    Oncs,
    Sanicap,
    Sgls,
    Vwc,
)
from nvme_spec.identify.structures import (
    Cns,
    IdentifyController,
    IdentifyNamespace,
    LbaFormat,
    PowerStateDescriptor,
)
from nvme_spec.layout import Bits, Field, Structure, Table
from nvme_spec.logs import LogPage
from nvme_spec.opcodes import (
    FIRST_VENDOR_ADMIN_OPCODE,
    FIRST_VENDOR_IO_OPCODE,
    AdminOpcode,
    IoOpcode,
)
from nvme_spec.registers import Register
from nvme_spec.status import Status, describe
from potash_device.board import Board, BoardSettings
from potash_device.controller import registers
from potash_device.media.drive import Drive
from potash_device.media.executor import MediaExecutor
from potash_device.media.flash import Flash
from potash_device.media.shapes import BLOCK_SIZES, FORMATS, NamespaceShape
from potash_device.media.sidecar import Sidecar
from potash_firmware.mailbox import SharedBuffers
from potash_firmware.mailbox.device_programs import RANGES
from potash_firmware.naming import command_name
from potash_firmware.rpu.accelerators.apu_link import ApuLink
from potash_firmware.rpu.admin import ADMIN_COMMANDS, FAULT_COMMANDS, identify, identify_controller
from potash_firmware.rpu.admin.log_pages import PAGES
from potash_firmware.rpu.admin.placement import PLACEMENT_ADMIN, PLACEMENT_IO
from potash_firmware.rpu.command_sets import COMMANDS, IO_COMMANDS
from potash_firmware.rpu.dispatch import Row
from potash_firmware.rpu.dispatch import Table as Commands
from potash_firmware.rpu.features.table import FEATURES
from potash_firmware.rpu.loop import Rpu
from potash_firmware.rpu.settings import NamespaceSettings, RpuSettings

YES, NO = "yes", "–"
IF_ALLOWED = "with `--allow-faults`"
IF_PLACED = "with `--fdp`"
IF_THERE = {
    CommandSet.MEMORY: "with memory namespaces",
    CommandSet.COMPUTE: "with compute namespaces",
    CommandSet.ZONED: "with zoned namespaces",
}
"""Of what needs another command set than NVM."""

OTHER_COMMANDS = {
    "Zoned commands (CSI 02h)": CommandSet.ZONED,
    "Memory commands (CSI 03h)": CommandSet.MEMORY,
    "Compute commands (CSI 04h)": CommandSet.COMPUTE,
}
UNVERIFIED = {**memory_commands.UNVERIFIED, **computational.UNVERIFIED}

VENDOR_LOG_PAGES = {
    csd_spec.opcodes.LOG_PAGE: "Accelerators' Log",
    csd_spec.opcodes.TIMING_LOG_PAGE: "Modelled Time",
}

CONTROLLER_BITS: dict[str, type[IntFlag]] = {
    "oaes": Oaes,
    "ctratt": Ctratt,
    "nvmsr": Nvmsr,
    "oacs": Oacs,
    "frmw": Frmw,
    "lpa": Lpa,
    "dsto": Dsto,
    "hctma": Hctma,
    "sanicap": Sanicap,
    "oncs": Oncs,
    "fuses": Fuses,
    "fna": Fna,
    "vwc": Vwc,
    "sgls": Sgls,
}
NAMESPACE_BITS: dict[str, type[IntFlag]] = {
    "nsfeat": Nsfeat,
    "mc": Mc,
    "dpc": Dpc,
    "dlfeat": Dlfeat,
}
"""The fields whose bits have names."""

CHOICES: dict[type[IntFlag], tuple[int, int]] = {
    Vwc: (1, 2),
    Sgls: (0, 1),
    Sanicap: (30, 31),
    Dlfeat: (0, 2),
}
"""Bits that are one number together, lowest and highest, in such a field."""

OF_THE_DRIVE = frozenset(
    {"vid", "ssvid", "sn", "mn", "fr", "subnqn", "tnvmcap", "unvmcap", "edstt", "nn"}
)
OF_THE_NAMESPACE = frozenset({"nsze", "ncap", "nuse", "nvmcap"})
"""Fields that are not the same in every device, or in every namespace."""

ABBREVIATIONS = {
    "io": "I/O",
    "nvm": "NVM",
    "nvme": "NVMe",
    "mi": "MI",
    "lba": "LBA",
    "sq": "SQ",
    "sgl": "SGL",
    "smart": "SMART",
    "crc": "CRC",
    "uuid": "UUID",
    "id": "ID",
    "fdp": "FDP",
}
FIELD_NAMES = {
    "format_index": "FLBAS",
    "format_index_upper": "FLBAS",
    "metadata_extended": "FLBAS",
    "copy_formats": "OCFS",
    "domain_identifier": "DID",
}
"""Fields that the standard calls otherwise."""
HEXADECIMAL = frozenset({"sqes", "cqes", "ver", *CONTROLLER_BITS, *NAMESPACE_BITS})
LITTLE_WORDS = frozenset({"and", "of", "is", "not", "per", "in", "than"})

INTRODUCTION = """\
<!-- Generated by `make docs-page` from the firmware's tables. -->

# Supported commands, log pages and features

This page lists every command, log page, feature and register of the NVM Express Base Specification
2.0 and the NVM Command Set Specification 1.0, and every field and bit of Identify.
[admin.md](admin.md) and [media.md](media.md) describe what Potash does where the standard leaves a
choice. The accelerator commands are in [commands.md](commands.md), the commands for fault injection
in [faults.md](faults.md).
"""


def words(name: str) -> str:
    """A name of the code as the standard writes it."""
    written = [
        ABBREVIATIONS.get(word, word if word in LITTLE_WORDS else word.capitalize())
        for word in name.lower().split("_")
    ]
    return " ".join(written).replace("Self Test", "Self-test").replace("NVMe MI", "NVMe-MI")


def page() -> str:
    """The whole page."""
    with ExitStack() as stack:
        return "".join(_parts(stack))


def _parts(stack: ExitStack) -> Iterator[str]:
    controller = _device(stack).controller
    namespaces = list(controller.namespaces.attached_blocks.values())
    yield INTRODUCTION
    yield _section(
        "Admin commands",
        f"Any other opcode is refused, too: {describe(Status.INVALID_OPCODE)} with Do Not Retry.",
        ("opcode", "command", "state", "namespace", "announced by"),
        (
            *_commands(
                ADMIN_COMMANDS,
                PLACEMENT_ADMIN,
                (AdminOpcode, csd_spec.opcodes.AdminOpcode),
                "OACS",
                FIRST_VENDOR_ADMIN_OPCODE,
            ),
            *_fault_commands(),
        ),
    )
    yield _section(
        "I/O commands",
        "Any other opcode is refused in the same way.",
        ("opcode", "command", "state", "namespace", "announced by"),
        _commands(
            IO_COMMANDS,
            PLACEMENT_IO,
            (IoOpcode, csd_spec.opcodes.IoOpcode),
            "ONCS",
            FIRST_VENDOR_IO_OPCODE,
        ),
    )
    for title, csi in OTHER_COMMANDS.items():
        yield _section(
            title,
            "Any other opcode is refused in the same way.",
            ("opcode", "command", "state"),
            ((f"{opcode:02X}h", name, YES) for opcode, name in _others(csi)),
        )
    yield _section(
        "Device-defined programs",
        "Every compute namespace has them from the start, activated, and they cannot be unloaded. "
        "*bytes* is the number of bytes of range 0 to process, 0 for all. Too few or too small "
        "ranges and invalid parameters are refused with Invalid Field before anything is "
        "written, and the log gives the reason.",
        ("index", "name", "ranges", "CPARAM1", "CPARAM2", "result"),
        (
            (
                str(int(index)),
                one.name,
                "; ".join(f"{at}: {what}" for at, what in enumerate(RANGES[index])),
                one.parameter1 or NO,
                one.parameter2 or NO,
                one.result,
            )
            for index, one in supported_texts.PROGRAMS.items()
        ),
    )
    yield _section(
        "Unverified layouts",
        "The text of the two command set specifications of computational storage was not "
        "available. These layouts follow one implementation, or none; each is in one table of the "
        "source.",
        ("layout", "basis"),
        ((f"`{name}`", sure) for name, sure in UNVERIFIED.items()),
    )
    yield _section(
        "Log pages",
        f"Any other page is refused, too: {describe(Status.INVALID_LOG_PAGE)} with Do Not Retry.",
        ("LID", "log page", "state", "announced by"),
        _log_pages(),
    )
    yield _section(
        "Features",
        f"Any other identifier is refused, too: {describe(Status.INVALID_FIELD)} with Do Not "
        "Retry. *saved*: a host may save the value (SV). *kept*: the value survives resets and "
        "power cycles without being saved. After a controller reset, any other feature has its "
        "saved or default value.",
        ("FID", "feature", "state", "scope", "persistence", "values"),
        _features(),
    )
    yield _section(
        "Identify",
        f"Any other CNS is refused, too: {describe(Status.INVALID_FIELD)} with Do Not Retry.",
        ("CNS", "structure", "state", "NSID, CSI, CNTID"),
        _structures(),
    )
    says = identify_controller.controller_structure(controller)
    yield _section(
        "Identify Controller (CNS 01h)",
        "Fields that are not listed are 0. A field whose name ends in *(z)* is 0's based.",
        ("bytes", "field", "value"),
        _fields((says,), OF_THE_DRIVE),
    )
    yield _section(
        "Bits of Identify Controller",
        "",
        ("field", "bits", "name", "state"),
        _bits((says,), CONTROLLER_BITS),
    )
    structures = [identify.namespace_structure(one) for one in namespaces]
    sizes = [f"{one.block_size}-byte blocks" for one in namespaces]
    yield _section(
        "Identify Namespace (CNS 00h and 11h)",
        "",
        ("bytes", "field", *sizes),
        _fields(structures, OF_THE_NAMESPACE),
    )
    yield _section(
        "Bits of Identify Namespace",
        "Deallocated Block Error is supported where blocks are no smaller than the file system's "
        "allocation unit.",
        ("field", "bits", "name", *sizes),
        _bits(structures, NAMESPACE_BITS),
    )
    yield _section(
        "LBA formats",
        "Bytes of a block and of its metadata; bits of the guard and of the storage tag where the "
        "metadata has protection information ([protection.md](protection.md)). Formats whose guard "
        "is not of 16 bits, or which have a storage tag, are extended ones.",
        ("format", "block", "metadata", "guard", "storage tag"),
        (
            (
                str(at),
                str(one.block_size),
                str(one.metadata or "–"),
                str(one.guard) if one.metadata else "–",
                str(one.storage_tag or "–"),
            )
            for at, one in enumerate(FORMATS)
        ),
    )
    yield _section(
        "Controller registers",
        "Those that are not there read as zero. Uses of a controller memory buffer are those of "
        "CMBSZ; a queue is there as a whole or not at all.",
        ("offset", "register", "state"),
        ((f"{one.offset:02X}h", one.name, _register(one)) for one in Register),
    )


def _register(register: Register) -> str:
    if register in registers.CMB:
        return "with `--cmb`"
    if register in registers.MASKS:
        return "with the profile `alkali`, for MSI"
    return YES if register in registers.PRESENT else NO


def _device(stack: ExitStack) -> Rpu:
    """A device in memory, with a namespace of each format."""
    shapes = tuple(NamespaceShape(1 << 20, size) for size in BLOCK_SIZES)
    drive = stack.enter_context(Drive.open(None, shapes))
    buffers = SharedBuffers.create({})
    stack.callback(buffers.close)
    sidecar = Sidecar(drive.sidecar)
    flash = Flash(drive.flash, sidecar)
    # Nothing is asked of the media, so the executor has no threads.
    board = Board(BoardSettings(), drive.namespaces, flash, MediaExecutor(), sidecar, drive)
    settings = RpuSettings(
        namespaces=tuple(NamespaceSettings(nsid, one[1]) for nsid, one in drive.shapes.items())
    )
    return Rpu(board, settings, ApuLink(buffers), clock=monotonic)


# The tables' rows.

Cells = Sequence[str]


def _section(title: str, text: str, heads: Cells, rows: Iterable[Cells]) -> str:
    lines = [f"\n## {title}\n"]
    if text:
        lines.append(fill(text, 100) + "\n")
    lines += [_line(heads), _line(["---"] * len(heads)).replace(" ", ""), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Cells) -> str:
    return f"| {' | '.join(cells)} |"


def _commands(
    table: Commands,
    placement: Commands,
    opcodes: Iterable[type[IntEnum]],
    field: str,
    first_vendor: int,
) -> Iterator[Cells]:
    for opcode in (one for names in opcodes for one in names):
        placed = placement.get(opcode)
        row = placed or table.get(opcode)
        yield (
            f"{opcode:02X}h",
            words(opcode.name) + (" (accelerators)" if opcode >= first_vendor else ""),
            IF_PLACED if placed else _state(row, Status.INVALID_OPCODE),
            NO if row is None else row.namespace.value,
            NO if row is None else _announced(row, field),
        )


def _others(csi: CommandSet) -> Iterator[tuple[int, str]]:
    for opcode in sorted(COMMANDS[csi]):
        yield opcode, words(command_name(opcode, admin=False, csi=csi))


def _fault_commands() -> Iterator[Cells]:
    """Those of a device that was started so that it takes them."""
    for opcode, row in FAULT_COMMANDS.items():
        name = words(csd_spec.opcodes.FaultOpcode(opcode).name)
        yield f"{opcode:02X}h", name, IF_ALLOWED, row.namespace.value, _announced(row, "OACS")


def _announced(row: Row, field: str) -> str:
    return f"{field} bit {_bit(row.capability)}" if row.capability else NO


def _state(row: object | None, otherwise: Status) -> str:
    if getattr(row, "placement", False):
        return IF_PLACED
    needed = getattr(row, "command_set", CommandSet.NVM)
    if needed in IF_THERE:
        return IF_THERE[needed]
    return YES if row is not None else words(otherwise.name)


def _log_pages() -> Iterator[Cells]:
    named = {**{int(one): words(one.name) for one in LogPage}, **VENDOR_LOG_PAGES}
    for lid, name in sorted(named.items()):
        row = PAGES.get(lid)
        announced = f"LPA bit {_bit(row.attribute)}" if row is not None and row.attribute else NO
        yield f"{lid:02X}h", name, _state(row, Status.INVALID_LOG_PAGE), announced


def _features() -> Iterator[Cells]:
    for fid in FeatureId:
        row = FEATURES.get(fid)
        state = _state(row, Status.INVALID_FIELD)
        if row is None:
            yield f"{fid:02X}h", words(fid.name), state, NO, NO, NO
            continue
        yield (
            f"{fid:02X}h",
            words(fid.name),
            state,
            "namespace" if row.namespace_specific else "controller",
            "saved" if row.saveable else "kept" if row.persistent else NO,
            supported_texts.FEATURES.get(fid, "any"),
        )


def _structures() -> Iterator[Cells]:
    for cns in Cns:
        row = identify.STRUCTURES.get(cns)
        state = _state(row, Status.INVALID_FIELD)
        yield (
            f"{cns:02X}h",
            words(cns.name),
            state,
            NO if row is None else supported_texts.STRUCTURES[cns],
        )


def _fields(
    structures: Sequence[IdentifyController | IdentifyNamespace],
    varying: frozenset[str],
) -> Iterator[Cells]:
    for name, field in structures[0].FIELDS.items():
        if name in varying:
            values = ["its own"] * len(structures)
        else:
            values = [_value(field, one) for one in structures]
        if any(value != "0" for value in values):
            zero_based = name.endswith("_z")
            title = FIELD_NAMES.get(name, name.removesuffix("_z").upper())
            yield _where(field), f"{title} (z)" if zero_based else title, *values


def _where(field: Field[Any]) -> str:
    if isinstance(field, Bits):
        high = field.low + field.limit.bit_length() - 2
        which = f"{high}:{field.low}" if high > field.low else str(high)
        return f"{field.offset}, bits {which}"
    last = field.offset + field.size - 1
    return str(last) if field.size == 1 else f"{last}:{field.offset}"


def _value(field: Field[Any], structure: Structure) -> str:
    if isinstance(field, Table):
        items = field.load(bytearray(bytes(structure)))
        if isinstance(items[0], LbaFormat):
            return "[LBA formats](#lba-formats)"
        found = [f"{at}: {_item(one)}" for at, one in enumerate(items) if any(bytes(one))]
        return "; ".join(found) or "0"
    value = getattr(structure, field.name)
    if isinstance(value, bytes):
        return "its own" if any(value) else "0"
    if isinstance(value, int):
        return f"{value:X}h" if value and field.name in HEXADECIMAL else str(value)
    return str(value)


def _item(one: Structure) -> str:
    match one:
        case PowerStateDescriptor():
            return f"{one.mp / 100:g} W"
    raise TypeError(f"a table of {type(one).__name__}")


def _bits(
    structures: Sequence[IdentifyController | IdentifyNamespace], flags: dict[str, type[IntFlag]]
) -> Iterator[Cells]:
    for name, kind in flags.items():
        values = [int(getattr(one, name)) for one in structures]
        low, high = CHOICES.get(kind, (0, -1))
        mask = (1 << high + 1) - (1 << low)
        for member_name, member in kind.__members__.items():
            if member & mask:
                bits = f"{high}:{low} = {member >> low}"
                states = [value & mask == member for value in values]
            else:
                bits = str(_bit(member))
                states = [bool(value & member) for value in values]
            yield (
                name.upper(),
                bits,
                words(member_name),
                *(YES if state else NO for state in states),
            )
        if kind is Frmw:
            slots = [value >> FRMW_SLOTS_SHIFT & 7 for value in values]
            yield name.upper(), "3:1", "Slots", *map(str, slots)


def _bit(flag: int) -> int:
    return flag.bit_length() - 1
