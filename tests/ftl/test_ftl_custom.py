"""Translation layers of users: whatever they answer, the drive goes on, and errors name them."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest

from potash_device.flash.profile import PAGE, Profile, Rate
from potash_firmware import extension_limits
from potash_firmware.extension_files import load
from potash_firmware.extension_limits import ExtensionError
from potash_firmware.extension_registry import RegisteredClass
from potash_firmware.ftl import named
from potash_firmware.ftl.custom import CustomFtl
from potash_firmware.ftl.interface import FtlError
from potash_firmware.ftl.plain import PageMapped
from potash_firmware.ftl.requests import FAILED, REQUEST, WORN, Counters, Op, RequestError

SMALL = Profile(
    channels=1,
    dies=2,
    planes=1,
    blocks=20,
    pages=4,
    page_bytes=PAGE,
    program_pages=1,
    capacity=64 * PAGE,
    read_ns=(1000,),
    program_ns=(5000,),
    erase_ns=20_000,
    bus=Rate(PAGE, 100),
    link=Rate(PAGE, 10),
)
MINE = """
from potash.extend import ftl
from potash.timing import WORN

@ftl
class Mine:
    def __init__(self, profile):
        self.requests = 0
    def submit(self, time, op, first, count, stream, fua, hint):
        self.requests += 1
        {body}
        return time + 100 * count
    {more}
"""


def written(folder: Path, text: str) -> str:
    path = folder / "mine.py"
    path.write_text(text)
    return str(path)


def made(folder: Path, body: str = "pass", more: str = "pass") -> CustomFtl:
    """The drive with a class of these lines."""
    found = load([written(folder, MINE.format(body=body, more=more))])
    drive = named.ftl("Mine", SMALL, [], found.ftls)
    assert isinstance(drive, CustomFtl)
    return drive


def writes(count: int, first: int = 0) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    found = np.zeros(count, REQUEST)
    found["time"] = first + np.arange(count) * 10
    found["op"], found["count"] = Op.WRITE, 2
    return found


def test_a_class_serves_the_requests_of_a_drive(tmp_path: Path) -> None:
    drive = made(tmp_path)
    assert drive.submit(7, Op.WRITE, 3, 2) == 207 and drive.now == 7
    assert drive.run(writes(3, 7)).tolist() == [207, 217, 227]
    flying = np.array([50, 60])
    asked = writes(3)
    assert drive.closed_loop(asked, flying).tolist() == [250, 260, 450]
    assert asked["time"].tolist() == [50, 60, 250]
    assert sorted(flying.tolist()) == [260, 450]
    with pytest.raises(RequestError, match="ends behind"):
        drive.submit(10**6, Op.READ, 0, 1000)
    drive.rest()
    assert drive.now == 0
    # What it lacks has a default.
    assert drive.counters == Counters(*[0] * len(Counters._fields))
    assert (drive.good, drive.worn, drive.filled(0)) == (20, False, 0)
    assert drive.wear.available_spare == 100 and drive.report.erases[0].superblocks == 20
    assert not drive.zone_streams


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('x')", r"Mine: .*mine\.py, line 12: ValueError: x$"),
        ("undefined", "line 12: NameError"),
        ("raise SystemExit", "SystemExit"),
        ("while True: pass", "line 12: it takes too long"),
        ("return None", "TypeError: 'NoneType' object cannot be interpreted as an integer"),
        ("return 0.5", "TypeError: 'float' object cannot be interpreted as an integer"),
        ("return time - 1", "submit returns 9, and the request came at 10"),
        ("return 1 << 80", "submit returns 1208925819614629174706176, and the request came at 10"),
        ("return 1 << 20000", "submit returns a number of 20001 bits, and the request came at 10"),
        ("return -2", "submit returns -2"),
        ("return 'soon'", "TypeError: 'str' object"),
        ("self.requests = self.requests.x", "AttributeError"),
        ("def again(): again()\n        again()", "RecursionError"),
    ],
)
def test_a_request_that_fails_leaves_the_next_ones(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extension_limits, "STEP_LIMIT", 0.05)
    fails = "if self.requests == 2:\n            "
    drive = made(tmp_path, fails + body.replace("\n", "\n    "))
    with pytest.raises(FtlError, match=said):
        drive.run(writes(3))
    drive = made(tmp_path, fails + body.replace("\n", "\n    "))
    errors: list[FtlError] = []
    drive.on_failure = errors.append
    assert drive.run(writes(3)).tolist() == [200, FAILED, 220]
    (error,) = errors
    assert re.search(said, str(error))


def test_a_request_may_be_refused_and_completions_may_be_of_numpy(tmp_path: Path) -> None:
    drive = made(tmp_path, "if first: return WORN")
    assert drive.submit(0, Op.WRITE, 1, 1) == WORN
    drive = made(tmp_path, "import numpy; return numpy.int32(time + 7)")
    found = drive.submit(0, Op.WRITE, 1, 1)
    assert found == 7 and type(found) is int


@pytest.mark.parametrize(
    "more",
    [
        "counters = wear = spread = report = zone_streams = 7",
        "counters = wear = spread = report = zone_streams = None; zones = True",
        "def filled(self, stream): raise ValueError",
        "def filled(self, stream): return -1",
        "filled = 'x'",
        "from potash_firmware.ftl.report import Wear; wear = Wear(256, 100, False, 0, 0)",
        "from potash_firmware.ftl.report import Wear; wear = Wear(1, 100, 3, 0, 0)",
        "from potash.timing import REQUEST; report = property(lambda self: 1 / 0)",
        "counters = property(lambda self: __import__('time').sleep(9))",
        "zones = True; zone_streams = (1 << 70, 0, 'x')",
    ],
)
def test_a_report_that_makes_no_sense_is_logged_once(
    more: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extension_limits, "STEP_LIMIT", 0.05)
    drive = made(tmp_path, more=more)
    for _ in range(2):
        assert drive.counters.host == 0 and drive.wear.percentage_used == 0
        assert drive.spread.total == 0 and drive.report.mapped == 0
        assert drive.filled(0) == 0 and not drive.zone_streams
    lines = [one.message for one in caplog.records]
    assert lines and len(lines) == len(set(lines))
    assert all("mine.py, line" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@ftl\ndef mine(): pass", "is not a class, and @ftl is for a class"),
        ("ftl(7)", "7 is not a class"),
        ("@ftl\nclass Mine: pass", "Mine has no method submit; derive it from potash.ftl"),
        ("@ftl\nclass Mine: submit = 3", "Mine has no method submit"),
        (
            "class page:\n    def submit(self): pass\nftl(page)",
            r"page \(.*mine.py, line 4\) and Potash's own have the name of an FTL 'page'",
        ),
        (
            "class A:\n    def submit(self): pass\nftl(A)\nftl(A)",
            r"A \(.*line 5\) and A \(.*line 4\) both have the name of an FTL 'A'",
        ),
    ],
)
def test_what_is_no_translation_layer_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ExtensionError, match=said):
        load([written(tmp_path, f"from potash.extend import ftl\n{text}\n")])


@pytest.mark.parametrize(
    ("init", "said"),
    [
        ("def __init__(self, profile): raise ValueError('small')", "line 13: ValueError: small"),
        ("def __init__(self): pass", "TypeError"),
        ("def __new__(cls, profile): import sys; sys.exit()", "SystemExit"),
        ("hints = 'no'", "hints is 'no'"),
        ("zones = 1", "zones is 1"),
        ("data = [1, 2]", "data is a list"),
        ("version = 1.5", "version is 1.5"),
        ("version = -1", "version is -1"),
    ],
)
def test_a_class_that_cannot_be_made_is_named(init: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(FtlError, match=f"Mine: .*mine.py.*{said}"):
        made(tmp_path, more=init)


def test_a_name_that_is_unknown_is_refused(tmp_path: Path) -> None:
    text = MINE.format(body="pass", more="pass")
    registered = load([written(tmp_path, text)]).ftls
    for name, policies, said in (
        ("Min", [], r"there is no FTL Min; did you mean Mine\?"),
        ("other", [], "there is no FTL other; there is page, Mine"),
        ("Mine", ["gc=fifo"], "policies are for the FTL page, and Mine decides itself"),
    ):
        with pytest.raises(FtlError, match=said):
            named.ftl(name, SMALL, policies, registered)


METHODS = sorted(
    name
    for name in dir(PageMapped)
    if not name.startswith("__") and callable(getattr(PageMapped, name))
)
NONSENSE: list[object] = [None, -1, 1 << 70, [float("nan")], ValueError("no")]


@pytest.mark.parametrize("name", METHODS)
def test_nonsense_of_any_method_stays_inside(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A method that answers anything, or raises, fails requests at worst, and the drive's reports
    remain."""
    monkeypatch.setattr(extension_limits, "STEP_LIMIT", 0.2)
    monkeypatch.setattr(extension_limits, "IMPORT_LIMIT", 0.2)
    for value in NONSENSE:

        def method(*_: object, value: object = value) -> object:
            if isinstance(value, Exception):
                raise value
            return value

        made = type("Mine", (PageMapped,), {name: method, "version": 1})
        try:
            drive = CustomFtl(RegisteredClass(made, "Mine", (__file__, 1)), SMALL)
        except FtlError:
            continue
        drive.on_failure = lambda error: None
        asked = writes(24)
        asked["op"][::7], asked["op"][5::9], asked["op"][-1] = Op.READ, Op.FLUSH, Op.FORMAT
        asked["first"], asked["count"] = np.arange(24) * 5 % 50, 10
        found = drive.run(asked)
        assert ((found == FAILED) | (found == WORN) | (found >= asked["time"])).all()
        for report in (drive.counters, drive.wear, drive.spread, drive.report, drive.filled(0)):
            assert "nan" not in repr(report)
        for kept in (drive.rest, drive.save):
            with contextlib.suppress(FtlError):
                kept()
