"""A device whose flash translation layer is an extension's, in a process of its own."""

import contextlib
from pathlib import Path

import potash.sdk
from nvme_spec.opcodes import IoOpcode
from potash.sdk.errors import PotashError
from potash.vm.drive import device_process

PAGE = 4096
REMAPPING = """
from potash.extend import ftl

@ftl
class Mine:
    def __init__(self, profile):
        pass
    def submit(self, time, op, first, count, stream, fua, hint):
        if hint.host:
            self.remap(first, hint.host)
        return time
"""


def test_a_device_that_is_killed_has_each_page_whole(tmp_path: Path) -> None:
    """Pages that are remapped have the old data or the new."""
    (tmp_path / "mine.py").write_text(REMAPPING)
    options = ["--media", str(tmp_path / "drive.img"), "--size", "32M", "--time", "modelled"]
    options += ["--extend", str(tmp_path / "mine.py"), "--ftl", "Mine"]
    count, socket = 200, tmp_path / "s"
    sources = b"".join(bytes([1 + number]) * PAGE for number in range(count))
    with device_process(socket, *options) as process:
        with (
            contextlib.suppress(PotashError),
            potash.sdk.open(f"vfio-user:{socket}", timeout=1) as device,
        ):
            namespace = device.namespace(1)
            namespace.write(0, sources)
            for number in range(count):
                page = sources[number * PAGE : (number + 1) * PAGE]
                hint = (15 << 20, (count + number) << 16)
                namespace.submit(
                    IoOpcode.WRITE, data_out=page, cdw10=number, cdw12=hint[0], cdw13=hint[1]
                )
                if number == count // 2:
                    process.kill()
        process.wait()
    socket.unlink()
    with (
        device_process(socket, *options),
        potash.sdk.open(f"vfio-user:{socket}") as device,
    ):
        found = device.namespace(1).read(0, 2 * count)
    assert found[: count * PAGE] == sources
    copied = 0
    for number in range(count):
        page = found[(count + number) * PAGE : (count + number + 1) * PAGE]
        assert page in (bytes(PAGE), bytes([1 + number]) * PAGE)
        copied += page[0] != 0
    assert 0 < copied < count
