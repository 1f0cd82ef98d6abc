"""Policies that fail while a modelled drive is in use, and what a drive reports of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from potash_device.flash.profile import PAGE, Profile, ProfileError, Rate
from potash_firmware import extension_limits
from potash_firmware.ftl import named
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.interface import FtlError
from potash_firmware.ftl.policies import Greedy, Policies, PolicyError, Superblocks
from potash_firmware.ftl.requests import FAILED, REQUEST, WORN, Op
from support.drive_time import problems

pytestmark = pytest.mark.filterwarnings("ignore:custom policies:DeprecationWarning")

SMALL = Profile(
    channels=2,
    dies=1,
    planes=1,
    blocks=24,
    pages=8,
    page_bytes=PAGE,
    program_pages=2,
    capacity=16 * 16 * PAGE,
    read_ns=(1000,),
    program_ns=(5000,),
    erase_ns=20_000,
    bus=Rate(PAGE, 100),
    link=Rate(PAGE, 10),
    cores=1,
    write_command_ns=100,
)


def overwrites(count: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    found = np.zeros(count, REQUEST)
    found["time"] = np.arange(count) * 20_000
    found["op"], found["count"] = Op.WRITE, 3
    found["first"] = np.random.default_rng(4).integers(0, SMALL.logical_pages - 2, count)
    return found


class Failing:
    """The lowest number, until it fails in its own way."""

    def __init__(self, decide: Callable[[Superblocks], int | None]) -> None:
        self._decide = decide
        self._left = 3

    def victim(self, superblocks: Superblocks) -> int | None:
        self._left -= 1
        if self._left >= 0:
            return int(superblocks.candidates[np.argmin(superblocks.valid[superblocks.candidates])])
        return self._decide(superblocks)


def _raise(_: Superblocks) -> int:
    raise ValueError("a\nb")


def _exit(_: Superblocks) -> int:
    raise SystemExit


def _keep(superblocks: Superblocks) -> int:
    return int(superblocks.candidates[np.argmax(superblocks.valid[superblocks.candidates])])


@pytest.mark.parametrize(
    ("kind", "decide", "said"),
    [
        ("gc", _raise, "Failing raised ValueError: a b"),
        ("gc", _exit, "Failing raised SystemExit"),
        ("gc", _keep, "Failing frees nothing"),
        ("gc", lambda _: None, "Failing chose None"),
        ("gc", lambda _: "0", "Failing chose '0'"),
        ("gc", lambda _: 1 << 70, "Failing chose 1180591620717411303424"),
        ("wear", _raise, "Failing raised ValueError"),
        ("wear", lambda _: -1, "Failing chose -1"),
    ],
)
def test_a_drive_goes_on_with_the_built_in_policy(
    kind: str,
    decide: Callable[[Superblocks], int | None],
    said: str,
) -> None:
    failing: dict[str, Any] = {kind: Failing(decide)}
    drive = Drive(SMALL, Policies(**failing))
    errors: list[FtlError] = []
    drive.on_failure = errors.append
    asked = overwrites(600)
    found = drive.run(asked)
    (error,) = errors
    assert isinstance(error, PolicyError)
    assert said in str(error) and error.kind == kind
    assert (found == FAILED).sum() == 1
    assert (found[found != FAILED] > asked["time"][found != FAILED]).all()
    assert type(getattr(drive.policies, kind)) is type(getattr(Policies(), kind))
    assert problems(SMALL, drive.state) == []
    # Without a listener the error is raised, and the drive remains usable.
    failing = {kind: Failing(decide)}
    drive = Drive(SMALL, Policies(**failing))
    with pytest.raises(PolicyError) as raised:
        drive.run(asked)
    drive.fall_back(raised.value)
    asked["time"] += asked["time"][-1]
    assert (drive.run(asked) > 0).all()
    assert problems(SMALL, drive.state) == []


def test_a_wear_policy_that_always_answers_cannot_stop_a_drive() -> None:
    class Hungry:
        def victim(self, superblocks: Superblocks) -> int:
            return _keep(superblocks)

    drive = Drive(SMALL, Policies(wear=Hungry()))
    assert (drive.run(overwrites(500)) > 0).all()
    assert problems(SMALL, drive.state) == []


def test_an_allocation_without_an_end_is_refused() -> None:
    class Endless:
        def order(self, channels: int, dies: int) -> list[int]:
            return iter(lambda: 0, 1)  # type: ignore[return-value]  # on purpose

    with pytest.raises(PolicyError, match="Endless gave no order") as error:
        Drive(SMALL, Policies(allocation=Endless()))
    assert error.value.kind == "allocation"
    Drive(SMALL, Policies(allocation=Endless()).without("allocation"))


def test_a_drive_reports_its_wear_spare_and_load() -> None:
    drive = Drive(replace(SMALL, cycles=20))
    fresh = drive.report
    assert fresh.wear[:3] == (0, 100, False)
    assert fresh.erases == ((0, 0, 24),) and fresh.mapped == 0 and fresh.cache_hits == 1.0
    asked = overwrites(1000)
    found = drive.run(asked)
    report = drive.report
    erases = drive.state.flash.erases
    assert report.time == asked["time"][-1]
    assert report.wear.percentage_used == erases.sum() * 100 // (24 * 20) > 50
    assert report.mapped == (drive.state.places >= 0).sum() * PAGE
    for one in report.erases:
        assert one.superblocks == ((erases >= one.min) & (erases <= one.max)).sum()
    assert sum(one.superblocks for one in report.erases) == 24
    assert report.busy(drive.profile).cores == 1000 * 100 / report.time
    assert 0.5 < report.busy(drive.profile).dies < 1.1
    asked["time"] += 10**9
    found = drive.run(asked)
    later = drive.report
    since = later.busy(drive.profile, report)
    assert since.dies * (later.time - report.time) * 2 == pytest.approx(
        later.counters.die_ns - report.counters.die_ns
    )
    asked["time"] += 10**9
    found = drive.run(asked)
    assert drive.wear.worn and (found == WORN).any()
    assert drive.wear.available_spare == 0 and drive.report.wear.percentage_used >= 50
    assert drive.wear.retired == (erases >= 20).sum()


def policy(folder: Path, body: str, method: str = "victim(self, superblocks)") -> str:
    """The name of a policy in a file."""
    path = folder / "mine.py"
    path.write_text(f"class Mine:\n    def {method}:\n        {body}\n")
    return f"{path}:Mine"


LEAST = "return min(superblocks.candidates, key=superblocks.valid.__getitem__)"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("while True: pass", "took more than 0.05 s to decide"),
        ("import time; time.sleep(1000)", "took more than 0.05 s to decide"),
        ("import sys; sys.exit(0)", "raised SystemExit"),
        ("return [superblocks.candidates[0]]", "chose a list, which is no closed"),
        ("return 1 << 20000", "chose a number of 20001 bits, which is no closed"),
        ("return float(superblocks.candidates[0])", "which is no closed superblock"),
    ],
)
def test_a_policy_of_a_file_that_fails_is_replaced(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extension_limits, "STEP_LIMIT", 0.05)
    with pytest.warns(DeprecationWarning, match="custom policies are deprecated"):
        policies = named.policies([f"gc={policy(tmp_path, body)}"])
    drive, errors = Drive(SMALL, policies), list[FtlError]()
    drive.on_failure = errors.append
    found = drive.run(overwrites(600))
    (error,) = errors
    assert str(error).startswith(f"the policy {tmp_path}/mine.py:Mine ") and said in str(error)
    assert (found == FAILED).sum() == 1 and isinstance(drive.policies.gc, Greedy)
    assert problems(SMALL, drive.state) == []


@pytest.mark.parametrize("kind", ["gc", "wear"])
def test_a_policy_of_a_file_decides(kind: str, tmp_path: Path) -> None:
    drive = Drive(SMALL, named.policies([f"{kind}={policy(tmp_path, LEAST)}"]))
    plain = Drive(SMALL, Policies())
    found = [one.run(overwrites(600)) for one in (drive, plain)]
    assert (found[0] == found[1]).all()  # as greedy
    order = "order(self, channels, dies)"
    name = policy(tmp_path, "return reversed(range(channels * dies))", order)
    drive = Drive(SMALL, named.policies([f"allocation={name}"]))
    assert drive.state.flash.order.tolist() == [1, 0]
    for body in ("return [0]", "return iter(int, 1)", "return 'ab'"):
        with pytest.raises(PolicyError, match=r"mine\.py:Mine (gave no order|raised)"):
            Drive(SMALL, named.policies([f"allocation={policy(tmp_path, body, order)}"]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("while True: pass", "took more than 0.05 s to load"),
        ("class Other: pass", "AttributeError"),
        ("class Mine: pass", "has no method victim"),
        ("class Mine:\n    def __init__(self): raise ValueError('x')", "ValueError: x"),
        ("class", "SyntaxError"),
        ("import sys; sys.exit(1)", "SystemExit"),
    ],
)
def test_what_is_no_policy_is_refused(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named, "IMPORT_LIMIT", 0.05)
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ProfileError, match=said):
        named.policies([f"gc={tmp_path}/mine.py:Mine"])
