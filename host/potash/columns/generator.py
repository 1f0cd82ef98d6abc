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
from potash.columns.accumulator import Accumulator, increment
from potash.columns.assembly import (
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R10,
    Code,
    Label,
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
    ROWS,
    WORD,
    Aggregated,
    Plan,
    Selected,
    size_of,
)
from potash.columns.row import BATCH, INPUT, OUTPUT, ROW, Row, jump_operator
from potash.columns.schema import Column
from potash.columns.types import TypeId

BAD_INDEX = (1 << 64) - 1
"""Returned where a row names a value that its dictionary does not have."""
WRONG_ARGUMENTS = (1 << 64) - 2

ALL_VALID = (1 << 64) - 1
"""In the table, instead of the place of a validity bitmap."""

_BATCHES_LEFT, _OUTPUT_START = -8, -16
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
        self._row = Row(self._code, plan)
        self._accumulator = Accumulator(self._code, self._row)

    def code(self) -> bytes:
        code, plan = self._code, self._plan
        batch, row, skip, next_batch, done, bad = (Label() for _ in range(6))
        self._begin()
        code.place(batch)
        code.load(R1, R10, _BATCHES_LEFT, WORD)
        code.jump_if(R1, "==", 0, done)
        code.set(ROW, 0)
        code.place(row)
        code.load(R1, BATCH, 0, WORD)
        code.jump_if(ROW, ">=", R1, next_batch)
        if plan.condition is not None:
            self._require(plan.condition, True, skip)
        if isinstance(plan.result, Selected):
            self._select(plan.result)
        else:
            self._aggregate(plan.result, bad)
        code.place(skip)
        code.alu("+", ROW, 1)
        code.jump(row)
        code.place(next_batch)
        code.alu("+", BATCH, entry_size(plan))
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
        code.alu("=", INPUT, R1)
        code.alu("=", OUTPUT, R2)
        code.store(R10, _OUTPUT_START, R2, WORD)
        code.load(R1, R5, _LIST_LENGTH, WORD)
        code.alu("+", R1, 7)
        code.alu("&", R1, -8)
        code.alu("+", R1, R5)
        code.alu("+", R1, _LIST)
        code.load(R2, R1, _RANGE_COUNT, WORD)
        code.jump_if(R2, "<", 3, arguments)
        code.load(BATCH, R1, _RANGES + 2 * _RANGE, WORD)
        code.jump(found)
        code.place(arguments)
        code.load(R2, R5, _ARGUMENTS, 4)
        code.jump_if(R2, "==", 0, wrong)
        code.alu("=", BATCH, R5)
        code.alu("+", BATCH, _LIST + 4)
        code.jump(found)
        code.place(wrong)
        code.set(R0, WRONG_ARGUMENTS)
        code.exit()
        code.place(found)
        code.load(R1, BATCH, 0, WORD)
        code.store(R10, _BATCHES_LEFT, R1, WORD)
        code.alu("+", BATCH, WORD)

    def _end(self, result: Selected | Aggregated) -> None:
        code = self._code
        if isinstance(result, Selected):
            code.alu("=", R6, OUTPUT)
            code.load(R1, R10, _OUTPUT_START, WORD)
            code.alu("-", R6, R1)
        else:
            code.set(R6, result.size)
        code.alu("=", R1, R6)
        code.call(Helper.SET_OUTPUT_LENGTH)
        code.alu("=", R0, R6)
        code.exit()

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
                    self._row.valid(column, no)
                else:
                    code.jump(no)
            case Bit(column):
                self._row.valid(column, no)
                self._row.value(column)
                code.jump_if(R1, "==" if truth else "!=", 0, no)
            case Member(column, true, false):
                self._row.valid(column, no)
                self._member(column, true if truth else false, no)
            case Integers(column, operator, value):
                self._row.valid(column, no)
                self._row.value(column)
                operator = operator if truth else _OPPOSITE[operator]
                code.jump_if(
                    R1, jump_operator(_OPPOSITE[operator], column.stored.signed), value, no
                )
            case Floats(column, operator, key):
                self._row.valid(column, no)
                self._row.value(column)
                self._floats(column, operator, truth, key, no)
            case Two(left, operator, right):
                self._row.valid(left, no)
                self._row.valid(right, no)
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
            self._row.valid(column, no)
            return
        null = Label()
        self._row.valid(column, null)
        code.jump(no)
        code.place(null)

    def _member(self, column: Column, ranges: tuple[tuple[int, int], ...], no: Label) -> None:
        code, yes = self._code, Label()
        self._row.value(column)
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
        self._row.key(column, R1, yes if (operator == "!=") == truth else no)
        operator = operator if truth else _OPPOSITE[operator]
        code.jump_if(R1, jump_operator(_OPPOSITE[operator], True), key, no)
        code.place(yes)

    def _two(self, left: Column, operator: str, right: Column, truth: bool, no: Label) -> None:
        code, yes = self._code, Label()
        self._row.value(left, R3)
        self._row.value(right, R4)
        signed = True
        if left.stored.id == TypeId.FLOAT:
            nan = yes if (operator == "!=") == truth else no
            self._row.key(left, R3, nan)
            self._row.key(right, R4, nan)
        else:
            signed = self._signs(left, operator, right, truth, (yes, no))
        operator = operator if truth else _OPPOSITE[operator]
        code.jump_if(R3, jump_operator(_OPPOSITE[operator], signed), R4, no)
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
                self._row.valid(column, null)
                code.set(R3, 1)
                code.place(null)
                code.store(OUTPUT, valid, R3, 1)
            self._row.value(column)
            code.store(OUTPUT, at, R1, size_of(column.stored))
        code.alu("+", OUTPUT, result.record(self._plan.nullable))

    def _aggregate(self, result: Aggregated, bad: Label) -> None:
        """Count the row in the state of its group, which is at R4."""
        code = self._code
        self._group(result, bad)
        increment(code, ROWS)
        for state in result.states:
            self._accumulator.count(state)

    def _group(self, result: Aggregated, bad: Label) -> None:
        code = self._code
        if result.by is None:
            code.alu("=", R4, OUTPUT)
            return
        null, found = Label(), Label()
        self._row.valid(result.by, null)
        self._row.value(result.by)
        code.alu("=", R4, R1)
        code.jump_if(R4, ">=", result.values, bad)
        code.jump(found)
        code.place(null)
        code.set(R4, result.values)
        code.place(found)
        code.alu("*", R4, result.stride * WORD)
        code.alu("+", R4, OUTPUT)
