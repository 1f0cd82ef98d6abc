"""Several drives in one guest: each has its own name, blocks and faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from potash.cli.app import run_app
from support.vm import PotashGuest

MIB = 1 << 20

SIZES = range(16, 40)
"""MiB of the drives."""


PEER_COPY = """
import potash.sdk
from potash.sdk.memory_namespace import PeerBytes
with open("/sys/class/nvme/nvme3/device/resource") as file:
    address = int(file.readlines()[4].split()[0], 0)
with potash.sdk.open("/dev/nvme3") as other, potash.sdk.open("/dev/nvme0") as drive:
    other.memory_namespace().write(4096, b"from drive 3")
    memory = drive.memory_namespace()
    memory.copy(0, [PeerBytes(address + 4096, 12)])
    accelerator = drive.accelerator()
    accelerator.enable()
    accelerator.copy_input(address + 4096, 12)
    print(memory.read(0, 12).decode())
"""


def sized(folder: Path, count: int) -> Path:
    """A configuration file of so many drives."""
    path = folder / "drives.toml"
    path.write_text(
        "".join(
            f'[drive.{number}.namespace.1]\nsize = "{size}M"\n'
            for number, size in enumerate(SIZES[:count], 1)
        )
    )
    return path


pytestmark = pytest.mark.usefixtures("images")


def test_four_drives_are_four_controllers_and_share_what_they_are_told_to(
    tmp_path: Path, potash_guest: PotashGuest
) -> None:
    """Memory in BARs, and not even a fault that happens once. A file says how large each is."""
    count = 4
    options = ["--config", sized(tmp_path, count), "--fault", "media read lba=100 count=1"]
    options += ["--memory-namespace", "64K", "--memory-bar", "--memory-peers"]
    for number in range(2):
        options += ["--media", tmp_path / f"media{number}"]
    script = """
for n in 0 1 2 3; do cat /sys/class/nvme/nvme$n/serial /sys/class/nvme/nvme$n/subsysnqn; done
for n in 0 1 2 3; do
    printf "drive $n" | dd of=/dev/nvme${n}n1 bs=4096 seek=$n conv=sync,fsync 2>/dev/null
done
for n in 0 1 2 3; do head -c 16384 /dev/nvme${n}n1 | tr -d '\\0'; echo; done
for n in 0 0 1 1 2 3; do
    dd if=/dev/nvme${n}n1 of=/dev/null bs=4096 skip=100 count=1 iflag=direct 2>/dev/null &&
        echo read || echo fault
done
cat /sys/block/nvme?n1/size
"""
    script += f"python3 -c '{PEER_COPY}'"
    done = potash_guest(*options, "--", "sh", "-ec", script)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.strip() for line in lines[0:8:2]] == [
        f"POTASH{number:04}" for number in range(1, 5)
    ]
    assert len(set(lines[1:8:2])) == count
    assert lines[8:12] == [f"drive {number}" for number in range(count)]
    assert lines[12:18] == ["fault", "read", "fault", "read", "fault", "fault"]
    assert lines.pop() == "from drive 3"
    assert [int(line) for line in lines[18:]] == [(number << 20) // 512 for number in SIZES[:count]]
    for number in range(2):
        data = (tmp_path / f"media{number}").read_bytes()
        assert data[number * 4096 :][:7] == b"drive %d" % number
        assert len(data.replace(b"\0", b"")) == 7
    names = {path.name.partition(".")[0] for path in tmp_path.iterdir()}
    assert names == {"media0", "media1", "drives"}


@pytest.mark.slow
def test_a_guest_has_twenty_four_drives(tmp_path: Path, potash_guest: PotashGuest) -> None:
    script = "for n in $(seq 0 23); do cat /sys/block/nvme${n}n1/size; done"
    done = potash_guest("--config", sized(tmp_path, 24), "--", "sh", "-ec", script)
    assert (done.returncode, done.stderr) == (0, "")
    assert [int(line) for line in done.stdout.split()] == [(size << 20) // 512 for size in SIZES]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--devices", "25"], "25 is not in the range 1<=x<=24"),
        (["--devices", "1", "--media", "a", "--media", "b"], "2 --media are too many"),
    ],
)
def test_more_drives_than_there_are_places_are_wrong_usage(
    capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert run_app(["guest", *options, "--", "true"]) == 2
    assert said in capsys.readouterr().err
