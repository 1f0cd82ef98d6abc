"""The fields and bits of Identify as rows of the page of what is supported."""

from collections.abc import Iterator, Sequence
from enum import IntFlag
from typing import Any

from supported_texts import NO, YES, Cells, words

from nvme_spec.identify.capabilities import (
    FRMW_SLOTS_SHIFT,
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
    Rescap,
    Sanicap,
    Sgls,
    Vwc,
)
from nvme_spec.identify.structures import (
    IdentifyController,
    IdentifyNamespace,
    LbaFormat,
    PowerStateDescriptor,
)
from nvme_spec.layout import Bits, Field, Structure, Table

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
    "rescap": Rescap,
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

FIELD_NAMES = {
    "format_index": "FLBAS",
    "format_index_upper": "FLBAS",
    "metadata_extended": "FLBAS",
    "copy_formats": "OCFS",
    "domain_identifier": "DID",
}
"""Fields that the standard calls otherwise."""
HEXADECIMAL = frozenset({"sqes", "cqes", "ver", *CONTROLLER_BITS, *NAMESPACE_BITS})


def fields(
    structures: Sequence[IdentifyController | IdentifyNamespace],
    varying: frozenset[str],
) -> Iterator[Cells]:
    for name, field in structures[0].FIELDS.items():
        if name in varying:
            values = ["varies"] * len(structures)
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
        return "varies" if any(value) else "0"
    if isinstance(value, int):
        return f"{value:X}h" if value and field.name in HEXADECIMAL else str(value)
    return str(value)


def _item(one: Structure) -> str:
    match one:
        case PowerStateDescriptor():
            return f"{one.mp / 100:g} W"
    raise TypeError(f"a table of {type(one).__name__}")


def bits(
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
                bits = str(bit(member))
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


def bit(flag: int) -> int:
    return flag.bit_length() - 1
