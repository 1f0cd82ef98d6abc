"""Random programs whose numbers are near the limits of types: what a guard could overflow with.

Loops in each other, in which merged values, products and pointers that move on say where accesses
are, how often loops iterate, and what an iteration adds. Constants and arguments are near powers of two; so
are, written in digits, numbers of up to 130 bits that only a reader of both sides of each branch
arrives at (`bpf_attacks.ladder`). What is really executed is short, and near the arena's edges.
"""

from __future__ import annotations

from random import Random

from support.bpf import LAYOUT
from support.bpf_assembler import assemble
from support.bpf_attacks import ladder
from support.bpf_programs import Case

INPUT, OUTPUT, DATA, RODATA = 0x1000_1000, 0x1000_2000, 0x1000_3000, 0x1000_4000
END = 0x1000_0000 + LAYOUT.size
POWERS = (31, 32, 48, 62, 63, 64)
WIDE = (62, 63, 64, 65, 80, 96, 100, 112, 120, 126, 127, 128, 129)
SMALL = (0, 0, 1, -1, 2, 8, -8, 16, 64)
RISING, FALLING = ("<", "<=", "s<", "s<=", "!="), (">", ">=", "s>", "s>=", "!=")


class Text:
    """A program as it is written. r7 and r8 count; r1, r4, r5 and r9 stay what they are."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lines: list[str] = []
        self._labels = 0

    def add(self, *lines: str) -> None:
        self.lines += lines

    def label(self) -> str:
        self._labels += 1
        return f"l{self._labels}x"

    # Numbers

    def extreme(self) -> int:
        """A number near a power of two, as 64 bits have it."""
        random = self.random
        value = (1 << random.choice(POWERS)) + random.choice(SMALL)
        if random.random() < 0.3:
            value //= random.choice((2, 3, 4, 8))
        return _signed(random.choice((value, -value)))

    def small(self) -> int:
        return self.random.choice((0, 1, 2, 3, 5, 7, 8, 64))

    def reach(self) -> int:
        """A distance from the input's beginning: mostly inside, or just not."""
        random = self.random
        edge = random.choice((0, 8, 100, 4088, RODATA - INPUT, END - INPUT, -4096))
        return edge + random.choice((0, 0, 1, -1, 8, -8, -16, 16, 4096))

    def bits(self) -> int:
        return self.random.choice((8, 8, 16, 32, 64))

    # Pieces

    def access(self, register: str, offset: int = 0) -> None:
        sign = "-" if offset < 0 else "+"
        place = f"*(u{self.bits()} *)({register} {sign} {abs(offset)})"
        self.add(f"{place} = r0" if self.random.random() < 0.5 else f"r0 = {place}")

    def group(self) -> None:
        """Accesses at constant distances from r6, which is somewhere far from the input."""
        random = self.random
        for _ in range(random.choice((2, 3, 3, 4))):
            at = random.choice(
                (self.reach() - self.hidden, self.reach() - self.hidden, self.extreme())
            )
            self.add("r2 = r6", f"r3 = {_signed(at)} ll", "r2 += r3")
            self.access("r2", random.choice((0, 0, 0, 8, -8, 32767, -32768)))

    def number(self) -> None:
        """Something in r2: small or within reach, and perhaps thought to be large."""
        random = self.random
        taken = str(random.choice((self.small(), self.reach())))
        match random.randrange(6):
            case 0 | 1 | 2:
                wide = (1 << random.choice(WIDE)) + random.choice((0, 0, 1, 63, 64))
                self.add(ladder(self.label(), wide, taken))
            case 3:
                label = self.label()
                self.add(f"r2 = {self.extreme()} ll", f"if r9 == 77 goto {label}")
                self.add(f"r2 = {taken}", f"{label}:")
            case 4:
                self.add(
                    f"r2 = {random.choice(('r5', 'r4', 'r7', 'w7'))}".replace("r2 = w", "w2 = w")
                )
            case _:
                self.add(f"r2 = {taken}")
        if random.random() < 0.2:
            factor = random.choice((2, 3, -1, 1 << 12, 1 << 30, self.extreme()))
            self.add(f"r3 = {factor} ll", "r2 *= r3")

    def indexed(self) -> None:
        self.number()
        self.add(f"r2 += {self.random.choice(('r1', 'r1', 'r6'))}")
        self.access("r2", self.random.choice((0, 0, 8, 4088)))

    def moved(self) -> None:
        """r6 moves on by something."""
        match self.random.randrange(4):
            case 0:
                self.number()
                self.add("r6 += r2")
            case 1:
                self.add(
                    f"{self.random.choice(('r6', 'r6', 'w6'))} += {self.random.choice((1, 8, -8, 4096))}"
                )
            case 2:
                shift = self.random.choice((0, 3, 12, 30, 30))
                self.add("r2 = r5", f"r2 <<= {shift}", "r6 += r2")
            case _:
                self.number()
                self.add("r6 -= r2")

    def loop(self, counter: str, depth: int, kept: str) -> None:
        """A counted loop, which leaves early more often than not."""
        random = self.random
        rising = random.random() < 0.7
        goes_on = random.choice(RISING if rising else FALLING)
        word = random.choice(("r", "r", "r", "w"))
        step = random.choice((1, 1, 1, 2, 7, 8, 1 << 12, (1 << 31) - 1))
        head, out = self.label(), self.label()
        first = random.choice((0, 0, 0, 1, -3, self.extreme()))
        bound = random.choice((4, 16, 1 << 28, (1 << 31) - 1, None, None, None))
        if not rising:
            first, bound = (random.choice((5, 1 << 30)) if bound is None else bound), 0
        self.add(f"r{counter} = {first} ll")
        if bound is None:
            limit = "8" if counter == "7" else "3"
            if random.random() < 0.5:
                self.number()
                self.add(f"r{limit} = r2")
            else:
                self.add(f"r{limit} = {1 << random.choice((3, 28, 40, 47, 47))} ll")
        else:
            limit = str(bound)
        leaves = random.choice((None, f"if r{counter} == r4 goto {out}", f"if r0 == r4 goto {out}"))
        self.add(f"{head}:")
        for _ in range(random.choice((1, 1, 2, 3))):
            self.piece(depth + 1, kept if bound is not None else kept + limit)
        if leaves and random.random() < 0.8:
            self.add(leaves)
        sign = "+=" if rising else "-="
        adds = random.choice((str(step), str(step), str(step), "r5"))
        if adds == "r5" and word == "w":
            adds = "w5"
        self.add(f"{word}{counter} {sign} {adds}")
        operand = limit if bound is not None else f"{word}{limit}"
        self.add(f"if {word}{counter} {goes_on} {operand} goto {head}", f"{out}:")

    def piece(self, depth: int, kept: str = "") -> None:
        """Anything that leaves the registers `kept` as they are: bounds of loops."""
        random = self.random
        choice = random.randrange(8)
        if choice == 0 or "3" in kept:
            self.add("r0 += 1")
            self.access("r6")
        elif choice == 1:
            self.group()
        elif choice < 4:
            self.indexed()
        elif choice < 6:
            self.moved()
            self.access("r6")
        elif depth < 2 and "8" not in kept:
            self.loop("8", depth, kept)

    def program(self) -> None:
        random = self.random
        middle = _signed((1 << 63) + random.choice(SMALL))
        self.hidden = random.choice((0, 0, self.extreme(), middle))
        self.add("r6 = r1", f"r3 = {self.hidden} ll", "r6 += r3", "r0 = 0")
        self.add("r9 = *(u16 *)(r1 + 0)", "if r9 == 1 goto begin", "begin:")
        for _ in range(random.choice((1, 1, 2))):
            if random.random() < 0.8:
                self.loop("7", 0, "")
            else:
                self.piece(0)
        self.add("exit")


def _signed(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def extremes(random: Random) -> Case:
    """A program whose instruction limit a real run may never reach."""
    text = Text(random)
    text.program()
    far = text.extreme() % (1 << 64)
    arguments = (
        INPUT,
        OUTPUT,
        4096,
        random.choice((0, 1, 2, 3)),
        random.choice((1, far, far, far)),
    )
    limit = random.choice((300, 3000, 1 << 40, 1 << 40))
    memory = bytearray(random.randbytes(LAYOUT.size))
    memory[4096:4098] = b"\x10\x00"
    return Case(assemble("\n".join(text.lines)), 0, arguments, bytes(memory), limit)
