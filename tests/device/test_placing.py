"""Object files that are placed in memory without LLVM."""

import ctypes
import platform
from typing import Any

import pytest

from potash_device import object_code
from potash_device.placing import CannotPlaceError, place

if platform.machine() != "x86_64":
    pytest.skip("placing is for x86-64", allow_module_level=True)

TEXT = """
@squares = internal constant [4 x i64] [i64 0, i64 1, i64 4, i64 9]
@chosen = internal constant ptr getelementptr ([4 x i64], ptr @squares, i64 0, i64 3)
declare double @pow(double, double)
define i64 @square(i64 %index) {
  %at = getelementptr [4 x i64], ptr @squares, i64 0, i64 %index
  %value = load i64, ptr %at
  ret i64 %value
}
define i64 @last(i64 %index) {
  %at = load volatile ptr, ptr @chosen
  %value = load i64, ptr %at
  %sum = add i64 %value, %index
  ret i64 %sum
}
define i64 @cube(i64 %index) {
  %base = sitofp i64 %index to double
  %value = call double @pow(double %base, double 3.0)
  %rounded = fptosi double %value to i64
  ret i64 %rounded
}
"""


def object_of(text: str, model: str = "large") -> bytes:
    """An object file of LLVM's."""
    binding = object_code.llvm()
    target = binding.Target.from_default_triple()
    machine = target.create_target_machine(codemodel=model, jit=True, reloc="static")
    contents: bytes = machine.emit_object(binding.parse_assembly(text))
    return contents


@pytest.mark.parametrize(("name", "result"), [("square", 4), ("last", 11), ("cube", 8)])
def test_functions_find_their_data_and_other_functions(name: str, result: int) -> None:
    placed = place(object_of(TEXT), name)
    function: Any = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(placed.address)
    assert function(2) == result


WRITES = """
@sum = internal global i64 7
define i64 @function(i64 %value) {
  store volatile i64 %value, ptr @sum
  ret i64 %value
}
"""
LACKS = """
declare i64 @nothing_has_this_name(i64)
define i64 @function(i64 %value) {
  %result = call i64 @nothing_has_this_name(i64 %value)
  ret i64 %result
}
"""


@pytest.mark.parametrize(
    ("text", "model"), [(WRITES, "large"), (LACKS, "large"), (TEXT, "small"), (TEXT, "large")]
)
def test_what_needs_more_is_for_llvm(text: str, model: str) -> None:
    """Data to write, a function that is nowhere, short jumps, and no function of the name."""
    with pytest.raises(CannotPlaceError):
        place(object_of(text, model), "function")


def test_what_is_no_object_file_of_this_processor() -> None:
    contents = object_of(TEXT)
    for other in (b"", contents[:-100], contents[:18] + b"\xb7" + contents[19:]):
        with pytest.raises(CannotPlaceError):
            place(other, "square")
