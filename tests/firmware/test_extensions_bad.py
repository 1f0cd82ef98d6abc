"""Bad extensions: each is refused with a sentence, or fails its command; the drive goes on."""

import logging
from pathlib import Path

import pytest

from nvme_spec.status import Status
from potash_firmware import extension_limits
from potash_firmware.extension_limits import ExtensionError
from support.extended import extended, settings
from support.nvme_host import Host

READ = 0x02
COMMAND = '@admin_command(0xC4, name="Bad", data="none")\ndef bad(drive, command):\n    '
TWO = COMMAND + "pass\n"


def log_page(size: object = 8, lid: object = 0xC5) -> str:
    return f'@log_page({lid}, name="Bad", size={size})\ndef bad(drive):\n    pass\n'


REFUSED = {
    "no Python": "def (:",
    "a bracket is open": "x = [1,",
    "a zero byte": "x = '\0'",
    "a module that is not there": "import no_such_module",
    "it raises": "1 / 0",
    "it exits": "raise SystemExit(3)",
    "it is interrupted": "raise KeyboardInterrupt",
    "it does not end": "while True: pass",
    "it does not end and catches": "while True:\n    try: x = 1\n    except Exception: pass",
    "its error has no text": "class E(Exception):\n    def __str__(self): 1 / 0\nraise E",
    "an opcode of nine bits": TWO.replace("0xC4", "0x1C4"),
    "an opcode that is text": TWO.replace("0xC4", "'C4'"),
    "an opcode that says the host sends": TWO.replace("0xC4", "0xC5"),
    "an opcode that says the host receives": TWO.replace("0xC4", "0xC6"),
    "data that the opcode does not have": TWO.replace("none", "read"),
    "data in both directions": TWO.replace("none", "both"),
    "no data named": TWO.replace(', data="none"', ""),
    "no name": TWO.replace('"Bad"', '""'),
    "a name that is no text": TWO.replace('"Bad"', "7"),
    "a size that is no number": TWO.replace('"none"', '"none", size="1K"'),
    "a size below 0": TWO.replace('"none"', '"none", size=-4'),
    "no function": 'admin_command(0xC4, name="Bad", data="none")(7)',
    "a class": '@admin_command(0xC4, name="Bad", data="none")\nclass Bad: pass',
    "async": COMMAND.replace("def", "async def") + "pass",
    "one Admin opcode twice": TWO * 2,
    "one I/O opcode twice": TWO.replace("admin_command(0xC4", "io_command(0xA0") * 2,
    "an Admin command of Potash": TWO.replace("0xC4", "0xC0"),
    "an I/O command of Potash": TWO.replace("admin_command(0xC4", "io_command(0x88"),
    "no command set": TWO.replace("admin_command(0xC4", "io_command(0xA0, command_sets=[99]"),
    "a command set of no drive": TWO.replace(
        "admin_command(0xC4", "io_command(0xA0, command_sets=[9]"
    ),
    "one log page twice": log_page() * 2,
    "a log page of Potash": log_page(lid=2),
    "a log page beyond 8 bits": log_page(lid=500),
    "a log page of nothing": log_page(0),
    "a log page of half a dword": log_page(6),
    "a log page of a size that is text": log_page("'8'"),
    "a feature of Potash": '@feature(0x04, name="Bad")\ndef bad(drive, value): pass',
    "a default that does not fit": '@feature(0xC4, name="B", default=1 << 40)\ndef b(d, v): pass',
    "a feature of too much": '@feature(0xC4, name="B", size=1 << 20)\ndef b(d, v): pass',
    "a function after no opcode": "@completed(-1)\ndef bad(*_): pass",
    "one state twice": 'state("x", default=dict)\nstate("x", default=dict)',
    "a state without a function": 'state("x", default={})',
    "a state whose default fails": 'state("x", default=lambda: 1 / 0)',
    "a helper of Potash": "@helper(40)\ndef print(*_): pass",
    "a helper's number of Potash": "@helper(7)\ndef bad(*_): pass",
    "one helper's number twice": "@helper(40)\ndef a(*_): pass\n@helper(40)\ndef b(*_): pass",
    "no operator": '@operator("NOTHING")\ndef bad(*_): pass',
    "an operator of Potash": '@operator("ADD")\ndef bad(*_): pass',
    "one program twice": '@device_program(name="x")\ndef bad(*_): pass\n' * 2,
}


def page(body: str) -> str:
    return f'@log_page(0xC5, name="Bad", size=8)\ndef bad(drive):\n    {body}'


def value(body: str) -> str:
    return f'@feature(0xC4, name="Bad")\ndef bad(drive, value):\n    {body}'


def sized(size: str) -> str:
    return f'@admin_command(0xCA, name="Bad", data="read", size={size})\ndef b(*_): return b""'


def read(body: str) -> str:
    return f'@admin_command(0xCA, name="Bad", data="read", size=8)\ndef bad(*_):\n    {body}'


def after(body: str) -> str:
    return f"@completed(2)\ndef bad(drive, command, microseconds):\n    {body}"


REFUSED |= {
    "a page that waits": page("yield drive.sleep(1)"),
    "a feature that waits": value("yield drive.sleep(1)"),
    "a function after reads that waits": after("yield drive.sleep(1)"),
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(extension_limits, "IMPORT_LIMIT", 0.05)
    with pytest.raises(ExtensionError) as refused, extended(tmp_path, text):
        pass
    said = str(refused.value)
    assert "mine.py" in said and "\n" not in said and len(said) < 500


ENDLESS = "while True:\n        try: x = 1\n        except Exception: pass"

FAILING = {
    "it raises": COMMAND + "1 / 0",
    "it exits": COMMAND + "raise SystemExit",
    "it is interrupted": COMMAND + "raise KeyboardInterrupt",
    "it stops an iteration": COMMAND + "raise StopIteration",
    "it raises something of its own": "class B(BaseException): pass\n" + COMMAND + "raise B",
    "its error has no text": "class E(Exception):\n    def __str__(self): 1 / 0\n"
    + COMMAND
    + "raise E",
    "its error has lines": COMMAND + 'raise ValueError("a\\nb")',
    "it takes other arguments": COMMAND.replace("drive, command", "drive") + "pass",
    "it recurs": COMMAND + "bad(drive, command)",
    "it wants memory": COMMAND + "[0] * (1 << 50)",
    "it does not end": COMMAND + "while True: pass",
    "it does not end and catches": COMMAND + ENDLESS,
    "it sleeps": COMMAND + "import time; time.sleep(100)",
    "it returns text": COMMAND + "return 'text'",
    "it returns too much": COMMAND + "return 1 << 64",
    "it returns a number that has no text": COMMAND + "return 1 << 20000",
    "it returns less than nothing": COMMAND + "return -1",
    "it returns a fraction": COMMAND + "return 0.5",
    "its status is text": COMMAND + "raise NvmeError('text')",
    "its status is success": COMMAND + "raise NvmeError(0)",
    "its status has no room": COMMAND + "raise NvmeError(1 << 20)",
    "it waits for a number": COMMAND + "yield 7",
    "it waits for nothing": COMMAND + "yield",
    "it raises after it has waited": COMMAND + "yield drive.sleep(1); 1 / 0",
    "it does not end after it has waited": COMMAND + f"yield drive.sleep(1)\n    {ENDLESS}",
    "it reads a namespace that is text": COMMAND + "yield drive.read('1', 0)",
    "it writes text": COMMAND + "yield drive.write(1, 0, 'text')",
    "it writes a number": COMMAND + "yield drive.write(1, 0, 1 << 50)",
    "it sleeps for ever": COMMAND + "yield drive.sleep(float('inf'))",
    "it sleeps for no number": COMMAND + "yield drive.sleep(float('nan'))",
    "an event that does not exist": COMMAND + "drive.notify(0x1C5)",
    "it logs what has no text": "class E:\n    def __str__(self): 1 / 0\n"
    + COMMAND
    + "drive.log(E())",
    "data of text": read("return 'text'"),
    "no data": read("return None"),
    "too much data": read("return bytes(9)"),
    "data that was released": read("m = memoryview(b'1'); m.release(); return m"),
    "a size that fails": sized("lambda command: 1 / 0"),
    "a size of text": sized("lambda command: '8'"),
    "a size below 0": sized("lambda command: -8"),
    "a page that fails": page("1 / 0"),
    "a page of text": page("return 'text'"),
    "a page that is too long": page("return bytes(9)"),
    "a feature that returns": value("return True"),
    "a page that does not end": page("while True: pass"),
    "a feature that fails": value("1 / 0"),
    "a feature that does not end": value("while True: pass"),
    "a function after reads that fails": after("1 / 0"),
    "a function after reads that does not end": after("while True: pass"),
}
AFTER = {"a function after reads that fails", "a function after reads that does not end"}


def statuses(host: Host) -> list[int]:
    """The statuses of one of each: a Read, a log page, Set Features, and the commands."""
    queue = host.io.get(1) or host.create_io_queue()
    host.command(host.admin, 0x0A, cdws=(0x0B,))
    return [
        host.command(queue, READ, nsid=1).status,
        host.command(host.admin, 0x02, cdws=(0xC5 | 1 << 16,)).status,
        host.command(host.admin, 0x09, cdws=(0xC4, 1)).status,
        host.command(host.admin, 0xC4).status,
        host.command(host.admin, 0xCA, cdws=(2,)).status,
    ]


NOT_THERE = [0, 0x109, Status.INVALID_FIELD, Status.INVALID_OPCODE, Status.INVALID_OPCODE]


@pytest.mark.parametrize("name", FAILING)
def test_its_command_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setattr(extension_limits, "STEP_LIMIT", 0.05)
    with Host(settings=settings(tmp_path, FAILING[name])) as host:
        host.enable()
        found = statuses(host)
        failed = [] if name in AFTER else [Status.INTERNAL_ERROR]
        assert [one for one, none in zip(found, NOT_THERE, strict=True) if one != none] == failed
        (record,) = [one for one in caplog.records if one.levelno >= logging.ERROR]
        assert "mine.py, line " in record.getMessage() and "\n" not in record.getMessage()
        assert record.exc_info is None
        assert statuses(host) == found and host.ready and not host.fatal
