"""The light commands in a guest: every accelerator command, and files where they are on the drive.

What a program makes of a file is compared with plain Python, on files that lie in many pieces. Of a
drive with two controllers, Linux is made to use one, as docs/controllers.md says.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from potash.vm.guest import Captured, Guest
from support.apu import program
from support.bpf import ADD as PLUS
from support.bpf import ALU64, JA, JGE, JMP, MOV, STX, XOR, B, K, X, call, exit_, insn, load
from support.docs import blocks
from support.vm import each

pytestmark = pytest.mark.usefixtures("accelerator_path")

ADD = Path(__file__).parents[2] / "examples" / "add"
PAGE = 4096
DISK = "/dev/nvme0n1"
MOUNT = "/mnt/disk"
KEY = 0x5A
SET_OUTPUT_LENGTH = 4
LIMIT = 120.0

ARGUMENT = 20
"""Where the first argument's value is in a program's context: behind its header and its length."""

XORED = program(
    load(6, 5, ARGUMENT, size=0x00),  # r6 = the input's length
    insn(ALU64 | MOV | K, 7, imm=0),
    insn(JMP | JGE | X, 7, 6, offset=9),
    insn(ALU64 | MOV | X, 8, 1),
    insn(ALU64 | PLUS | X, 8, 7),
    load(9, 8, size=B),
    insn(ALU64 | XOR | K, 9, imm=KEY),
    insn(ALU64 | MOV | X, 8, 2),
    insn(ALU64 | PLUS | X, 8, 7),
    insn(STX | 0x60 | B, 8, 9),
    insn(ALU64 | PLUS | K, 7, imm=1),
    insn(JMP | JA, offset=-10),
    insn(ALU64 | MOV | X, 1, 6),
    call(SET_OUTPUT_LENGTH),
    insn(ALU64 | MOV | K, 0, imm=7),
    exit_,
)
"""Gives back as many bytes as its argument says, each changed, and returns 7."""

FOREVER = program(insn(JMP | JA, offset=-1), exit_)

FRAGMENTS = """
import ctypes, os, sys
PUNCH, KEEP_SIZE = 2, 1
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
filler = os.open(sys.argv[1] + "/filler", os.O_RDWR | os.O_CREAT)
free = os.statvfs(sys.argv[1])
blocks = free.f_bavail - 8
os.posix_fallocate(filler, 0, blocks * 4096)
for block in range(1, blocks, int(sys.argv[2])):
    assert libc.fallocate(filler, PUNCH | KEEP_SIZE, block * 4096, 4096) == 0
os.fsync(filler)
"""
"""Leaves free blocks on a file system only here and there."""


@pytest.fixture(scope="module", autouse=True)
def programs(linux: Guest) -> None:
    put(linux, "/tmp/xor.o", XORED)
    put(linux, "/tmp/forever.o", FOREVER)


@pytest.fixture
def mounted(linux: Guest) -> Iterator[Guest]:
    """With a fresh file system of 16 MiB on the drive."""
    sh(linux, f"mkfs.ext4 -q -b 4096 {DISK} 4096 && mkdir -p {MOUNT} && mount {DISK} {MOUNT}")
    yield linux
    sh(linux, f"umount {MOUNT}")


def put(guest: Guest, path: str, data: bytes) -> None:
    done = guest.capture(["sh", "-c", f"cat > {path}"], data)
    assert done.code == 0, done


def get(guest: Guest, path: str) -> bytes:
    done = guest.capture(["cat", path])
    assert done.code == 0, done
    return done.stdout


def sh(guest: Guest, script: str) -> str:
    done = guest.capture(["sh", "-c", script], timeout=LIMIT)
    assert done.code == 0, done
    return done.stdout.decode()


def said(done: Captured) -> str:
    assert (done.code, done.stderr) == (0, b""), done
    return done.stdout.decode()


def report(done: Captured) -> Any:
    return json.loads(said(done))


def refused(done: Captured) -> str:
    """The one sentence that a command says which cannot be carried out."""
    assert (done.code, done.stdout) == (1, b""), done
    (line,) = done.stderr.decode().splitlines()
    return line.removeprefix("potash: ")


def changed(data: bytes) -> bytes:
    return bytes(byte ^ KEY for byte in data)


def test_each_command_by_itself(linux: Guest) -> None:
    """As a script would send them: every process is another host, the drive remembers."""
    put(linux, "/tmp/in", b"half")
    acc, fw = ("potash", "acc"), ("potash", "fw")
    answers = each(
        linux,
        (*acc, "identify", DISK, "--json"),
        (*acc, "start", DISK),
        (*acc, "enable", DISK),
        (*acc, "reset", DISK),
        (*acc, "status", DISK, "--json"),
        (*fw, "send", DISK, "/tmp/xor.o", "--firmware", "5", "--json"),
        (*fw, "read", DISK, "/tmp/back.o", "--firmware", "5"),
        (*acc, "write", DISK, "/tmp/in", "--json"),
        (*acc, "write", DISK, "/tmp/in", "--offset", "4"),
        (*acc, "select", DISK, "5"),
        (*acc, "start", DISK, "--arg", "8", "--wait", "--json"),
        (*acc, "read", DISK, "/tmp/out"),
        (*acc, "read", DISK, "-", "--offset=4", "--data-len=4"),
        (*acc, "log", DISK, "--rae", "--json"),
        (*acc, "log", DISK),
    )
    identified, early, enabled, reset, idle, sent, back, written, more, selected = answers[:10]
    ended, out, piece, held, log = answers[10:]
    (one,) = report(identified)["accelerators"]
    assert one == {"id": 0, "firmware": True, "input_size": 64 << 20, "output_size": 64 << 20}
    assert "subsystem is disabled" in refused(early)
    assert report(idle)["status"] == "idle"
    assert report(sent) == {"accelerator": 0, "firmware": 5, "sent": len(XORED)}
    assert report(written)["written"] == 4
    for done in (enabled, reset, back, more, selected, out):
        said(done)
    assert get(linux, "/tmp/back.o") == XORED
    job = report(ended)
    assert (job["status"], job["firmware"], job["return_value"]) == ("done", 5, 7)
    assert (job["consumed"], job["produced"]) == (8, 8)
    assert get(linux, "/tmp/out") == changed(b"halfhalf")
    assert (piece.stdout, piece.stderr) == (changed(b"half"), b"4 bytes\n")
    entries = report(held)["entries"]
    assert [entry["name"] for entry in entries[-2:]] == ["job started", "job finished"]
    assert "job finished: returned 7" in said(log)


def test_pages_of_the_drive_and_a_job_that_is_stopped(linux: Guest) -> None:
    data = os.urandom(3 * PAGE)
    put(linux, "/tmp/in", data)
    sh(linux, f"dd if=/tmp/in of={DISK} bs=4096 seek=10 conv=fsync 2>/dev/null")
    script = f"""
enable
reset
input 12:1 10:1
input 11:1 --append --namespace-id=1
output 33:1 30:2
grant 40:1 --writable   # which this program does not use
fw send /tmp/xor.o
fw send /tmp/forever.o --firmware 1
start --firmware 0 --arg {3 * PAGE}
wait --timeout 60 --json
"""
    done = linux.capture(["potash", "acc", "shell", DISK], script.encode())
    assert (done.code, done.stderr) == (0, b""), done
    assert json.loads(done.stdout.splitlines()[-1])["produced"] == 3 * PAGE
    found = linux.capture(["dd", f"if={DISK}", "bs=4096", "skip=30", "count=4"]).stdout
    assert found[: 2 * PAGE] == changed(data[: 2 * PAGE])
    assert found[3 * PAGE :] == changed(data[2 * PAGE :])
    acc = ("potash", "acc")
    started, running, twice, waited, stopped, after, disabled = each(
        linux,
        (*acc, "start", DISK, "--firmware", "1"),
        (*acc, "status", DISK, "--json"),
        (*acc, "start", DISK),
        (*acc, "wait", DISK, "--timeout", "0.2"),
        (*acc, "stop", DISK),
        (*acc, "status", DISK, "--json"),
        (*acc, "disable", DISK),
    )
    assert report(running)["status"] == "running"
    assert "Command Sequence Error" in refused(twice)
    assert "still runs after 0.2 s" in refused(waited)
    assert report(after)["status"] == "stopped"
    for done in (started, stopped, disabled):
        said(done)


def run_file(guest: Guest, folder: str, data: bytes, *, pieces: int = 1) -> None:
    """A file through the drive, in place, whose input and output each have at least `pieces`."""
    put(guest, f"{folder}/input", data)
    files = [f"{folder}/input", f"{folder}/output"]
    run = ("potash", "run", DISK, "/tmp/xor.o", *files, "--arg", "length", "-v", "--json")
    (done,) = each(guest, run)
    assert done.code == 0, done
    told = json.loads(done.stdout)
    assert (told["in_place"], told["produced"]) == ({"input": True, "output": True}, len(data))
    steps = done.stderr.decode()
    assert steps.count("as input:") >= pieces and steps.count("as output:") >= pieces, steps
    assert "of input\n" not in steps and "read" not in steps, steps
    assert get(guest, files[1]) == changed(data)
    assert get(guest, files[0]) == data


def test_a_file_in_many_pieces_is_read_and_written_where_it_is(mounted: Guest) -> None:
    sh(mounted, f"python3 -c '{FRAGMENTS}' {MOUNT} 2")
    run_file(mounted, MOUNT, os.urandom(11 * PAGE + 5), pieces=10)
    put(mounted, f"{MOUNT}/many", bytes(70 * PAGE))
    (many,) = each(mounted, ("potash", "run", DISK, "/tmp/xor.o", f"{MOUNT}/many", "/tmp/out"))
    assert "there can be 64 ranges, not 65" in refused(many)
    sh(mounted, f"rm {MOUNT}/many")
    # What the kernel kept in memory is not what the comparison saw.
    sh(mounted, f"umount {MOUNT} && mount {DISK} {MOUNT} && rm {MOUNT}/filler")
    assert get(mounted, f"{MOUNT}/output") == changed(get(mounted, f"{MOUNT}/input"))
    assert sh(mounted, f"ls -A {MOUNT}").split() == ["input", "lost+found", "output"]
    sh(mounted, f"umount {MOUNT} && fsck.ext4 -fn {DISK} && mount {DISK} {MOUNT}")


def test_a_file_on_a_partition_is_found_and_neighbours_stay(linux: Guest) -> None:
    table = "n\\np\\n1\\n\\n+16M\\nn\\np\\n2\\n\\n\\nw\\n"
    sh(
        linux,
        f"dd if=/dev/zero of={DISK} bs=1M count=1 2>/dev/null && printf '{table}' | fdisk {DISK}",
    )
    second = f"{DISK}p2"
    linux.await_drive(second)
    sh(linux, f"mkfs.ext4 -q {second} && mkdir -p {MOUNT} && mount {second} {MOUNT}")
    before = sh(linux, f"md5sum < {DISK}p1")
    run_file(linux, MOUNT, os.urandom(40_000))
    assert sh(linux, f"md5sum < {DISK}p1") == before
    sh(linux, f"umount {MOUNT} && fsck.ext4 -fn {second}")
    sh(linux, f"dd if=/dev/zero of={DISK} bs=1M count=1 conv=fsync 2>/dev/null")
    sh(linux, f"python3 -c 'import fcntl, os; fcntl.ioctl(os.open(\"{DISK}\", 0), 0x125F)'")


def test_an_output_takes_the_old_ones_place_and_what_is_elsewhere_is_copied(mounted: Guest) -> None:
    data = os.urandom(PAGE + 1)
    put(mounted, f"{MOUNT}/input", data)
    put(mounted, f"{MOUNT}/output", b"what was there before " * 1000)
    sh(
        mounted,
        f"chmod 640 {MOUNT}/output && ln -s output {MOUNT}/link && cp {MOUNT}/input /tmp/in",
    )
    there, away = f"{MOUNT}/link", "/tmp/out"
    cases: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        (f"{MOUNT}/input", there, ()),
        ("/tmp/in", there, ("--output-size", "64K")),
        (f"{MOUNT}/input", away, ()),
        (f"{MOUNT}/input", there, ("--copy",)),
    )
    commands: list[Sequence[str]] = []
    for source, target, options in cases:
        run = ("potash", "run", DISK, "/tmp/xor.o", source, target, "--arg", "length", "--json")
        commands += [(*run, *options), ("cat", target), ("rm", "-f", away)]
    answers = each(mounted, *commands)
    for number, (source, target, options) in enumerate(cases):
        assert report(answers[3 * number])["in_place"] == {
            "input": source != "/tmp/in" and "--copy" not in options,
            "output": target == there and "--copy" not in options,
        }
        assert answers[3 * number + 1].stdout == changed(data)
    assert sh(mounted, f"stat -c %a {MOUNT}/output && ls -A {MOUNT}").split() == [
        "640", "input", "link", "lost+found", "output",
    ]  # fmt: skip


def test_files_that_no_program_can_use_in_place_are_refused(mounted: Guest) -> None:
    sh(mounted, f"fallocate -l 8192 {MOUNT}/reserved && truncate -s 64K {MOUNT}/holes")
    put(mounted, f"{MOUNT}/holed", b"x" * PAGE)
    sh(mounted, f"truncate -s 64K {MOUNT}/holed && touch {MOUNT}/empty && mkdir {MOUNT}/folder")
    put(mounted, f"{MOUNT}/good", b"good")
    run = ["potash", "run", DISK, "/tmp/xor.o"]
    good = f"{MOUNT}/good"
    wrong = {
        "were never written": (f"{MOUNT}/reserved", f"{MOUNT}/output"),
        "has a hole at byte 0": (f"{MOUNT}/holes", f"{MOUNT}/output"),
        "has a hole at byte 4096": (f"{MOUNT}/holed", f"{MOUNT}/output"),
        "the input is empty": (f"{MOUNT}/empty", f"{MOUNT}/output"),
        "No space left": (good, f"{MOUNT}/out", "--output-size", "60M"),
        f"file system at {MOUNT}": (good, "/tmp/out", "--lba", "0"),
    }
    answers = each(mounted, *((*run, *words) for words in wrong.values()))
    for reason, answer in zip(wrong, answers, strict=True):
        assert reason in refused(answer)
    assert sh(mounted, f"ls -A {MOUNT}").split() == [
        "empty", "folder", "good", "holed", "holes", "lost+found", "reserved",
    ]  # fmt: skip
    sh(mounted, f"umount {MOUNT} && mount -o data=journal {DISK} {MOUNT}")
    in_place = (*run, good, "/tmp/out")
    journal, copied = each(mounted, in_place, (*in_place, "--copy", "--arg", "length", "--json"))
    assert "journal" in refused(journal)
    assert (report(copied)["produced"], get(mounted, "/tmp/out")) == (4, changed(b"good"))


def test_an_interrupt_stops_the_job_and_leaves_nothing_behind(mounted: Guest) -> None:
    put(mounted, f"{MOUNT}/input", b"input")
    put(mounted, f"{MOUNT}/output", b"output")
    heard = bytearray()
    command = mounted.start(
        [
            "/usr/bin/potash",
            "run",
            DISK,
            "/tmp/forever.o",
            f"{MOUNT}/input",
            f"{MOUNT}/output",
            "-v",
        ],
        stderr=heard.extend,
    )
    while b"\nstart\n" not in heard and command.code is None:
        mounted.channel.step(None)
    status = ("potash", "acc", "status", DISK, "--json")
    running, busy = each(
        mounted, status, ("potash", "run", DISK, "/tmp/xor.o", f"{MOUNT}/input", "/tmp/out")
    )
    assert report(running)["status"] == "running"
    assert "busy with another job" in refused(busy)
    command.signal(signal.SIGTERM)
    assert command.wait(LIMIT) == 143
    # Nobody who starts a job now writes to the blocks that the output was to have.
    idle, gone = each(mounted, status, ("potash", "acc", "start", DISK, "--firmware", "0"))
    assert report(idle)["status"] == "idle"
    assert "no firmware 0" in refused(gone)
    assert sh(mounted, f"ls -A {MOUNT}").split() == ["input", "lost+found", "output"]
    assert get(mounted, f"{MOUNT}/output") == b"output"


def test_what_is_asked_wrongly_is_said_in_one_sentence(linux: Guest) -> None:
    put(linux, "/tmp/in", b"in")
    put(linux, "/tmp/program.c", b"int prog(void) { return 0; }")
    wrong = {
        "not an NVMe device": ("acc", "status", "/dev/null"),
        "/tmp/in is not a device": ("acc", "status", "/tmp/in"),
        "No such file": ("acc", "status", "/dev/nvme9"),
        "Is a directory": ("run", "/tmp", "/tmp/xor.o", "/tmp/in", "/tmp/out"),
        "no compiler here": ("run", DISK, "/tmp/program.c", "/tmp/in", "/tmp/out"),
    }
    answers = each(linux, *(("potash", *words) for words in wrong.values()))
    for reason, answer in zip(wrong, answers, strict=True):
        assert reason in refused(answer)
    command = f"/usr/bin/potash acc status {DISK}"
    done = linux.capture(["su", "-s", "/bin/sh", "nobody", "-c", command])
    assert (done.code, done.stderr.count(b"\n")) == (1, 1), done
    assert b"Permission denied; run this as root" in done.stderr


def test_the_documents_example_of_a_file_on_the_drive(linux: Guest) -> None:
    linux.copy_in(ADD, "/tmp/add")
    (script,) = [block for block in blocks("commands.md", "sh") if "mkfs.ext4" in block]
    done = linux.capture(["sh", "-ec", f"cd /tmp/add\n{script}"], timeout=LIMIT)
    assert done.code == 0, done
    assert get(linux, f"{MOUNT}/output.bin") == (ADD / "expected.bin").read_bytes()
    sh(linux, f"umount {MOUNT}")
