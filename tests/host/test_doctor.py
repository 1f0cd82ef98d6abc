"""What the doctor says of machines that lack something, and of this one."""

import grp
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from potash import doctor
from potash.cli.app import run_app
from potash.doctor import Finding, Grade
from potash.sdk.progress import silent
from potash.vm import images, packages, qemu, snapshot
from potash.vm.drive import device_process
from potash.vm.errors import GuestError
from potash.vm.qemu import Accelerator, Qemu
from pyvfio_user import Client
from pyvfio_user.protocol import PciRegion
from pyvfio_user.sealed_memory import SealedMemory

AVX2_FLAGS = "fpu sse sse2 avx avx2"
AVX512_FLAGS = f"{AVX2_FLAGS} avx512f avx512vl avx512bw"


def run_doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "potash.cli.main", "doctor", "--no-boot", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("flags", "state", "said"),
    [
        (f"{AVX512_FLAGS} avx512_vnni avx_vnni", Grade.GOOD, "AVX-512 VNNI for"),
        (f"{AVX2_FLAGS} avx_vnni", Grade.GOOD, "AVX-VNNI for"),
        (AVX512_FLAGS, Grade.LIMITED, "AVX-512 for"),
        (AVX2_FLAGS, Grade.LIMITED, "AVX2 for"),
        ("fpu sse sse2", Grade.LIMITED, "no AVX2"),
    ],
)
def test_the_processor_is_judged_by_what_multiplies(
    tmp_path: Path, flags: str, state: Grade, said: str
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    found = doctor.cpu(cpuinfo)
    assert found.state is state
    assert said in found.meaning


@pytest.mark.parametrize(
    ("kib", "state"), [(1 << 19, Grade.MISSING), (3 << 19, Grade.LIMITED), (1 << 22, Grade.GOOD)]
)
def test_memory_is_what_is_available(tmp_path: Path, kib: int, state: Grade) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {kib} kB\n")
    assert doctor.memory(tmp_path, tmp_path / "no-groups").state is state


@pytest.mark.parametrize(("limit", "state"), [("max", Grade.GOOD), ("1500000000", Grade.MISSING)])
def test_a_containers_limit_counts(tmp_path: Path, limit: str, state: Grade) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 99999999 kB\n")
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("700000000\n")
    assert doctor.memory(tmp_path, tmp_path).state is state


def test_a_full_disk_is_said_with_the_variable_that_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("", (), {"free": 1 << 20}))
    cache, temporary = doctor.disk(tmp_path / "none" / "yet", tmp_path)
    assert (cache.state, temporary.state) == (Grade.MISSING, Grade.MISSING)
    assert "1 GiB are wanted" in cache.meaning
    assert "XDG_CACHE_HOME" in cache.remedy
    assert "TMPDIR" in temporary.remedy


def test_what_the_kernel_lacks_for_confinement_is_a_limit_and_no_more() -> None:
    assert doctor.confinement(lambda: ()).state is Grade.GOOD
    lacking = doctor.confinement(lambda: ("seccomp is missing: a", "Landlock is missing: b"))
    assert lacking.state is Grade.LIMITED
    assert lacking.meaning == "seccomp is missing: a; Landlock is missing: b"


def test_sockets_want_a_place_that_is_short_and_ones_own(tmp_path: Path) -> None:
    assert doctor.socket_folder(Path("/tmp")).state is Grade.GOOD
    long = tmp_path / ("x" * 100)
    assert "too long" in doctor.socket_folder(long).meaning
    assert "no folder can be made" in doctor.socket_folder(Path("/nowhere")).meaning
    open_to_all = tmp_path / "o"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert doctor.socket_folder(open_to_all).state is Grade.MISSING
    open_to_all.chmod(0o1777)
    assert doctor.socket_folder(open_to_all).state is Grade.GOOD
    somebody_elses = doctor.socket_folder(open_to_all, user=os.geteuid() + 1)
    assert somebody_elses.state is (Grade.GOOD if os.geteuid() == 0 else Grade.MISSING)


def test_a_package_that_breaks_is_named_with_its_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_thing.py").write_text("raise ImportError('libfoo.so: cannot open')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    broken, absent, whole = doctor.packages(
        [
            ("Broken", "broken_thing", "broken-thing"),
            ("Absent", "no_such_thing_at_all", "no-such-thing"),
            ("click", "click", "click"),
        ]
    )
    assert (broken.state, absent.state, whole.state) == (Grade.MISSING, Grade.MISSING, Grade.GOOD)
    assert "libfoo.so: cannot open" in broken.meaning
    assert broken.remedy.endswith("pip install --force-reinstall broken-thing")
    assert whole.meaning.startswith("click 8.")


def test_without_pyarrow_no_tables_are_queried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor.queries().state is Grade.GOOD
    (tmp_path / "pyarrow.py").write_text("raise ImportError('libarrow.so: cannot open')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = doctor.queries()
    assert (found.state, "libarrow.so" in found.meaning) == (Grade.LIMITED, True)
    assert found.remedy.endswith("pip install 'potash[columns]'")


def test_without_clang_and_ziglang_nothing_can_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.get_exec_path", list)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    found = doctor.compiler()
    assert found.state is Grade.LIMITED
    assert found.remedy.endswith("pip install 'potash[ziglang]'")


def test_a_qemu_that_is_not_there_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qemu, "installed", lambda: None)
    monkeypatch.setattr("shutil.which", lambda name: None if "qemu" in name else f"/bin/{name}")
    found = doctor.qemu("http://debian.example/debian", tmp_path)
    assert found.state is Grade.GOOD
    assert found.meaning.startswith("no QEMU on PATH, so it is downloaded from the Debian archive")
    assert found.remedy == "potash guest -- true"
    assert doctor.guest("http://debian.example/debian", tmp_path).state is Grade.GOOD


def test_what_would_bring_it_may_be_missing_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qemu, "installed", lambda: None)
    monkeypatch.setattr("shutil.which", lambda name: "/bin/tar" if name == "tar" else None)
    found = doctor.guest("http://debian.example/debian", tmp_path)
    assert found.state is Grade.MISSING
    assert "apt-get, apt-config, dpkg-deb are not there" in found.meaning


def test_an_installed_qemu_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: "/usr/bin/qemu-system-x86_64")
    monkeypatch.setattr(qemu, "installed", lambda: Qemu(("qemu",), "QEMU emulator version 10.2.0"))
    assert doctor.qemu() == Finding(
        "QEMU",
        Grade.GOOD,
        "/usr/bin/qemu-system-x86_64: QEMU emulator version 10.2.0, with vfio-user-pci",
    )


def test_kvm_that_is_missing_or_closed_is_not_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = doctor.kvm(silent, device=tmp_path / "kvm")
    assert missing.state is Grade.LIMITED
    assert missing.meaning.startswith(f"not usable: {tmp_path}/kvm is missing")
    device = tmp_path / "kvm"
    device.touch()
    monkeypatch.setattr("os.access", lambda *_: False)
    closed = doctor.kvm(silent, device=device)
    assert "may not be opened by this user" in closed.meaning
    assert closed.remedy == f'sudo setfacl -m "u:$USER:rw" {device}', "its group may not, either"


@pytest.mark.parametrize(
    ("gid", "mode", "remedy"),
    [
        (grp.getgrnam("daemon").gr_gid, 0o660, 'sudo usermod -aG daemon "$USER"  # and log'),
        (4001, 0o660, 'sudo groupadd -g 4001 kvm4001 && sudo usermod -aG kvm4001 "$USER"'),
        (4001, 0o600, "sudo setfacl"),
        (0, 0o660, "sudo setfacl"),
    ],
)
def test_kvm_is_opened_by_the_group_that_it_has(
    gid: int, mode: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "kvm"
    device.touch()
    values = [stat.S_IFCHR | mode, 0, 0, 1, 0, gid, *(0,) * 4]
    monkeypatch.setattr(Path, "stat", lambda _path, **_: os.stat_result(values))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert doctor.kvm(silent, device=device).remedy.startswith(remedy)


def test_kvm_is_believed_when_a_guest_has_lived_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "kvm"
    device.touch()
    for closure in (packages.QEMU, packages.GUEST):
        (tmp_path / "trees" / closure.key).mkdir(parents=True)
    booted: list[Accelerator] = []

    def boot(_images: object, _shape: object, accelerator: Accelerator) -> float:
        booted.append(accelerator)
        if len(booted) > 1:
            raise GuestError("the guest showed no life within 6 seconds", "[    0.0] Linux")
        return 1.25

    monkeypatch.setattr(images, "prepare", lambda _progress: None)
    monkeypatch.setattr(snapshot, "boot", boot)
    assert "no guest was booted" in doctor.kvm(silent, boot=False, device=device).meaning
    assert not booted
    lives = doctor.kvm(silent, device=device, root=tmp_path)
    assert (lives.state, lives.meaning) == (Grade.GOOD, "a guest boots in 1.2 s")
    dead = doctor.kvm(silent, device=device, root=tmp_path)
    assert dead.state is Grade.LIMITED
    assert dead.meaning == (
        "not usable: the guest showed no life within 6 seconds; guests run on an emulated processor"
    )
    assert booted == [Accelerator.KVM] * 2


def test_the_command_says_a_line_each_and_ends_with_what_is_missing(tmp_path: Path) -> None:
    """Both times in a folder without devices: those of other tests come and go."""
    alone = tmp_path / "temporary"
    alone.mkdir()
    here = run_doctor("--json", TMPDIR=str(alone))
    report = json.loads(here.stdout)
    missing = [one["name"] for one in report["findings"] if one["state"] == "missing"]
    assert report["healthy"] is (not missing)
    assert here.returncode == bool(missing)
    (tmp_path / "numba.py").write_text("raise ImportError('numba is broken today')\n")
    broken = run_doctor(PYTHONPATH=str(tmp_path), TMPDIR=str(alone))
    assert broken.returncode == 1
    (line,) = (line for line in broken.stdout.splitlines() if "numba is broken today" in line)
    assert line.startswith("missing  numba")
    assert line.endswith("pip install --force-reinstall numba")
    assert len(broken.stdout.splitlines()) == len(report["findings"])


Ask = Callable[[Path], Any]


@pytest.fixture
def finding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """What the command finds of the device at a socket, and of nothing else."""
    monkeypatch.setattr("potash.cli.device.doctor._examined", lambda **_: [])

    def ask(socket: Path) -> Any:
        assert run_app(["doctor", "--json", str(socket)]) == 0
        findings = json.loads(capsys.readouterr().out)["findings"]
        (found,) = (one for one in findings if one["name"] == f"device {socket}")
        return found

    return ask


@pytest.mark.parametrize("mapped", [True, False])
def test_a_running_device_says_how_it_reaches_memory(
    tmp_path: Path, finding: Ask, mapped: bool
) -> None:
    socket = tmp_path / "drive"
    with (
        device_process(socket, "--size", "1M"),
        Client(str(socket)) as client,
        SealedMemory(1 << 20) as memory,
    ):
        client.negotiate()
        client.dma_map(0, 1 << 20, memory.fd if mapped else None)
        client.region_write(PciRegion.CONFIG, 4, (6).to_bytes(2, "little"))  # bus master
        for offset, value in ((0x24, 0x001F001F), (0x28, 0x1000), (0x30, 0x2000), (0x14, 1)):
            client.region_write(PciRegion.BAR0, offset, value.to_bytes(4, "little"))
        while not client.region_read(PciRegion.BAR0, 0x1C, 4)[0] & 1:
            time.sleep(0.01)
        found = finding(socket)
    assert found["state"] == ("good" if mapped else "limited")
    assert found["meaning"].startswith(
        "guest memory is mapped" if mapped else "guest memory cannot be mapped"
    )
    assert bool(found["remedy"]) is not mapped


def test_a_device_that_is_not_there_is_said_so(tmp_path: Path, finding: Ask) -> None:
    found = finding(tmp_path / "none")
    assert found["state"] == "limited"
    assert "no device listens at" in found["meaning"]
