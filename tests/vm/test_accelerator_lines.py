"""Every line of nvme-cli that `docs/commands.md` shows, in a guest with the stock tool."""

from __future__ import annotations

import json
import re

import pytest

from csd_spec.descriptors import AcceleratorStatus, LogEntryType, LogPage
from csd_spec.opcodes import AdminOpcode, IoOpcode, Operation
from csd_spec.status import StatusId
from potash.vm.guest import Guest
from support.accelerator_flow import EXAMPLE, IDENTIFY, check_step, commands, input_bytes, steps

pytestmark = pytest.mark.usefixtures("accelerator_path")

PAGE = 4096
WORK = "/share/work"

EXPECTED = (EXAMPLE / "expected.bin").read_bytes()


@pytest.fixture(scope="module", autouse=True)
def work(linux: Guest) -> None:
    linux.copy_in(EXAMPLE, WORK)


def sh(guest: Guest, line: str) -> bytes:
    """What a line that must succeed says."""
    done = guest.capture(["sh", "-ec", f"cd {WORK}\n{line}"])
    assert done.code == 0, (line, done)
    return done.stdout


def content(guest: Guest, name: str) -> bytes:
    return sh(guest, f"cat {name}")


def dumped(said: bytes) -> bytes:
    """The bytes of nvme-cli's dump in hexadecimal."""
    lines = re.findall(rb"^[0-9a-f]{4}: ((?:[0-9a-f]{2} ){1,16})", said, re.MULTILINE)
    return bytes.fromhex(b"".join(lines).decode())


def status(guest: Guest) -> AcceleratorStatus:
    ask = "nvme admin-passthru /dev/nvme0 -O 0xc6 --cdw10=32 -l 128 -r -b"
    return AcceleratorStatus.decode(sh(guest, ask))


def put(guest: Guest, page: int, data: bytes) -> None:
    where = f"of=/dev/nvme0n1 bs={PAGE} seek={page} oflag=direct conv=fsync"
    done = guest.capture(["sh", "-c", f"dd {where} 2>/dev/null"], data.ljust(PAGE, b"\0"))
    assert done.code == 0, done


def get(guest: Guest, page: int) -> bytes:
    return sh(guest, f"dd if=/dev/nvme0n1 bs={PAGE} skip={page} count=1 iflag=direct 2>/dev/null")


def test_the_example_command_flow_step_by_step(linux: Guest) -> None:
    assert len(steps()) == 8
    for number, step in enumerate(steps(), start=1):
        sh(linux, step)
        check_step(number, lambda name: content(linux, name))


def test_three_programs_run_as_a_chain_and_with_round_trips(linux: Guest) -> None:
    for name in ("chain", "digits", "filter"):
        linux.copy_in(EXAMPLE.parent / name, f"/share/{name}")
    said = sh(linux, "python3 -s /share/chain/chain.py /dev/nvme0n1 --json")
    report = json.loads(said)
    link = report["link_bytes"]
    # Polls of the status are many on a busy machine, or when engines are compiled anew.
    assert report["equal"] and 2 * link["as_chain"] < link["with_round_trips"]


def test_every_command_is_shown_and_does_what_is_said(linux: Guest) -> None:
    """The lines in their order; each is looked at from another side."""
    program = (EXAMPLE / "program.o").read_bytes()
    put(linux, 0, input_bytes())
    for page in (8, 16, 24):
        put(linux, page, b"." * PAGE)
    sh(linux, "head -c 1000000 /dev/urandom > boot.bin")
    shown: set[tuple[int, int | None]] = set()
    for comment, line in commands():
        said = sh(linux, line)
        opcode = int(found[1], 16) if (found := re.search(r"--opcode=(0x\w+)", line)) else None
        cdw13 = int(found[1]) if (found := re.search(r"--cdw13=(\d)", line)) else None
        if opcode is not None:
            assert f"{opcode:X}h" in comment
            shown.add((opcode, cdw13 if opcode == IoOpcode.CONTROL else None))
        match opcode, cdw13:
            case AdminOpcode.IDENTIFY, _:
                assert dumped(said) == IDENTIFY
            case IoOpcode.CONTROL, Operation.RESET:
                assert status(linux).status == StatusId.IDLE
            case IoOpcode.READ_FIRMWARE, _:
                assert content(linux, "firmware.bin") == program[:1024].ljust(1024, b"\0")
            case IoOpcode.CONTROL, Operation.SELECT_FIRMWARE:
                assert status(linux).descriptors[0].firmware == 3
            case IoOpcode.CONTROL, (Operation.START | Operation.START_CHAIN):
                while status(linux).status == StatusId.RUNNING:
                    pass
            case AdminOpcode.GET_STATUS, _:
                ended = AcceleratorStatus.decode(dumped(said))
                assert (ended.status, ended.return_value) == (StatusId.DONE, 0)
                assert (ended.consumed, ended.produced) == (2 * PAGE, len(EXPECTED))
            case IoOpcode.CONTROL, Operation.STOP:
                assert status(linux).status == StatusId.DONE
            case None, _ if "get-log" in line:
                entries = LogPage.decode(dumped(said)).entries
                (started,) = [one for one in entries if one.text.startswith("firmware 3, ")]
                assert started.type == LogEntryType.JOB_STARTED
    assert content(linux, "half.bin") == EXPECTED
    assert get(linux, 16) == EXPECTED.ljust(PAGE, b"\0")
    assert get(linux, 24) == b"." * PAGE  # the output was shorter than its first range
    # That of another drive's memory takes another drive (test_devices).
    plain = set(IoOpcode) - {IoOpcode.CONTROL, IoOpcode.SEND_PEER_DATA}
    expected: set[tuple[int, int | None]] = {(opcode, None) for opcode in (*AdminOpcode, *plain)}
    expected |= {(IoOpcode.CONTROL, operation) for operation in Operation}
    assert shown == expected
