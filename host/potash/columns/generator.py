"""The program of a query: eBPF that goes through record batches where they are.

Its input is pages of the file. A table has, for each batch, the number of rows, and for each column
where in the input its values and its validity bitmap are. The table is the first argument of Start,
or the third memory range of Execute. The program returns the length of its output, or BAD_INDEX.

A condition becomes jumps: its code goes on where it holds, and jumps elsewhere otherwise.
"""

from __future__ import annotations

from csd_spec.program import Helper
from potash.columns.accumulator import Accumulator, increment
from potash.columns.assembly import R0, R1, R2, R3, R4, R5, R6, R10, Code, Label, object_file
from potash.columns.conditions import OPPOSITE, All, Any, Condition, In, Null, Ranges, Two
from potash.columns.plan import ROWS, WORD, Aggregated, Plan, Selected
from potash.columns.row import BATCH, INPUT, OUTPUT, ROW, Row, jump_operator
from potash.columns.schema import Column
from potash.columns.types import UINT64, TypeId

BAD_INDEX = (1 << 64) - 1
"""Returned where a row names a value that its dictionary does not have."""
WRONG_ARGUMENTS = (1 << 64) - 2

ALL_VALID = (1 << 64) - 1
"""Number in the table in place of the offset of a validity bitmap: all values are valid."""

_BATCHES_LEFT, _OUTPUT_START = -8, -16
"""Offsets on the stack."""

_LIST_LENGTH, _LIST, _ARGUMENTS = 8, 16, 4
"""Members of the context."""
_RANGE_COUNT, _RANGES, _RANGE = 16, 24, 16


def entry_size(plan: Plan) -> int:
    """Bytes of a batch in the table."""
    return WORD * (1 + len(plan.columns) + len(plan.nullable))


class Generator:
    """The generator of a query's program."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._code = Code(spare=R5)
        self._row = Row(self._code, plan)
        self._accumulator = Accumulator(self._code, self._row)

    def program(self) -> bytes:
        """An object file. Raises InvalidQuery if it would be too long."""
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
            self._require(plan.condition, skip)
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
        return object_file(code.assembled())

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

    def _require(self, condition: Condition, no: Label) -> None:
        """Go on where the condition holds; jump to `no` otherwise."""
        match condition:
            case All(parts):
                for part in parts:
                    self._require(part, no)
            case Any((*others, last)):
                yes = Label()
                for part in others:
                    other = Label()
                    self._require(part, other)
                    self._code.jump(yes)
                    self._code.place(other)
                self._require(last, no)
                self._code.place(yes)
            case Null(column, truth):
                null = Label() if truth else no
                self._row.valid(column, null)
                if truth:
                    self._code.jump(no)
                    self._code.place(null)
            case In(column, ranges, nan):
                self._in(column, ranges, nan, no)
            case Two(left, operator, right, nan):
                self._two(left, operator, right, nan, no)

    def _in(self, column: Column, ranges: Ranges, nan: bool, no: Label) -> None:
        code, kind, yes = self._code, column.stored, Label()
        self._row.valid(column, no)
        self._row.value(column)
        if kind.id == TypeId.FLOAT:
            self._row.key(column, R1, yes if nan else no)
        least, greatest = kind.keys
        for number, (first, last) in enumerate(ranges, 1):
            outside = Label() if number < len(ranges) else no
            if first == last:
                code.jump_if(R1, "!=", first, outside)
            else:
                if first > least:
                    code.jump_if(R1, jump_operator("<", kind.signed), first, outside)
                if last < greatest:
                    code.jump_if(R1, jump_operator(">", kind.signed), last, outside)
            if outside is not no:
                code.jump(yes)
                code.place(outside)
        if not ranges:
            code.jump(no)
        code.place(yes)

    def _two(self, left: Column, operator: str, right: Column, nan: bool, no: Label) -> None:
        code, yes, signed = self._code, Label(), True
        for column, register in ((left, R3), (right, R4)):
            self._row.valid(column, no)
            self._row.value(column, register)
            if column.stored.id == TypeId.FLOAT:
                self._row.key(column, register, yes if nan else no)
        # A negative number beside a uint64 is the smaller one.
        for one, other, register, less in ((left, right, R3, "<"), (right, left, R4, ">")):
            if other.stored == UINT64:
                signed = False
                if one.stored.signed:
                    holds = operator in (less, f"{less}=", "!=")
                    code.jump_if(register, "s<", 0, yes if holds else no)
        code.jump_if(R3, jump_operator(OPPOSITE[operator], signed), R4, no)
        code.place(yes)

    # ---- What becomes of a selected row ----

    def _select(self, result: Selected) -> None:
        """Append a record to the output."""
        code = self._code
        at = 0
        for column in result.columns:
            if column.name in self._plan.nullable:
                null = Label()
                code.set(R3, 0)
                self._row.valid(column, null)
                code.set(R3, 1)
                code.place(null)
                code.store(OUTPUT, at, R3, 1)
                at += 1
            size = max(1, column.stored.bits // 8)
            self._row.value(column)
            code.store(OUTPUT, at, R1, size)
            at += size
        code.alu("+", OUTPUT, at)

    def _aggregate(self, result: Aggregated, bad: Label) -> None:
        """Count the row in the state of its group, which is at R4."""
        code = self._code
        self._group(result, bad)
        increment(code, ROWS)
        for state in result.states:
            done = Label()
            self._require(state.present, done)
            self._accumulator.count(state, done)
            self._code.place(done)

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
