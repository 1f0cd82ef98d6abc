"""The session that `docs/commands.md` shows, typed in: its numbers must be the device's."""

from __future__ import annotations

import shlex
import struct
import subprocess
from pathlib import Path
from typing import cast

import potash.sdk
from potash.sdk import Completion, Device
from potash.sdk.transport import Cdws
from potash.vm.drive import device_process

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "add"
DWORDS = range(10, 16)

SMALL = ("--size", "64M")


def session() -> list[str]:
    """The commands of the document's first block, one a line."""
    text = (ROOT / "docs" / "commands.md").read_text()
    block = text.split("```sh\n")[1].split("```")[0].replace("\\\n", " ")
    return [line for line in block.splitlines() if line and not line.startswith("#")]


class Shell:
    """Understands as much of a shell and of nvme-cli as the document uses."""

    def __init__(self, device: Device, folder: Path) -> None:
        self.device = device
        self.folder = folder
        self.answers: list[tuple[str, int, bytes]] = []
        self._size = 0

    def type(self, line: str) -> None:
        if line.startswith("size="):
            self._size = self._file(line.split()[-1].rstrip(")")).stat().st_size
        elif line.startswith("printf"):
            subprocess.run(["sh", "-c", line], cwd=self.folder, timeout=10, check=True)
        else:
            self._nvme(line.partition(">")[0])

    def _nvme(self, line: str) -> None:
        line = line.replace("$((size / 4))", str(self._size // 4)).replace("$size", str(self._size))
        name, command, target, *options = shlex.split(line)
        given: dict[str, str] = {}
        for option in options:
            key, _, value = option.removeprefix("--").partition("=")
            given[key] = value
        assert name == "nvme"
        assert target == ("/dev/nvme0n1" if command == "io-passthru" else "/dev/nvme0")
        number = {key: int(value, 0) for key, value in given.items() if value[:1].isdigit()}
        if command == "get-log":
            length = number["log-len"]
            data = self.device.log_page(
                number["log-id"], length, lsi=number["lsi"], rae="rae" in given
            )
            self.answers.append((command, number["log-id"], data))
            return
        send = self.device.admin if command == "admin-passthru" else self.device.io
        completion: Completion = send(
            number["opcode"],
            nsid=number.get("namespace-id", 0),
            cdws=cast(Cdws, tuple(number.get(f"cdw{index}", 0) for index in DWORDS)),
            data_out=self._content(given, number) if "write" in given else None,
            data_in_length=number["data-len"] if "read" in given else 0,
        )
        self.answers.append((command, number["opcode"], completion.data))
        if number["opcode"] == 0x91 and number["cdw13"] == 1:
            self.device.accelerators()[0].wait(timeout=30)  # in the document, somebody polls

    def _content(self, given: dict[str, str], number: dict[str, int]) -> bytes:
        content = self._file(given["input-file"]).read_bytes()
        assert len(content) == number["data-len"]
        return content

    def _file(self, name: str) -> Path:
        made = self.folder / name
        return made if made.exists() else EXAMPLE / name


def test_the_documents_session_adds_two_vectors(tmp_path: Path) -> None:
    with (
        device_process(tmp_path / "s", *SMALL),
        potash.sdk.open(f"vfio-user:{tmp_path / 's'}") as device,
    ):
        shell = Shell(device, tmp_path)
        for line in session():
            shell.type(line)
    by_opcode: dict[int, list[bytes]] = {}
    for _, opcode, data in shell.answers:
        by_opcode.setdefault(opcode, []).append(data)
    header, whole = by_opcode[0xC2][:2]
    assert struct.unpack_from("<4sI", header) == (b"WDC0", len(whole))
    (status,) = by_opcode[0xC6]
    assert struct.unpack_from("<II", status) == (len(status), 2)
    assert struct.unpack_from("<Q", status, 104) == (1024,)
    assert by_opcode[0x82] == [(EXAMPLE / "expected.bin").read_bytes()]
    length, log = by_opcode[0xC0][-2:]
    assert length == log[:4]
    assert struct.unpack("<I", length)[0] <= len(log)
