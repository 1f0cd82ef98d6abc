"""The program of a query: eBPF that goes through record batches where they are.

Its input is pages of the file. A table has, for each batch, the number of rows, and for each column
where in the input its values and its validity bitmap are. The table is the first argument of Start,
or the third memory range of Execute. The program returns the length of its output, or BAD_INDEX.

A condition becomes jumps. `_require` makes code that goes on where a condition is certainly true,
or certainly false, and jumps elsewhere otherwise, which is all of three-valued logic that a filter
needs: a & b is false where one of them is, and a null is neither.
"""

from __future__ import annotations

from csd_spec.program import Helper
from potash.columns.assembly import (
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
    Code,
    Label,
    Register,
    object_file,
)
from potash.columns.conditions import (
    All,
    Any,
    Bit,
    Condition,
    Constant,
    Floats,
    Integers,
    Member,
    Not,
    Null,
    Two,
)
from potash.columns.plan import (
    COUNT,
    GREATEST,
    HIGH,
    INFINITY,
    LEAST,
    LIMB_BITS,
    LIMBS,
    LOW,
    MANTISSA,
    MINUS_INFINITY,
    NAN,
    ROWS,
    SEEN,
    WORD,
    Aggregated,
    Plan,
    Selected,
    State,
    size_of,
)
from potash.columns.schema import Column
from potash.columns.types import TypeId, float_bits

BAD_INDEX = (1 << 64) - 1
"""Returned where a row names a value that its dictionary does not have."""
WRONG_ARGUMENTS = (1 << 64) - 2

ALL_VALID = (1 << 64) - 1
"""In the table, instead of the place of a validity bitmap."""

_INPUT, _OUTPUT, _BATCH, _ROW = R6, R7, R8, R9
_BATCHES_LEFT, _OUTPUT_START, _GROUP = -8, -16, -24
"""On the stack."""

_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}

_LIST_LENGTH, _LIST, _ARGUMENTS = 8, 16, 4
"""Members of the context."""
_RANGE_COUNT, _RANGES, _RANGE = 16, 24, 16


def entry_size(plan: Plan) -> int:
    """Bytes of a batch in the table."""
    return WORD * (1 + len(plan.columns) + len(plan.nullable))


def program(plan: Plan) -> bytes:
    """An object file. Raises InvalidQuery if it would be too long."""
    return object_file(_Generator(plan).code())


class _Generator:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._code = Code(spare=R5)
        self._data: dict[str, int] = {}
        self._validity: dict[str, int] = {}
        at = WORD
        for column in plan.columns:
            self._data[column.name] = at
            at += WORD
            if column.name in plan.nullable:
                self._validity[column.name] = at
                at += WORD

    def code(self) -> bytes:
        code, plan = self._code, self._plan
        batch, row, skip, next_batch, done, bad = (Label() for _ in range(6))
        self._begin()
        code.place(batch)
        code.load(R1, R10, _BATCHES_LEFT, WORD)
        code.jump_if(R1, "==", 0, done)
        code.set(_ROW, 0)
        code.place(row)
        code.load(R1, _BATCH, 0, WORD)
        code.jump_if(_ROW, ">=", R1, next_batch)
        if plan.condition is not None:
            self._require(plan.condition, True, skip)
        if isinstance(plan.result, Selected):
            self._select(plan.result)
        else:
            self._aggregate(plan.result, bad)
        code.place(skip)
        code.alu("+", _ROW, 1)
        code.jump(row)
        code.place(next_batch)
        code.alu("+", _BATCH, entry_size(plan))
        code.load(R1, R10, _BATCHES_LEFT, WORD)
        code.alu("-", R1, 1)
        code.store(R10, _BATCHES_LEFT, R1, WORD)
        code.jump(batch)
        code.place(done)
        self._end(plan.result)
        code.place(bad)
        code.set(R0, BAD_INDEX)
        code.exit()
        return code.assembled()

    def _begin(self) -> None:
        """Find the table: the third memory range, or else argument 0."""
        code = self._code
        arguments, found, wrong = Label(), Label(), Label()
        code.alu("=", _INPUT, R1)
        code.alu("=", _OUTPUT, R2)
        code.store(R10, _OUTPUT_START, R2, WORD)
        code.load(R1, R5, _LIST_LENGTH, WORD)
        code.alu("+", R1, 7)
        code.alu("&", R1, -8)
        code.alu("+", R1, R5)
        code.alu("+", R1, _LIST)
        code.load(R2, R1, _RANGE_COUNT, WORD)
        code.jump_if(R2, "<", 3, arguments)
        code.load(_BATCH, R1, _RANGES + 2 * _RANGE, WORD)
        code.jump(found)
        code.place(arguments)
        code.load(R2, R5, _ARGUMENTS, 4)
        code.jump_if(R2, "==", 0, wrong)
        code.alu("=", _BATCH, R5)
        code.alu("+", _BATCH, _LIST + 4)
        code.jump(found)
        code.place(wrong)
        code.set(R0, WRONG_ARGUMENTS)
        code.exit()
        code.place(found)
        code.load(R1, _BATCH, 0, WORD)
        code.store(R10, _BATCHES_LEFT, R1, WORD)
        code.alu("+", _BATCH, WORD)

    def _end(self, result: Selected | Aggregated) -> None:
        code = self._code
        if isinstance(result, Selected):
            code.alu("=", R6, _OUTPUT)
            code.load(R1, R10, _OUTPUT_START, WORD)
            code.alu("-", R6, R1)
        else:
            code.set(R6, result.size)
        code.alu("=", R1, R6)
        code.call(Helper.SET_OUTPUT_LENGTH)
        code.alu("=", R0, R6)
        code.exit()

    # ---- Values of the current row ----

    def _valid(self, column: Column, null: Label) -> None:
        """Jump to `null` where the column is null."""
        if column.name not in self._plan.nullable:
            return
        code, valid = self._code, Label()
        code.load(R1, _BATCH, self._validity[column.name], WORD)
        code.jump_if(R1, "==", -1, valid)
        self._bit(R1)
        code.jump_if(R1, "==", 0, null)
        code.place(valid)

    def _bit(self, at: Register) -> None:
        """The row's bit of the bitmap at a place in the input; uses R2."""
        code = self._code
        code.alu("+", at, _INPUT)
        code.alu("=", R2, _ROW)
        code.alu(">>", R2, 3)
        code.alu("+", at, R2)
        code.load(at, at, 0, 1)
        code.alu("=", R2, _ROW)
        code.alu("&", R2, 7)
        code.alu(">>", at, R2)
        code.alu("&", at, 1)

    def _value(self, column: Column, to: Register = R1, unsigned: bool = False) -> None:
        """The column's value in 64 bits: an integer, the bits of a float, 0 or 1. Uses R2."""
        code, kind = self._code, column.stored
        code.load(to, _BATCH, self._data[column.name], WORD)
        if kind.id == TypeId.BOOL:
            self._bit(to)
            return
        size = kind.bits // 8
        code.alu("=", R2, _ROW)
        code.alu("<<", R2, size.bit_length() - 1)
        code.alu("+", to, _INPUT)
        code.alu("+", to, R2)
        code.load(to, to, 0, size, signed=kind.signed and not unsigned)

    def _key(self, column: Column, value: Register, nan: Label) -> None:
        """Make the key of a float of its bits (sign-extended); jump where it is NaN. Uses R2."""
        code, bits = self._code, column.stored.bits
        positive = Label()
        code.alu("=", R2, value)
        code.set(R5, (1 << (bits - 1)) - 1)
        code.alu("&", R2, R5)
        code.jump_if(R2, ">", float_bits(float("inf"), bits), nan)
        code.jump_if(value, "s>=", 0, positive)
        code.alu("=", value, R2)
        code.alu("-x", value, 0)
        code.place(positive)

    # ---- Conditions ----

    def _require(self, condition: Condition, truth: bool, no: Label) -> None:
        """Go on where the condition is certainly `truth`; jump to `no` otherwise."""
        code = self._code
        match condition:
            case Not(of):
                self._require(of, not truth, no)
            case All(of) | Any(of):
                if isinstance(condition, All) == truth:
                    for one in of:
                        self._require(one, truth, no)
                else:
                    self._require_any(of, truth, no)
            case Null(column):
                self._require_null(column, truth, no)
            case Constant(column, value):
                if value == truth:
                    self._valid(column, no)
                else:
                    code.jump(no)
            case Bit(column):
                self._valid(column, no)
                self._value(column)
                code.jump_if(R1, "==" if truth else "!=", 0, no)
            case Member(column, true, false):
                self._valid(column, no)
                self._member(column, true if truth else false, no)
            case Integers(column, operator, value):
                self._valid(column, no)
                self._value(column)
                operator = operator if truth else _OPPOSITE[operator]
                code.jump_if(R1, _jump(_OPPOSITE[operator], column.stored.signed), value, no)
            case Floats(column, operator, key):
                self._valid(column, no)
                self._value(column)
                self._floats(column, operator, truth, key, no)
            case Two(left, operator, right):
                self._valid(left, no)
                self._valid(right, no)
                self._two(left, operator, right, truth, no)

    def _require_any(self, conditions: tuple[Condition, ...], truth: bool, no: Label) -> None:
        code, yes = self._code, Label()
        for one in conditions[:-1]:
            other = Label()
            self._require(one, truth, other)
            code.jump(yes)
            code.place(other)
        self._require(conditions[-1], truth, no)
        code.place(yes)

    def _require_null(self, column: Column, truth: bool, no: Label) -> None:
        code = self._code
        if not truth:
            self._valid(column, no)
            return
        null = Label()
        self._valid(column, null)
        code.jump(no)
        code.place(null)

    def _member(self, column: Column, ranges: tuple[tuple[int, int], ...], no: Label) -> None:
        code, yes = self._code, Label()
        self._value(column)
        for first, last in ranges:
            other = Label()
            if first == last:
                code.jump_if(R1, "==", first, yes)
                continue
            code.jump_if(R1, "<", first, other)
            code.jump_if(R1, "<=", last, yes)
            code.place(other)
        code.jump(no)
        code.place(yes)

    def _floats(self, column: Column, operator: str, truth: bool, key: int, no: Label) -> None:
        """Compare the float in R1. NaN makes every comparison false but `!=`."""
        code, yes = self._code, Label()
        self._key(column, R1, yes if (operator == "!=") == truth else no)
        operator = operator if truth else _OPPOSITE[operator]
        code.jump_if(R1, _jump(_OPPOSITE[operator], True), key, no)
        code.place(yes)

    def _two(self, left: Column, operator: str, right: Column, truth: bool, no: Label) -> None:
        code, yes = self._code, Label()
        self._value(left, R3)
        self._value(right, R4)
        signed = True
        if left.stored.id == TypeId.FLOAT:
            nan = yes if (operator == "!=") == truth else no
            self._key(left, R3, nan)
            self._key(right, R4, nan)
        else:
            signed = self._signs(left, operator, right, truth, (yes, no))
        operator = operator if truth else _OPPOSITE[operator]
        code.jump_if(R3, _jump(_OPPOSITE[operator], signed), R4, no)
        code.place(yes)

    def _signs(
        self, left: Column, operator: str, right: Column, truth: bool, exits: tuple[Label, Label]
    ) -> bool:
        """Whether two integers in R3 and R4 compare as signed ones.

        A negative number beside a uint64 is the smaller one, which decides it before.
        """
        yes, no = exits
        for one, other, register, less in ((left, right, R3, "<"), (right, left, R4, ">")):
            if one.stored.signed and not other.stored.signed and other.stored.bits == 64:
                decided = operator in (less, f"{less}=", "!=")
                self._code.jump_if(register, "s<", 0, yes if decided == truth else no)
                return False
        return left.stored.signed or right.stored.signed

    # ---- What becomes of a selected row ----

    def _select(self, result: Selected) -> None:
        """Append a record to the output."""
        code = self._code
        for column, at, valid in result.offsets(self._plan.nullable):
            if valid is not None:
                null = Label()
                code.set(R3, 0)
                self._valid(column, null)
                code.set(R3, 1)
                code.place(null)
                code.store(_OUTPUT, valid, R3, 1)
            self._value(column)
            code.store(_OUTPUT, at, R1, size_of(column.stored))
        code.alu("+", _OUTPUT, result.record(self._plan.nullable))

    def _aggregate(self, result: Aggregated, bad: Label) -> None:
        """Count the row in the state of its group, which is at R4."""
        code = self._code
        self._group(result, bad)
        _increment(code, ROWS)
        for state in result.states:
            self._count(state)

    def _group(self, result: Aggregated, bad: Label) -> None:
        code = self._code
        if result.by is None:
            code.alu("=", R4, _OUTPUT)
            return
        null, found = Label(), Label()
        self._valid(result.by, null)
        self._value(result.by)
        code.alu("=", R4, R1)
        code.jump_if(R4, ">=", result.values, bad)
        code.jump(found)
        code.place(null)
        code.set(R4, result.values)
        code.place(found)
        code.alu("*", R4, result.stride * WORD)
        code.alu("+", R4, _OUTPUT)

    def _count(self, state: State) -> None:
        code, column = self._code, state.column
        done = Label()
        self._valid(column, done)
        _increment(code, state.at + COUNT)
        if not (state.sums or state.extremes):
            code.place(done)
            return
        self._value(column)
        if column.stored.id == TypeId.FLOAT:
            if state.sums:
                self._add_float(state)
                self._value(column)
            self._key(column, R1, done)
        elif state.sums:
            self._add_integer(state)
        if state.extremes:
            self._extremes(state)
        code.place(done)

    def _extremes(self, state: State) -> None:
        """The least and the greatest key, of which the first one is both."""
        code, first, no_less, done = self._code, Label(), Label(), Label()
        signed = state.column.stored.signed
        least, greatest = (WORD * (state.at + word) for word in (LEAST, GREATEST))
        _increment(code, state.at + SEEN)
        code.jump_if(R2, "==", 1, first)
        code.load(R2, R4, least, WORD)
        code.jump_if(R1, _jump(">=", signed), R2, no_less)
        code.store(R4, least, R1, WORD)
        code.place(no_less)
        code.load(R2, R4, greatest, WORD)
        code.jump_if(R1, _jump("<=", signed), R2, done)
        code.store(R4, greatest, R1, WORD)
        code.jump(done)
        code.place(first)
        code.store(R4, least, R1, WORD)
        code.store(R4, greatest, R1, WORD)
        code.place(done)

    def _add_integer(self, state: State) -> None:
        """Add the halves of R1, which stays; no sum of 2^31 halves overflows."""
        code = self._code
        code.alu("=", R2, R1)
        _low_half(code, R2)
        _add(code, R4, WORD * (state.at + LOW), R2)
        code.alu("=", R2, R1)
        code.alu("s>>" if state.column.stored.signed else ">>", R2, 32)
        _add(code, R4, WORD * (state.at + HIGH), R2)

    def _add_float(self, state: State) -> None:
        """Add the float whose bits are in R1, which it uses, to three words of the sum.

        Its mantissa is shifted to its place: by 0 to 31 bits within a word, and by whole words.
        """
        code, bits = self._code, state.column.stored.bits
        mantissa = MANTISSA[bits]
        largest = (1 << (bits - 1 - mantissa)) - 1
        special, placed, done = Label(), Label(), Label()
        code.alu("=", R3, R1)
        code.alu(">>", R3, mantissa)
        code.alu("&", R3, largest)  # the exponent
        code.alu("=", R2, R1)
        code.set(R5, (1 << mantissa) - 1)
        code.alu("&", R2, R5)
        code.jump_if(R3, "==", largest, special)
        code.jump_if(R3, "==", 0, placed)  # a subnormal number
        code.set(R5, 1 << mantissa)
        code.alu("|", R2, R5)
        code.alu("-", R3, 1)
        code.place(placed)
        code.store(R10, _GROUP, R4, WORD)
        code.alu("=", R5, R3)
        code.alu(">>", R5, 5)
        code.alu("<<", R5, 3)
        code.alu("+", R5, R4)  # the first word
        code.alu("&", R3, LIMB_BITS - 1)  # the shift within it
        code.alu("s>>", R1, 63)  # -1 for a negative number
        code.alu("=", R0, R2)
        _low_half(code, R0)
        code.alu("<<", R0, R3)
        code.alu(">>", R2, 32)
        code.alu("<<", R2, R3)
        for part in range(3):
            # Bits 0 to 31 of R0 and of R2 << 32, then the next 32, and the last ones.
            if part < 2:
                code.alu("=", R3, R0)
                _low_half(code, R3) if part == 0 else code.alu(">>", R3, 32)
            if part == 1:
                code.alu("=", R4, R2)
                _low_half(code, R4)
                code.alu("+", R3, R4)
            if part == 2:
                code.alu("=", R3, R2)
                code.alu(">>", R3, 32)
            code.alu("^", R3, R1)
            code.alu("-", R3, R1)
            place = WORD * (state.at + LIMBS + part)
            code.load(R4, R5, place, WORD)
            code.alu("+", R4, R3)
            code.store(R5, place, R4, WORD)
        code.load(R4, R10, _GROUP, WORD)
        code.jump(done)
        code.place(special)
        self._count_special(state, done)
        code.place(done)

    def _count_special(self, state: State, done: Label) -> None:
        """Count NaN or an infinity: its bits are in R1, its mantissa in R2."""
        code, infinite, positive = self._code, Label(), Label()
        code.jump_if(R2, "==", 0, infinite)
        _increment(code, state.at + NAN)
        code.jump(done)
        code.place(infinite)
        code.jump_if(R1, "s>=", 0, positive)
        _increment(code, state.at + MINUS_INFINITY)
        code.jump(done)
        code.place(positive)
        _increment(code, state.at + INFINITY)


def _jump(operator: str, signed: bool) -> str:
    return f"s{operator}" if signed and operator not in ("==", "!=") else operator


def _low_half(code: Code, register: Register) -> None:
    code.alu("<<", register, 32)
    code.alu(">>", register, 32)


def _increment(code: Code, word: int) -> None:
    """Add 1 to a word of the group; it is in R2 then."""
    code.load(R2, R4, WORD * word, WORD)
    code.alu("+", R2, 1)
    code.store(R4, WORD * word, R2, WORD)


def _add(code: Code, base: Register, offset: int, value: Register) -> None:
    """Add a register, which it uses, to a word."""
    code.load(R5, base, offset, WORD)
    code.alu("+", R5, value)
    code.store(base, offset, R5, WORD)
