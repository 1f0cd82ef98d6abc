"""Policies from files: whatever they do, the drive goes on."""

from __future__ import annotations

import gc
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from potash_device.flash.profile import PAGE, Profile, ProfileError, Rate
from potash_firmware.ftl import isolation, named
from potash_firmware.ftl import policies as limits
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.interface import FtlError
from potash_firmware.ftl.isolation import Isolated
from potash_firmware.ftl.policies import Greedy, Policies, PolicyError
from potash_firmware.ftl.requests import FAILED, REQUEST, Op
from support.drive_time import problems

SMALL = Profile(
    channels=2,
    dies=2,
    planes=1,
    blocks=20,
    pages=4,
    page_bytes=PAGE,
    program_pages=1,
    capacity=10 * 16 * PAGE,
    read_ns=(1000,),
    program_ns=(5000,),
    erase_ns=20_000,
    bus=Rate(PAGE, 100),
    link=Rate(PAGE, 10),
)


def writes(count: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    found = np.zeros(count, REQUEST)
    found["op"], found["count"] = Op.WRITE, 1
    found["first"] = np.random.default_rng(4).integers(0, SMALL.logical_pages, count)
    return found


def policy(folder: Path, body: str, method: str = "victim(self, superblocks)") -> str:
    """The name of a policy whose method does this."""
    path = folder / "mine.py"
    lines = textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
    path.write_text(f"import os, sys, time\n\nclass Mine:\n    def {method}:\n{lines}\n")
    return f"{path}:Mine"


WRITING = "os.write(int(sys.argv[1]), {}); time.sleep(1000)"
"""To the socket by which the process answers."""

LEAST = "return min(superblocks.candidates, key=superblocks.valid.__getitem__)"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("while True: pass", "took more than 10000 instructions to decide"),
        ("return sorted(iter(int, 1))", "took more than 0.1 s of processor time to decide"),
        ("return 10 ** 10 ** 8", "took more than 0.1 s of processor time to decide"),
        (
            """
            while True:
                try:
                    while True: pass
                except BaseException: pass
            """,
            "took more than 0.1 s of processor time to decide",
        ),
        ("time.sleep(1000)", "took more than 0.2 s to decide"),
        (WRITING.format(b"\0\0\0\x09{"), "took more than 0.2 s to decide"),
        (WRITING.format(b"answer: 3\n"), "answered nonsense"),
        (WRITING.format(b"[1]\n"), "answered nonsense"),
        (WRITING.format(b"[" * 100_000 + b"\n"), "answered nonsense"),
        ("os._exit(3)", "ended its process with code 3"),
        ("os.abort()", "ended its process with SIGABRT"),
        ("sys.exit(0)", "raised SystemExit"),
        ("return bytearray(1 << 40)", "raised MemoryError"),
        ("return [superblocks.candidates[0]]", "chose [np.int64("),
        ("return float(superblocks.candidates[0])", "which is no closed superblock"),
    ],
)
def test_a_policy_that_fails_is_replaced(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_INSTRUCTIONS", 10_000)
    monkeypatch.setattr(isolation, "MOST_SECONDS", 0.1)
    monkeypatch.setattr(isolation, "LONGEST", 60.0)
    mine = Isolated("gc", policy(tmp_path, body))
    if "0.2 s to decide" in said:
        monkeypatch.setattr(isolation, "LONGEST", 0.2)
    drive, errors = Drive(SMALL, Policies(mine)), list[FtlError]()
    drive.on_failure = errors.append
    found = drive.run(writes(600))
    (error,) = errors
    assert isinstance(error, PolicyError)
    assert str(error).startswith(f"the policy {tmp_path}/mine.py:Mine ") and said in str(error)
    assert error.kind == "gc" and (found == FAILED).sum() == 1
    assert isinstance(drive.policies.gc, Greedy)
    assert problems(SMALL, drive.state) == []
    process = mine._process
    errors.clear()
    del mine, error
    gc.collect()
    assert process.poll() is not None  # nothing is left of it


@pytest.mark.parametrize("kind", ["gc", "wear"])
def test_an_isolated_policy_decides_as_one_that_is_not(kind: str, tmp_path: Path) -> None:
    """It prints, and keeps what it has counted, too."""
    body = (
        """
        self.asked = getattr(self, "asked", 0) + 1
        print("asked", self.asked)
        if self.asked % 3 == 0:
            return int(superblocks.candidates[superblocks.erases[superblocks.candidates].argmin()])
        """
        + LEAST
    )
    name = policy(tmp_path, textwrap.dedent(body))
    alike: tuple[Any, Any] = Isolated(kind, name), isolation.loaded(kind, name)
    drives = [Drive(SMALL, replace(Policies(), **{kind: one})) for one in alike]
    found = [drive.run(writes(400)) for drive in drives]
    assert (found[0] == found[1]).all()
    assert drives[0].counters == drives[1].counters and drives[0].counters.erased > 10


def test_an_isolated_allocation_has_its_order(tmp_path: Path) -> None:
    order = "order(self, channels, dies)"
    name = policy(tmp_path, "return reversed(range(channels * dies))", order)
    drive = Drive(SMALL, named.policies([f"allocation={name}"]))
    assert drive.state.flash.order.tolist() == [3, 2, 1, 0]
    for body in ("return [0]", "return iter(int, 1)", "return 'abcd'"):
        with pytest.raises(PolicyError, match=r"mine\.py:Mine (gave no order|raised)"):
            Drive(SMALL, named.policies([f"allocation={policy(tmp_path, body, order)}"]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("while True: pass", "took more than 0.3 s of processor time to load"),
        ("import os; os._exit(1)", "ended its process with code 1"),
        ("class Other: pass", "AttributeError"),
        ("class Mine: pass", "has no method victim"),
        ("class Mine:\n    def __init__(self): raise ValueError('x')", "ValueError: x"),
        ("class", "SyntaxError"),
    ],
)
def test_what_is_no_policy_is_refused(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "MOST_SECONDS", 0.03)
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ProfileError, match=said):
        named.policies([f"gc={tmp_path}/mine.py:Mine"])
