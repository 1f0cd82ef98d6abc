"""The examples in `docs/vta.md`, `docs/schedules.md` and `docs/delegate.md`, pasted and run."""

import re

from potash_firmware.tflite.capi import OPERATOR_NAMES
from potash_firmware.tflite.operators import OPERATORS
from potash_firmware.tflite.variables.claims import OPERATORS as VARIABLES
from support.docs import ROOT, blocks, run_python


def test_the_vta_s_example_adds() -> None:
    (code,) = blocks("vta.md", "python")
    *listing, output = run_python(code).splitlines()
    instructions = [line.split()[1] for line in listing if ": " in line.partition("#")[0]]
    assert instructions == ["load"] * 3 + ["alu", "store"]
    assert output == "[20, 21, 22, 23, 24, 25, 26, 27]"
    assert f"# {output}" in code


def test_the_delegate_s_example_prints_what_the_page_says() -> None:
    (code,) = blocks("delegate.md", "python")
    (said,) = blocks("delegate.md", "text")
    assert run_python(code).strip() == said


def test_the_delegate_s_page_has_every_operator() -> None:
    text = (ROOT / "docs" / "delegate.md").read_text()
    table = text.partition("| operator | executed on the VTA by | supported if |\n|---|---|---|\n")[
        2
    ]
    rows = table.partition("\n\n")[0].splitlines()
    named = [name for row in rows for name in re.findall(r"[A-Z][A-Z0-9_]+", row.split("|")[1])]
    assert sorted(named) == sorted(OPERATOR_NAMES[code] for code in (*OPERATORS, *VARIABLES))


def test_the_example_of_a_schedule() -> None:
    (code,) = blocks("schedules.md", "python")
    tile, shape = run_python(code).splitlines()
    assert tile.startswith("Tile(rows=")
    assert shape == "(1, 24, 16, 16)"
