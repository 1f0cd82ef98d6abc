"""A host program that was not written for Potash gets its result from the drive."""

from __future__ import annotations

from pathlib import Path

from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.platform_example import LEFT, OUTPUT, RIGHT, model, program

STRANGER = Path(__file__).with_name("stranger.py")


def test_the_published_host_s_ioctls_give_the_published_example_s_output(
    images: GuestImages, tmp_path: Path
) -> None:
    (tmp_path / "program.o").write_bytes(program())
    (tmp_path / "input.bin").write_bytes(model() + LEFT + RIGHT)
    # Smaller than what the host asks for, so the device clamps the range to the drive's end.
    with serving("--size", "8M", "--profile", "alkali") as socket, Guest(images, socket) as guest:
        guest.copy_in(STRANGER, "/share/stranger.py")
        guest.copy_in(tmp_path / "program.o", "/share/program.o")
        guest.copy_in(tmp_path / "input.bin", "/share/input.bin")
        files = ["/share/program.o", "/share/input.bin", "/tmp/output"]
        done = guest.capture(["python3", "/share/stranger.py", "/dev/nvme0n1", *files])
        assert done.code == 0, done
        said = done.stdout.split()
        assert said[0] == b"WDC0" and said[2] == b"0"
        output = guest.capture(["cat", "/tmp/output"]).stdout
        assert output == OUTPUT.ljust(4096, b"\0")
        assert done.stderr == b""
