"""Two guests with volumes of LVM on one drive, one of which takes over from the other
(docs/reservations.md).

This downloads Debian's packages of LVM, sanlock and blkpr. Run it with

    pytest -m slow tests/vm/test_cluster.py
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from potash.vm.drive import device_process
from potash.vm.errors import GuestError
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.docs import blocks
from support.guest_packages import SETUP, with_packages
from support.vm import identify, shell

pytestmark = pytest.mark.slow

DRIVE = "/dev/nvme0n1"
VOLUME = "/dev/vg/lv"
PROGRAMS = [f"usr/sbin/{name}" for name in ("blkpr", "sanlock", "lvm", "lvmlockd")]
START = """
mkdir -p /etc/lvm /etc/sanlock /run/lvm /run/lock/lvm /run/sanlock
cat > /etc/lvm/lvm.conf <<END
activation {{ udev_sync = 0 udev_rules = 0 monitoring = 0 }}
devices {{ use_devicesfile = 0 obtain_device_list_from_udev = 0 }}
global {{ use_lvmlockd = 1 }}
local {{ host_id = {number} }}
END
cat > /usr/bin/vgchange <<'END'
#!/bin/sh
lvm vgchange "$@" || exec lvm vgchange "$@"
END
chmod +x /usr/bin/vgchange
for name in vgcreate lvcreate lvchange; do ln -s lvm /usr/bin/$name; done
echo watchdog_fire_timeout = 8 > /etc/sanlock/sanlock.conf
sanlock daemon -w 0 -U root -G root
lvmlockd -g sanlock -o 2
"""
"""A host without a watchdog, which counts as dead 24 seconds after its last sign of life. Without
udev, lvmlockd finds the volume that has the locks only when vgchange is repeated."""
WRITE = f"printf %s | dd of={VOLUME} bs=4k oflag=direct conv=sync 2>&1"
READ = f"dd if={VOLUME} bs=4k count=1 iflag=direct 2>/dev/null | head -c 5"


def start(guest: Guest, number: int) -> None:
    identify(guest, number)
    shell(guest, SETUP + START.format(number=number))


def refused(guest: Guest, command: str, reason: str) -> None:
    said = shell(guest, f"({command}) 2>&1 || echo failed")
    assert reason in said and "failed" in said, said


def test_a_volume_moves_from_a_guest_that_is_killed(images: GuestImages, tmp_path: Path) -> None:
    images = with_packages(images, tmp_path, "dm_mod", PROGRAMS)
    create, join, take_over = blocks("reservations.md", "sh")[2:]
    sockets = [tmp_path / "a", tmp_path / "b"]
    with (
        device_process(sockets[0], "--namespace", "512M:512", more=sockets[1:]),
        Guest(images, sockets[1]) as second,
    ):
        start(second, 2)
        with pytest.raises(GuestError), Guest(images, sockets[0]) as first:
            start(first, 1)
            shell(first, create)
            shell(second, join)
            refused(second, f"lvchange -aey {VOLUME}", "locked by other host")
            shell(first, WRITE % "first")
            assert first.machine.pid is not None
            os.kill(first.machine.pid, signal.SIGKILL)
        shell(second, take_over)
        assert shell(second, READ) == "first"
        shell(second, WRITE % "later")
        with Guest(images, sockets[0]) as returned:
            start(returned, 1)
            refused(returned, "vgchange --lockstart vg", "start failed")
            refused(returned, f"dd if=/dev/zero of={DRIVE} bs=4k count=1 oflag=direct", "xchange")
            shell(returned, f"blkpr -c register -k 3 {DRIVE}; vgchange --lockstart vg")
            refused(returned, f"lvchange -aey {VOLUME}", "locked by other host")
            shell(second, f"lvchange -an {VOLUME}")
            shell(returned, f"lvchange -aey {VOLUME}")
            assert shell(returned, READ) == "later"
            shell(returned, WRITE % "third")
