"""What the page of what is supported says besides the tables of the firmware, and how it writes
names."""

from collections.abc import Sequence
from typing import NamedTuple

from nvme_spec.features import FeatureId
from nvme_spec.identify.structures import Cns
from potash_firmware.mailbox.device_programs import DeviceProgram
from potash_firmware.rpu.features.table import HIGHEST_THRESHOLD, LOWEST_THRESHOLD

FEATURES = {
    FeatureId.POWER_MANAGEMENT: "power state 0",
    FeatureId.LBA_RANGE_TYPE: "ranges inside the namespace that do not overlap",
    FeatureId.TEMPERATURE_THRESHOLD: "the composite temperature, over and under",
    FeatureId.ERROR_RECOVERY: "any TLER; DULBE where the namespace supports it",
    FeatureId.NUMBER_OF_QUEUES: (
        "only before an I/O queue is created; all available queues are granted"
    ),
    FeatureId.INTERRUPT_VECTOR_CONFIGURATION: "any existing vector",
    FeatureId.ASYNCHRONOUS_EVENT_CONFIGURATION: "any; unsupported events are never reported",
    FeatureId.TIMESTAMP: "any; counts from that value, and from 0 after a reset",
    FeatureId.KEEP_ALIVE_TIMER: "any, rounded up to 100 ms",
    FeatureId.HOST_CONTROLLED_THERMAL_MANAGEMENT: (
        f"{LOWEST_THRESHOLD} K to {HIGHEST_THRESHOLD} K, the first below the second"
    ),
    FeatureId.HOST_BEHAVIOR_SUPPORT: "0 or 1 for each bit",
    FeatureId.IO_COMMAND_SET_PROFILE: (
        "a combination of CNS 1Ch with the command sets of all attached namespaces"
    ),
    FeatureId.HOST_IDENTIFIER: "64 or 128 bits",
    FeatureId.FLEXIBLE_DATA_PLACEMENT: "no other than it has: enabled, configuration 0",
    FeatureId.FDP_EVENTS: "each of the six, for each placement handle; 0 and 3 occur",
    FeatureId.NAMESPACE_WRITE_PROTECTION: "No Write Protect and Write Protect",
}
"""Which values a feature takes, where not any."""

STRUCTURES = {
    Cns.NAMESPACE: (
        "of the NVM command set; an inactive namespace is zeroes; NSID FFFFFFFFh gives what all "
        "namespaces have in common"
    ),
    Cns.CONTROLLER: "NSID 0",
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
