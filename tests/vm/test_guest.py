"""A real guest: commands, copies, a drive that is plugged in, and its end in every way."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import select
import threading
import time
from pathlib import Path

import pytest

from potash.sdk.errors import PotashError
from potash.sdk.progress import silent
from potash.vm import snapshot
from potash.vm.cache import Cache
from potash.vm.defaults import CPUS, MEMORY
from potash.vm.errors import GuestError, GuestTimeout
from potash.vm.guest import DRIVE, Guest
from potash.vm.images import GuestImages
from potash.vm.machine import Machine
from potash.vm.qemu import Shape

LIMIT = 60.0


def gone(pid: int) -> bool:
    """Whether a process ends within the limit."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with open(descriptor) as process:
        return bool(select.select([process], [], [], LIMIT)[0])


def test_a_command_s_streams_and_exit_code_come_out_apart(guest: Guest) -> None:
    done = guest.capture(["sh", "-c", "echo out; echo err >&2; exit 41"])
    assert (done.code, done.stdout, done.stderr) == (41, b"out\n", b"err\n")


def test_a_command_that_does_not_exist_and_one_that_is_killed(guest: Guest) -> None:
    assert guest.capture(["no-such-program"]).code == 127
    assert guest.capture(["sh", "-c", "kill -9 $$"]).code == 128 + 9


def test_much_input_and_output_pass_at_once(guest: Guest) -> None:
    data = os.urandom(1 << 20) * 4
    assert guest.capture(["sha256sum"], data).stdout.split()[0].decode() == (
        hashlib.sha256(data).hexdigest()
    )
    assert guest.capture(["cat"], data).stdout == data


def test_the_stock_programs_are_there(guest: Guest) -> None:
    assert b"nvme version" in guest.capture(["nvme", "version"]).stdout
    assert guest.capture(["fio", "--version"]).stdout.startswith(b"fio-")
    script = (
        "import click, rich.console, ctypes, fcntl, json, mmap, nvme_spec, potash.sdk; print(6)"
    )
    done = guest.capture(["python3", "-c", script])
    assert (done.stdout, done.stderr) == (b"6\n", b"")


def test_modules_come_with_bytecode_that_is_used(guest: Guest) -> None:
    script = "import importlib.util as u, json, click, potash.vm.frames as f\n"
    script += "for m in (json, click, f):\n"
    script += "    print(int.from_bytes(open(m.__cached__, 'rb').read(8)[4:], 'little'))\n"
    # PEP 552: 1 is hash-based, and the next bit, which asks for a check of the source, is clear.
    assert guest.capture(["python3", "-c", script]).stdout == b"1\n1\n1\n"


def test_a_resumed_guest_has_the_time_of_day(guest: Guest) -> None:
    for clock in (["date", "+%s"], ["cat", "/sys/class/rtc/rtc0/since_epoch"]):
        assert abs(int(guest.capture(clock).stdout) - time.time()) < LIMIT


def test_a_folder_goes_in_and_comes_out_as_it_was(guest: Guest, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "bytes").write_bytes(bytes(range(256)) * 1000)
    (source / "run").write_text("#!/bin/sh\necho ran\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("deep/bytes")
    guest.copy_in(source, "/share/tools")
    assert guest.capture(["/share/tools/run"]).stdout == b"ran\n"
    guest.copy_out("/share/tools", tmp_path / "back")
    assert (tmp_path / "back/deep/bytes").read_bytes() == bytes(range(256)) * 1000
    assert os.readlink(tmp_path / "back/link") == "deep/bytes"
    assert os.access(tmp_path / "back/run", os.X_OK)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "source"]


def test_a_file_comes_out_under_its_new_name_or_into_a_folder(guest: Guest, tmp_path: Path) -> None:
    guest.run(["sh", "-c", "echo text > /tmp/text"])
    guest.copy_out("/tmp/text", tmp_path / "new" / "name")
    assert (tmp_path / "new" / "name").read_text() == "text\n"
    guest.copy_out("/tmp/text", tmp_path / "new")
    assert (tmp_path / "new" / "text").read_text() == "text\n"


def test_a_copy_that_cannot_be_made_is_one_sentence(guest: Guest, tmp_path: Path) -> None:
    with pytest.raises(PotashError, match="cannot be copied into the guest"):
        guest.copy_in(tmp_path / "nothing", "/share/nothing")
    with pytest.raises(PotashError, match="the guest has no /nothing"):
        guest.copy_out("/nothing", tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


def test_a_drive_plugged_into_a_resumed_guest_has_what_it_held_back_at_the_end(
    images: GuestImages, blocks: Path
) -> None:
    with Guest(images) as guest:
        guest.plug_file(blocks, name="S123", bus="rp0")
        guest.await_drive()
        assert b"S123" in guest.capture(["nvme", "id-ctrl", "/dev/nvme0"]).stdout
        # A descriptor that stays open keeps the kernel from writing on close.
        script = f"import os, time; f = os.open('{DRIVE}', os.O_RDWR); os.write(f, b'held back')\n"
        script += "print('written', flush=True); time.sleep(60)"
        said = bytearray()
        guest.start(["python3", "-c", script], stdout=said.extend)
        while said != b"written\n":
            guest.channel.step(None)
    assert blocks.read_bytes()[:9] == b"held back"


def commands(guest: Guest) -> bytes:
    """The command lines of all that runs in a guest."""
    done = guest.capture(["sh", "-c", "cat /proc/[0-9]*/cmdline"])
    assert b"potash.vm.agent" in done.stdout
    return done.stdout


def test_a_guest_without_the_drive_says_what_its_kernel_said(guest: Guest) -> None:
    with pytest.raises(GuestError, match="has no /dev/nvme9n9 after 0.1 seconds") as caught:
        guest.await_drive("/dev/nvme9n9", 0.1)
    assert "Run /init" in caught.value.console
    assert b"nvme9n9" not in commands(guest)


def test_a_command_that_takes_too_long_is_killed(guest: Guest) -> None:
    with pytest.raises(GuestTimeout, match="did not end within 0.2 seconds"):
        guest.run(["sleep", "3141"], timeout=0.2)
    assert b"3141" not in commands(guest)


def test_a_panic_ends_the_guest_and_shows_its_console(images: GuestImages) -> None:
    with pytest.raises(GuestError, match="has ended") as caught, Guest(images) as guest:
        guest.run(["sh", "-c", "echo c > /proc/sysrq-trigger"], timeout=LIMIT)
    assert "Kernel Offset" in caught.value.console
    assert guest.machine.pid is not None and gone(guest.machine.pid)


def test_a_guest_that_hangs_is_ended_and_shows_its_console(images: GuestImages) -> None:
    with (
        pytest.raises(GuestTimeout, match="stopped answering") as caught,
        Guest(images, life_limit=2.0) as guest,
    ):
        guest.run(["sh", "-c", "echo it is late > /dev/console; kill -STOP $PPID; sleep 60"])
    assert "it is late" in caught.value.console
    assert guest.machine.pid is not None and gone(guest.machine.pid)


def test_a_machine_that_cannot_start_says_why(images: GuestImages) -> None:
    with (
        pytest.raises(GuestError, match="QEMU has ended") as caught,
        Machine(images.qemu, ["-M", "x"]),
    ):
        pass
    assert "unsupported machine type" in caught.value.console


def test_a_frozen_state_that_is_damaged_is_made_anew(
    images: GuestImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache of its own, as others use the states of the user's, from which the new one is
    taken: what boots a guest and freezes it has made that."""
    sound = snapshot.frozen(images, Shape(MEMORY, CPUS), silent)
    for known in images.cache.root.glob("kvm.json"):
        (tmp_path / known.name).write_bytes(known.read_bytes())
    state = tmp_path / "states" / "snapshots" / sound.state.name
    state.parent.mkdir(parents=True, mode=0o700)
    state.write_bytes(b"no migration stream")

    def freeze(*_arguments: object) -> snapshot.Frozen:
        assert not state.exists()
        state.symlink_to(sound.state)
        return sound

    monkeypatch.setattr(snapshot, "_freeze", freeze)
    with Guest(dataclasses.replace(images, cache=Cache(tmp_path))) as guest:
        assert guest.capture(["echo", "back"]).stdout == b"back\n"
    assert state.is_symlink()


def test_two_processors_and_more_memory(images: GuestImages) -> None:
    with Guest(images, memory=768, cpus=2) as guest:
        threads = guest.processor_threads()
        assert len(set(threads)) == 2
        for thread in threads:
            assert Path(f"/proc/{guest.machine.pid}/task/{thread}").exists()
        assert guest.capture(["nproc"]).stdout == b"2\n"
        total = guest.capture(["sh", "-c", "grep MemTotal /proc/meminfo"]).stdout.split()[1]
        assert 640 << 10 < int(total) < 768 << 10


def test_guests_of_one_image_run_side_by_side_with_randomness_of_their_own(
    images: GuestImages,
) -> None:
    answers: set[bytes] = set()

    def one() -> None:
        with Guest(images) as guest:
            answers.add(guest.capture(["head", "-c", "16", "/dev/urandom"]).stdout)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert [len(one) for one in answers] == [16, 16]
