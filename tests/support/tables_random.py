"""Random tables and plans, for which DuckDB, by their meaning in SQL, and pyarrow are oracles."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple
from unittest.mock import patch

import duckdb
import pyarrow as pa

from csd_spec.table_plans import Expression, Field, Order, Output, Plan, Value, ValueType
from potash_firmware.tables import execution, groups
from support import tables_pyarrow
from support.tables import Memory, aggregate, arrow, arrow_stream, ask, call, column, parquet

CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
_WORDS = ("", "a", "ab", "Axel", "anna", "Bob", "b%b", "b_b", "éa", "zz", "日本", "a.b", " x ")
_TODAY = datetime.datetime(2026, 5, 1, 12, 30)


def _some_date(source: random.Random) -> datetime.date:
    return _TODAY.date() + datetime.timedelta(source.randrange(-800, 40))


def _some_moment(source: random.Random) -> datetime.datetime:
    return _TODAY + datetime.timedelta(
        source.randrange(-800, 40), source.randrange(86_400), source.choice((0, 0, 123_456))
    )


_COLUMNS: dict[str, tuple[Any, Callable[[random.Random], Any]]] = {
    "i8": (pa.int8(), lambda source: source.randrange(-5, 6)),
    "i16": (pa.int16(), lambda source: source.randrange(-300, 300)),
    "i32": (pa.int32(), lambda source: source.choice((-(1 << 31), 0, 7, (1 << 31) - 1))),
    "i64": (pa.int64(), lambda source: source.randrange(-40, 40)),
    "big": (pa.int64(), lambda source: source.choice((-(1 << 62), 1 << 53, (1 << 53) + 1, 3))),
    "u8": (pa.uint8(), lambda source: source.randrange(256)),
    "u64": (pa.uint64(), lambda source: source.choice((0, 1, 1 << 63, (1 << 64) - 1))),
    "f64": (pa.float64(), lambda source: source.randrange(-40, 40) / 8),
    "o": (pa.bool_(), lambda source: source.random() < 0.5),
    "s": (pa.string(), lambda source: source.choice(_WORDS)),
    "k": (pa.dictionary(pa.int8(), pa.string()), lambda source: source.choice(_WORDS[:5])),
    "v": (pa.string_view(), lambda source: source.choice(_WORDS)),
    "m": (pa.decimal128(12, 2), lambda source: Decimal(source.randrange(-9999, 9999)) / 100),
    "d": (pa.date32(), _some_date),
    "t": (pa.timestamp("us"), _some_moment),
    "ms": (pa.timestamp("ms"), lambda source: _some_moment(source).replace(microsecond=5000)),
    "h": (pa.time64("us"), lambda source: _some_moment(source).time()),
}
_INTEGERS = ("i8", "i16", "i32", "i64", "big", "u8", "u64")
_NUMBERS = (*_INTEGERS, "f64", "m")
_TEXTS = ("s", "k", "v")


class Meaning(NamedTuple):
    """An expression, and its meaning in SQL."""

    expression: Expression
    sql: str


def random_table(source: random.Random) -> pa.Table:
    """A table with a column of each type, and the numbers of its rows in `row`."""
    rows = source.choice((0, 1, 20, 300, 1000))
    columns: dict[str, Any] = {"row": pa.array(range(rows), pa.int64())}
    for name, (kind, value) in _COLUMNS.items():
        nulls = source.choice((0.0, 0.0, 0.2, 1.0 if source.random() < 0.1 else 0.5))
        values = [None if source.random() < nulls else value(source) for _ in range(rows)]
        if source.random() < 0.3 and not pa.types.is_dictionary(kind):  # statistics exclude more
            values.sort(key=lambda each: (each is None, each))
        if pa.types.is_dictionary(kind):
            columns[name] = pa.array(values, kind.value_type).dictionary_encode().cast(kind)
        else:
            columns[name] = pa.array(values, kind)
    return pa.table(columns)


def random_file(source: random.Random, table: pa.Table) -> bytes:
    """A file of one of the formats, codecs and versions."""
    rows = source.choice((1, 50, 128, 10_000)) if len(table) < 1000 else 128
    match source.randrange(4):
        case 0:
            return arrow(table, rows, compression=source.choice((None, "lz4", "zstd")))
        case 1:
            return arrow_stream(table, rows)
    return parquet(
        table,
        row_group_size=rows,
        compression=source.choice(CODECS),
        version=source.choice(("1.0", "2.4", "2.6")),
        data_page_version=source.choice(("1.0", "2.0")),
        use_dictionary=source.random() < 0.6,
        write_statistics=source.random() < 0.8,
        store_schema=source.random() < 0.7,
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class Random:
    """Random expressions of a table of `random_table`."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def condition(self, depth: int = 2) -> Meaning:
        source = self._source
        if depth and source.random() < 0.6:
            first, second = self.condition(depth - 1), self.condition(depth - 1)
            match source.randrange(4):
                case 0:
                    return Meaning(call("invert", first[0]), f"(not {first.sql})")
                case 1:
                    both = call("or_kleene", first[0], second[0])
                    return Meaning(both, f"({first.sql} or {second.sql})")
            both = call("and_kleene", first[0], second[0])
            return Meaning(both, f"({first.sql} and {second.sql})")
        return source.choice(
            (self._comparison, self._comparison, self._comparison, self._of_text, self._membership)
        )()

    def _comparison(self) -> Meaning:
        source = self._source
        function, sign = source.choice(
            (
                *(("equal", "="), ("not_equal", "<>"), ("less", "<"), ("less_equal", "<=")),
                *(("greater", ">"), ("greater_equal", ">=")),
            )
        )
        left, right = source.choice(
            (self._numbers, self._numbers, self._times, self._texts, self._columns)
        )()
        if source.random() < 0.2:
            left, right = right, left
        return Meaning(call(function, left[0], right[0]), f"({left.sql} {sign} {right.sql})")

    def _numbers(self) -> tuple[Meaning, Meaning]:
        name = self._source.choice(_NUMBERS)
        value = self._source.choice((0, 1, -3, 7, 200, 1 << 53, 1.5, -0.25, 3.0, 12.34))
        # A number with a fraction that meets integers is a floating-point number.
        sql = f"{value}::double" if isinstance(value, float) and name != "m" else f"{value}"
        if name in _INTEGERS and isinstance(value, float):
            return Meaning(column(name), f"{name}::double"), Meaning(Value(value), sql)
        return Meaning(column(name), name), Meaning(Value(value), sql)

    def _columns(self) -> tuple[Meaning, Meaning]:
        first, second = self._source.sample(_NUMBERS, 2)
        to = "::double" if "f64" in (first, second) else ""
        return Meaning(column(first), f"{first}{to}"), Meaning(column(second), f"{second}{to}")

    def _times(self) -> tuple[Meaning, Meaning]:
        source = self._source
        name = source.choice(("d", "t", "ms", "h"))
        moment = _some_moment(source)
        if name == "h":
            text, to = str(moment.time()), "time"
        elif name == "d" or source.random() < 0.3:
            text, to = str(moment.date()), "date" if name == "d" else "timestamp"
        else:
            text, to = moment.isoformat(source.choice(" T")), "timestamp"
        kind = ValueType(to) if source.random() < 0.3 and len(text) > 10 else None
        return Meaning(column(name), name), Meaning(Value(text, kind), f"{_quoted(text)}::{to}")

    def _texts(self) -> tuple[Meaning, Meaning]:
        value = self._source.choice(_WORDS)
        return self.text(), Meaning(Value(value), _quoted(value))

    def text(self) -> Meaning:
        """An expression with values that are texts."""
        source = self._source
        name = source.choice(_TEXTS)
        match source.randrange(8):
            case 0:
                return Meaning(call("utf8_upper", column(name)), f"upper({name})")
            case 1:
                return Meaning(call("utf8_trim", column(name)), f"trim({name})")
            case 2:
                sliced = call("utf8_slice_codeunits", column(name), 0, 2)
                return Meaning(sliced, f"{name}[1:2]")
            case 3:
                replaced = call("replace_substring", column(name), "b", "xy")
                return Meaning(replaced, f"replace({name}, 'b', 'xy')")
            case 4:
                return Meaning(call("coalesce", column(name), "none"), f"coalesce({name}, 'none')")
        return Meaning(column(name), f"{name}::varchar")

    def _of_text(self) -> Meaning:
        name, value = self._source.choice(_TEXTS), self._source.choice(_WORDS)
        function, sql = self._source.choice(
            (
                ("starts_with", "starts_with({}, {})"),
                ("ends_with", "ends_with({}, {})"),
                ("match_substring", "contains({}, {})"),
                ("match_like", "({} like {})"),
            )
        )
        return Meaning(call(function, column(name), value), sql.format(name, _quoted(value)))

    def _membership(self) -> Meaning:
        source = self._source
        match source.randrange(4):
            case 0:
                name = source.choice(list(_COLUMNS))
                return Meaning(call("is_null", column(name)), f"({name} is null)")
            case 1:
                name = source.choice(list(_COLUMNS))
                return Meaning(call("is_valid", column(name)), f"({name} is not null)")
            case 2:
                numbers = source.sample(range(-8, 9), 4)
                sql = f"coalesce(i64 in {tuple(numbers)}, false)"
                return Meaning(call("is_in", column("i64"), *numbers), sql)
        name, words = source.choice(_TEXTS), source.sample(_WORDS, 3)
        sql = f"coalesce({name} in ({', '.join(map(_quoted, words))}), false)"
        return Meaning(call("is_in", column(name), *words), sql)

    def number(self, depth: int = 2) -> Meaning:
        """An expression with values that are 64-bit integers, decimals or floating-point numbers.
        All of it is of one type."""
        source = self._source
        name, to = source.choice((("i64", "bigint"), ("f64", "double"), ("m", "decimal(12,2)")))
        return self._arithmetic(name, to, depth)

    def _arithmetic(self, name: str, to: str, depth: int) -> Meaning:
        source = self._source
        if not depth or source.random() < 0.3:
            if source.random() < 0.3 and name != "m":
                return Meaning(
                    Value(3 if name == "i64" else 0.5), f"{3 if name == 'i64' else 0.5}::{to}"
                )
            return Meaning(column(name), name)
        first, second = (self._arithmetic(name, to, depth - 1) for _ in range(2))
        function, sign = source.choice(
            (("add_checked", "+"), ("subtract_checked", "-"), ("multiply_checked", "*"))
        )
        return Meaning(call(function, first[0], second[0]), f"({first.sql} {sign} {second.sql})")

    def key(self) -> Meaning:
        """An expression to group by."""
        source = self._source
        name = source.choice([name for name in _COLUMNS if name not in ("f64", "v")])
        match source.randrange(4):
            case 0 if name in ("d", "t", "ms"):
                part = source.choice(("year", "month", "day", "quarter"))
                return Meaning(call(part, column(name)), f"{part}({name})")
            case 1:
                return self.text()
        return Meaning(column(name), name)

    def aggregate(self) -> Meaning:
        """An aggregate, or a result of arithmetic with two."""
        source = self._source
        if source.random() < 0.15:
            total, count = aggregate("sum", column("f64")), aggregate("count_all")
            return Meaning(call("divide_checked", total, count), "(sum(f64) / count(*))")
        function = source.choice(list(_SQL))
        of = self.number() if function in _OF_NUMBERS else Meaning(column("o"), "o")
        if function in ("min", "max", "count", "count_distinct") and source.random() < 0.5:
            of = self.key()
        if function in ("first", "last"):
            of = self.text()
        if function == "count_all":
            return Meaning(aggregate(function), "count(*)")
        return Meaning(aggregate(function, of[0]), _SQL[function].format(of.sql))

    def plan(self) -> tuple[Plan, str]:
        """A plan, and the SQL that gives the same rows in the same order."""
        source = self._source
        where = self.condition() if source.random() < 0.8 else None
        keys: list[Meaning] = []
        grouped = source.random() < 0.6
        if grouped:
            keys = [self.key() for _ in range(source.choice((0, 1, 1, 2, 3)))]
            columns = keys + [self.aggregate() for _ in range(source.randrange(1, 5))]
        else:
            plain = [Meaning(column(name), name) for name in source.sample(list(_COLUMNS), 3)]
            columns = [*plain, self.number(), self.text()]
        fields = [Field(f"c{index}", each.expression) for index, each in enumerate(columns)]
        order = tuple(
            Order(field.name, source.random() < 0.5)
            for field in source.sample(fields, min(len(fields), source.choice((0, 0, 1, 2))))
        )
        limit = source.choice((None, None, 0, 1, 5, 100))
        sql = ", ".join(f"{each.sql} as c{index}" for index, each in enumerate(columns))
        sql = f"select {sql} from t"
        if where is not None:
            sql += f" where {where.sql}"
        if keys:
            sql += " group by " + ", ".join(str(index + 1) for index in range(len(keys)))
        sorts = [f"{each.name} {'desc' if each.descending else 'asc'} nulls last" for each in order]
        sorts += ["min(row)"] if grouped else ["row"]
        sql += f" order by {', '.join(sorts)}"
        if limit is not None:
            sql += f" limit {limit}"
        return (
            Plan(
                select=tuple(fields),
                where=None if where is None else where.expression,
                by=tuple(Field(f"c{index}", each.expression) for index, each in enumerate(keys)),
                order=order,
                limit=limit,
                output=Output.ARROW,
            ),
            sql,
        )


_OF_NUMBERS = ("count", "count_distinct", "sum", "mean", "min", "max", "stddev", "variance")
_SQL = {
    "count_all": "count(*)",
    "count": "count({})",
    "count_distinct": "count(distinct {})",
    "sum": "sum({})",
    "mean": "avg({})",
    "min": "min({})",
    "max": "max({})",
    "any": "bool_or({})",
    "all": "bool_and({})",
    "first": "arg_min({}, row)",
    "last": "arg_max({}, row)",
    "stddev": "stddev_pop({}::double)",
    "variance": "var_pop({}::double)",
}


def same(found: Any, expected: Any) -> bool:
    """True for equal values; floating-point numbers may differ by rounding."""
    if isinstance(found, float) or isinstance(expected, float):
        if found is None or expected is None:
            return found is expected
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)
    return bool(found == expected)


def check(seed: int, connection: duckdb.DuckDBPyConnection) -> None:
    """A table and four plans: the engine agrees with DuckDB, and with pyarrow on the same file."""
    source = random.Random(seed)
    table = random_table(source)
    data = random_file(source, table)
    connection.register("t", table)
    for _ in range(4):
        plan, sql = Random(source).plan()
        oracles = {
            "DuckDB": connection.execute(sql).fetchall(),
            "pyarrow": tables_pyarrow.answer(data, plan),
        }
        # Groups and sorted rows are merged early, too.
        with (
            patch.object(groups, "MERGED_ROWS", source.choice((1, 20, 1 << 16))),
            patch.object(execution, "SORTED_ROWS", source.choice((1, 20, 1 << 16))),
        ):
            answer = ask(Memory(data), plan, source.choice((100, 1 << 20)))
        found = [tuple(row.values()) for row in answer.table.to_pylist()]
        for oracle, expected in oracles.items():
            assert len(found) == len(expected), (oracle, seed, sql, plan)
            for row, (first, second) in enumerate(zip(found, expected, strict=True)):
                assert all(map(same, first, second)), (oracle, seed, row, first, second, sql, plan)
        assert answer.counters.rows == len(found)
