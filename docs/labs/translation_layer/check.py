"""The check of lab 7: a translation layer on flash that refuses what flash cannot do, and whose
power fails at each of its operations."""

import random
from collections.abc import Mapping
from typing import Any

BLOCKS, UNITS, PAGES = 14, 4, 4
LOGICAL = 100
"""Pages of the drive; the flash has 224."""
MOST_AMPLIFICATION = 4.0
"""A greedy collector has 2.3."""
MOST_OPERATIONS = 60
"""Operations of the flash for one write; a drive that needs more makes no progress."""

Contents = list[tuple[Any, ...]]


class Wrong(RuntimeError):
    """What the translation layer does wrong, as a sentence."""


class PowerLoss(Exception):
    """The power fails."""


class Flash:
    """Blocks of units, which are programmed whole, once, and in order."""

    torn = "torn"
    """What `read` returns of a unit at which the power failed."""

    def __init__(self) -> None:
        self.blocks, self.units, self.pages = BLOCKS, UNITS, PAGES
        self._units: list[list[Any]] = [[None] * UNITS for _ in range(BLOCKS)]
        self.programmed = 0
        """Pages."""
        self._left: int | None = None
        self._budget = 0

    def read(self, block: int, unit: int) -> Any:
        """The pages of a unit; None where nothing was programmed since the erase."""
        found = self._units[block][unit]
        return list(found) if isinstance(found, tuple) else found

    def program(self, block: int, unit: int, pages: Contents) -> None:
        """Program a unit with up to four pages, each a tuple of whatever is to be read again."""
        if not 1 <= len(pages) <= PAGES:
            raise Wrong(f"a unit has 1 to {PAGES} pages, not {len(pages)}")
        written = self._units[block]
        if written[unit] is not None:
            raise Wrong(f"unit {unit} of block {block} is programmed twice without an erase")
        if unit and written[unit - 1] is None:
            raise Wrong(f"unit {unit} of block {block} is programmed before unit {unit - 1}")
        if Flash.torn in written:
            raise Wrong(f"block {block} is programmed after a power loss without an erase")
        self._operate(block, [*written[:unit], Flash.torn, *written[unit + 1 :]])
        written[unit] = tuple(map(tuple, pages))
        self.programmed += PAGES

    def erase(self, block: int) -> None:
        """Erase a block."""
        self._operate(block, [Flash.torn] * UNITS)
        self._units[block] = [None] * UNITS

    def fail_after(self, operations: int | None) -> None:
        """Have the power fail in a later operation; None: never."""
        self._left = operations

    def allow(self) -> None:
        """One more write: so many more operations."""
        self._budget = MOST_OPERATIONS

    def _operate(self, block: int, torn: list[Any]) -> None:
        self._budget -= 1
        if self._budget < 0:
            raise Wrong(f"a write takes more than {MOST_OPERATIONS} operations of the flash")
        if self._left == 0:
            self._units[block] = torn
            raise PowerLoss
        if self._left is not None:
            self._left -= 1


class Host:
    """A host that writes, and remembers what it wrote and what is flushed."""

    def __init__(self, make: Any, flash: Flash) -> None:
        self.make, self.flash, self.random = make, flash, random.Random(7)
        self.written: dict[int, list[bytes]] = {}
        """What each page may have: the flushed data, and what was written since."""
        self.count = 0
        self.start()

    def start(self) -> None:
        """Power on."""
        self.flash.allow()
        self.drive = self.make(self.flash)

    def write(self, page: int) -> None:
        self.count += 1
        data = b"%d of page %d" % (self.count, page)
        self.written.setdefault(page, [b""]).append(data)
        self.flash.allow()
        self.drive.write(page, data)
        if bytes(self.drive.read(page)) != data:
            raise Wrong(f"page {page} has not what was just written")

    def flush(self) -> None:
        self.flash.allow()
        self.drive.flush()
        self.written = {page: versions[-1:] for page, versions in self.written.items()}

    def work(self, writes: int) -> None:
        """Random writes, with flushes; half of them to a few pages."""
        for number in range(writes):
            most = LOGICAL if self.random.random() < 0.5 else 10
            self.write(self.random.randrange(most))
            if number % 10 == 9:
                self.flush()

    def wrong(self, failed: bool = False) -> str | None:
        """A page that has not what it must have, as a sentence. After a power failure that is what
        was flushed, or newer; and whatever it is, it has to stay."""
        for page in range(LOGICAL):
            versions = self.written.get(page, [b""])
            found = bytes(self.drive.read(page))
            if found not in (versions if failed else versions[-1:]):
                return f"page {page} has {found!r} and not {versions[0 if failed else -1]!r}"
            self.written[page] = [found]
        return None


def without_failures(make: Any) -> list[str]:
    """Problems while the power is on."""
    host, problems = Host(make, Flash()), []
    if host.wrong():
        return ["what was never written is not b''"]
    for page in range(LOGICAL):
        host.write(page)
    if said := host.wrong():
        return [f"after each page was written once, {said}"]
    host.work(600)
    before, flash = host.count, host.flash.programmed
    host.work(1000)
    if said := host.wrong():
        problems.append(f"after random writes, {said}")
    amplification = (host.flash.programmed - flash) / (host.count - before)
    if amplification > MOST_AMPLIFICATION:
        problems.append(
            f"the write amplification is {amplification:.1f}; {MOST_AMPLIFICATION} is the most"
        )
    return problems


def with_failures(make: Any) -> list[str]:
    """The first problem of a power failure at each operation of a workload, and of a second one."""
    operation = 0
    while True:
        host = Host(make, Flash())
        host.work(300)
        failures = 0
        for _ in range(2):
            host.flash.fail_after(operation)
            try:
                host.work(60)
            except PowerLoss:
                failures += 1
            host.flash.fail_after(None)
            host.start()
            if said := host.wrong(failed=True):
                return [f"the power fails at operation {operation}: {said}"]
        if not failures:
            return []
        operation += 1


def check(made: Mapping[str, Any]) -> list[str]:
    """What is missing, a sentence each."""
    for part in (without_failures, with_failures):
        try:
            if problems := part(made["Mine"]):
                return problems
        except Wrong as error:
            return [str(error)]
    return []
