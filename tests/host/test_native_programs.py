"""Device-defined programs in native code, in a whole device, built and offered as docs/extend.md
says."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from potash.cli.app import run_app
from potash.sdk import CommandFailed
from potash.sdk.memory_namespace import Bytes
from potash.testing.booting import BootedDevice, booted_device
from potash_firmware.mailbox.device_programs import DeviceProgram

SOURCE = r"""
#include <fcntl.h>
#include "potash_native.h"

uint64_t scale(const struct potash_range *ranges, uint32_t count, const uint64_t parameters[2],
               const void *data, uint64_t length)
{
    double *from = ranges[0].start, *to = ranges[1].start, factor = parameters[0] / 4.0;
    uint64_t number = ranges[0].length / sizeof *from;
    for (uint64_t index = 0; index < number; index++)
        to[index] = from[index] * factor;
    return number << 16 | count << 8 | length;
}

uint64_t escape(const struct potash_range *ranges, uint32_t count, const uint64_t parameters[2],
                const void *data, uint64_t length)
{
    if (parameters[0])
        *(volatile char *)(uintptr_t)parameters[0] = 1;
    return open("/etc/passwd", O_RDONLY) < 0;
}

uint64_t endless(const struct potash_range *ranges, uint32_t count, const uint64_t parameters[2],
                 const void *data, uint64_t length)
{
    for (;;)
        ;
}
"""
FIRST = len(DeviceProgram)
PAGE = 4096


@pytest.fixture(scope="module")
def object_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("native")
    (folder / "kernels.c").write_text(SOURCE)
    made = folder / "kernels.so"
    command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-O1", "-fno-sanitize=all"]
    command += ["-I", str(Path(__file__).parents[2] / "examples" / "include")]
    subprocess.run([*command, "-o", str(made), str(folder / "kernels.c")], check=True, timeout=120)
    return made


@pytest.fixture(scope="module")
def device(object_file: Path) -> Iterator[BootedDevice]:
    names = ("scale:fixed=7us,per_byte=0.5ns", "escape", "endless")
    with booted_device(
        size="32M",
        memory_namespaces=["1M"],
        compute_namespaces=1,
        natives=[f"{object_file}:{name}" for name in names],
        time="modelled",
    ) as booted:
        for index in range(FIRST, FIRST + len(names)):
            booted.compute_namespace().activate(index)
        yield booted


def test_a_function_has_the_ranges_and_the_time_that_it_declares(device: BootedDevice) -> None:
    import numpy as np

    memory, compute = device.memory_namespace(), device.compute_namespace()
    numbers = np.arange(PAGE // 8, dtype="<f8")
    memory.write(0, numbers.tobytes())
    ranges = [Bytes(memory.nsid, 0, PAGE), Bytes(memory.nsid, PAGE, PAGE)]
    before = device.traffic()
    found = compute.execute(FIRST, ranges, parameters=(6, 0), data=b"abc")
    assert found == len(numbers) << 16 | 2 << 8 | 3
    assert np.array_equal(np.frombuffer(memory.read(PAGE, PAGE), "<f8"), numbers * 1.5)
    (execution,) = (one for one in device.traffic(before).completions if one.csi == 4)
    assert execution.completed - execution.began == 7000 + PAGE


def test_a_function_is_confined_and_a_crash_is_one_failure(device: BootedDevice) -> None:
    compute = device.compute_namespace()
    assert compute.execute(FIRST + 1) == 1
    with pytest.raises(CommandFailed):
        compute.execute(FIRST + 1, parameters=(8, 0))
    assert compute.execute(FIRST + 1) == 1


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("none.so:scale", "there is no file"),
        ("{}:nothing", "has no function nothing"),
        ("{}:scale:fixed=2", "fixed=2 is no time"),
        ("{}:9", "must be FILE.so:FUNCTION"),
        (__file__ + ".so:f", "there is no file"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_a_sentence(
    object_file: Path, capsys: pytest.CaptureFixture[str], source: str, reason: str
) -> None:
    native = source.format(object_file)
    assert run_app(["serve", "--socket", "s", "--native", native]) in (1, 2)
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1
