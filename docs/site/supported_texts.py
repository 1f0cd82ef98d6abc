"""What the page of what is supported says besides the tables of the firmware, and how it writes
names."""

from collections.abc import Sequence
from typing import NamedTuple

from nvme_spec.identify.structures import Cns
from potash_firmware.mailbox.device_programs import DeviceProgram

STRUCTURES = {
    Cns.NAMESPACE: (
        "of the NVM command set; an inactive namespace is zeroes; NSID FFFFFFFFh gives what all "
        "namespaces have in common"
    ),
    Cns.CONTROLLER: "NSID 0",
    Cns.UUID_LIST: "NSID 0; the Open Compute Project's",
    Cns.ACTIVE_NAMESPACE_LIST: "those above NSID",
    Cns.NAMESPACE_IDENTIFICATION_DESCRIPTORS: "an active namespace; its UUID and its command set",
    Cns.COMMAND_SET_NAMESPACE: (
        "of the command set CSI; an inactive namespace is zeroes; NSID FFFFFFFFh gives what all "
        "namespaces have in common"
    ),
    Cns.COMMAND_SET_CONTROLLER: "of the command set CSI, NSID 0; zeroes for all but CSI 0",
    Cns.COMMAND_SET_ACTIVE_NAMESPACE_LIST: "of the command set CSI; those above NSID",
    Cns.COMMAND_SET_INDEPENDENT_NAMESPACE: "an inactive namespace is zeroes",
    Cns.ALLOCATED_NAMESPACE_LIST: "those above NSID",
    Cns.ALLOCATED_NAMESPACE: (
        "of the NVM command set; an identifier that no namespace has is zeroes"
    ),
    Cns.NAMESPACE_CONTROLLER_LIST: "an allocated namespace; controllers from CNTID on",
    Cns.CONTROLLER_LIST: "controllers from CNTID on",
    Cns.ENDURANCE_GROUP_LIST: "endurance groups from CNS specific identifier on",
    Cns.COMMAND_SET_ALLOCATED_NAMESPACE_LIST: "of the command set CSI; those above NSID",
    Cns.COMMAND_SET_ALLOCATED_NAMESPACE: (
        "of the command set CSI; an identifier that no namespace has is zeroes"
    ),
    Cns.COMMAND_SETS: "CNTID 0 or FFFFh, NSID 0; the command sets that work at once",
    Cns.COMMAND_SET_INDEPENDENT_ALLOCATED_NAMESPACE: (
        "an identifier that no namespace has is zeroes"
    ),
}
"""What the other fields of Identify choose."""


class Program(NamedTuple):
    """Name, parameters and result of a device-defined program."""

    name: str
    parameter1: str
    parameter2: str
    result: str


PROGRAMS = {
    DeviceProgram.COPY: Program("copy", "bytes", "", "the number of bytes copied"),
    DeviceProgram.FILL: Program(
        "fill", "bytes", "8 bytes to repeat, the lowest first", "the number of bytes written"
    ),
    DeviceProgram.CRC32C: Program(
        "crc32c", "bytes", "0, or an earlier result to continue", "the CRC-32C"
    ),
    DeviceProgram.SUM: Program("sum", "bytes", "", "their sum modulo 2^64"),
    DeviceProgram.MINIMUM: Program("min", "bytes", "", "the smallest one"),
    DeviceProgram.MAXIMUM: Program("max", "bytes", "", "the largest one"),
    DeviceProgram.GREP: Program(
        "grep",
        "bytes",
        "length of the text to find in bytes",
        "the number of lines that contain it, including those that do not fit; the text to "
        "find may be the command's data instead of range 2",
    ),
    DeviceProgram.FILTER: Program(
        "filter",
        "15:0 length of a record in bytes, 31:16 offset of a 32-bit field in it, 63:32 number "
        "of records, 0 for all",
        "31:0 smallest value of the field to select, 63:32 largest value",
        "the number of selected records, including those that do not fit",
    ),
    DeviceProgram.TFLITE: Program("tflite", "bytes", "", "the number of bytes of output"),
    DeviceProgram.QUERY: Program(
        "query",
        "",
        "",
        "the number of bytes of the piece, its header included; the request may be the command's "
        "data instead of range 2",
    ),
}

Cells = Sequence[str]
YES, NO = "yes", "–"

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
LITTLE_WORDS = frozenset({"and", "of", "is", "not", "per", "in", "than"})


def words(name: str) -> str:
    """A name of the code as the standard writes it."""
    written = [
        ABBREVIATIONS.get(word, word if word in LITTLE_WORDS else word.capitalize())
        for word in name.lower().split("_")
    ]
    return " ".join(written).replace("Self Test", "Self-test").replace("NVMe MI", "NVMe-MI")
