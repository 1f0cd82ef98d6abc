"""A key value drive, and a key value library on the blocks of the same drive."""

import struct

from potash.experiment import Point
from potash.sdk import Device

KEY, RATIO, LEVELS, UPDATES = 16, 10, 2, 3
"""Bytes of a key; how many times a level is larger than the one above; levels on blocks; how often
a key is written again on average."""
DATASET_MANAGEMENT, DEALLOCATE = 0x09, 4


class Library:
    """A log-structured merge tree with leveling. Which block has a key is in the host's memory."""

    def __init__(self, drive: Device, value: int, memtable: int) -> None:
        self.drive, self.value, self.memtable = drive, value, memtable
        self.block = drive.block_size
        self.recent: dict[int, bytes] = {}
        self.log = bytearray()
        self.log_end = 0
        self.levels: list[dict[int, int]] = [{} for _ in range(LEVELS)]
        """For each level, the place of each key in its file, in order."""
        self.slots = [0] * LEVELS

    def put(self, key: int, value: bytes) -> None:
        self.log += key.to_bytes(KEY) + value
        while len(self.log) >= self.block:
            self.drive.write(self.log_end, self.log[: self.block])
            del self.log[: self.block]
            self.log_end += 1
        self.recent[key] = value
        if len(self.recent) == self.memtable:
            self.merge(0, self.recent)
            self.trim(0, self.log_end)
            self.recent, self.log_end = {}, 0
            self.log.clear()

    def get(self, key: int) -> bytes:
        if key in self.recent:
            return self.recent[key]
        level = next(number for number, places in enumerate(self.levels) if key in places)
        at = self.levels[level][key] * (KEY + self.value) + KEY
        first, end = at // self.block, -(-(at + self.value) // self.block)
        data = self.drive.read(self.start(level) + first, end - first)
        return data[at - first * self.block :][: self.value]

    def merge(self, level: int, newer: dict[int, bytes]) -> None:
        """Merge entries into a level; a level that would be too large goes to the next one."""
        merged = dict(sorted((self.load(level) | newer).items()))
        if level < LEVELS - 1 and len(merged) >= self.memtable * RATIO ** (level + 1):
            self.levels[level] = {}
            self.merge(level + 1, merged)
            return
        self.slots[level] ^= 1
        file = b"".join(key.to_bytes(KEY) + value for key, value in merged.items())
        self.drive.write(self.start(level), file + bytes(-len(file) % self.block))
        self.levels[level] = {key: place for place, key in enumerate(merged)}

    def load(self, level: int) -> dict[int, bytes]:
        """The entries of a level, which is then deleted."""
        size, count = KEY + self.value, len(self.levels[level])
        if not count:
            return {}
        blocks = -(-count * size // self.block)
        data = self.drive.read(self.start(level), blocks)
        self.trim(self.start(level), blocks)
        return {
            key: data[at * size + KEY : (at + 1) * size] for key, at in self.levels[level].items()
        }

    def start(self, level: int) -> int:
        """The first block of a level's file: behind the log, and those of smaller levels."""
        size = self.memtable * (KEY + self.value)
        sizes = [-(-size * int(RATIO**number) // self.block) for number in range(LEVELS + 1)]
        return 2 * sum(sizes[: level + 1]) + self.slots[level] * sizes[level + 1]

    def trim(self, first: int, blocks: int) -> None:
        ranges = struct.pack("<IIQ", 0, blocks, first)
        self.drive.io(DATASET_MANAGEMENT, cdw11=DEALLOCATE, data_out=ranges)


class InDrive:
    """The drive's own key value namespace."""

    def __init__(self, drive: Device, value: int) -> None:
        self.values, self.value = drive.kv_namespace(), value

    def put(self, key: int, value: bytes) -> None:
        self.values.store(key.to_bytes(KEY), value)

    def get(self, key: int) -> bytes:
        return self.values.retrieve(key.to_bytes(KEY), self.value).data


def measured(point: Point) -> list[dict[str, float | str]]:
    """Bytes on flash for each byte of a user, and commands for each put and get."""
    (drive,), value = point.drives, int(point["value"])
    memtable = int(point["memtable"]) // (KEY + value)
    store: Library | InDrive = InDrive(drive, value)
    if point["store"] == "library":
        store = Library(drive, value, memtable)
    keys = [point.random.getrandbits(8 * KEY) for _ in range(memtable * (RATIO**LEVELS - 1))]
    contents: dict[int, bytes] = {}
    rows: list[dict[str, float | str]] = []
    for phase, times in (("load", 1), ("update", UPDATES)):
        flash, before = written(drive), drive.traffic()
        for count in range(times * len(keys)):
            key = keys[count] if phase == "load" else point.random.choice(keys)
            contents[key] = struct.pack("<Q", count) * (value // 8)
            store.put(key, contents[key])
        puts, flash = drive.traffic(before).commands, written(drive) - flash
        before = drive.traffic()
        if any(store.get(key) != contents[key] for key in keys[::8]):
            raise ValueError("the store has lost a value")
        gets = drive.traffic(before).commands / len(keys[::8])
        count = times * len(keys)
        amplification = flash / (count * (KEY + value))
        row: dict[str, float | str] = {"phase": phase, "amplification": amplification}
        rows.append({**row, "put_commands": puts / count, "get_commands": gets})
    return rows


def written(drive: Device) -> int:
    """Bytes that the modelled flash has programmed."""
    log = drive.timing_log()
    return 4096 * (log.host + log.relocated + log.translation + log.padding)


def published(point: Point) -> list[dict[str, float | str]] | None:
    """Dayan et al. (SIGMOD 2017): on each level, (RATIO - 1) / 2 copies; and one in the log."""
    if point["store"] == "drive":
        return None
    return [{"phase": "load", "amplification": 1 + LEVELS * (RATIO - 1) / 2}]
