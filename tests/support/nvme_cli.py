"""As much of nvme-cli as `docs/commands.md` uses, for a shell on this machine.

A program `nvme` hands its arguments to this process, which holds the device: each command line is
one command of one host, as it is with the kernel's driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import socketserver
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from potash.sdk import Device
from potash.sdk.errors import PotashError

PROGRAM = f"""#!{sys.executable} -IS
import base64, json, os, socket, sys
with socket.socket(socket.AF_UNIX) as end:
    end.connect({{path!r}})
    end.sendall(json.dumps([os.getcwd(), sys.argv[1:]]).encode() + b"\\n")
    code, data = json.loads(end.makefile().readline())
os.write(1, bytes.fromhex(data))
sys.exit(code)
"""

DWORDS = range(10, 16)


@contextlib.contextmanager
def nvme_cli(device: Device, folder: Path) -> Iterator[str]:
    """Gives the value of PATH with which a shell finds the program, which lies in `folder`."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            where, argv = json.loads(self.rfile.readline())
            try:
                code, data = 0, _command(device, Path(where), argv)
            except PotashError as error:
                print(error, file=sys.stderr)
                code, data = 1, b""
            self.wfile.write(json.dumps([code, data.hex()]).encode() + b"\n")

    path = folder / "nvme-socket"
    program = folder / "nvme"
    program.write_text(PROGRAM.format(path=str(path)))
    program.chmod(0o700)
    with socketserver.UnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"{folder}{os.pathsep}{os.environ['PATH']}"
        finally:
            server.shutdown()
            thread.join()


def _command(device: Device, folder: Path, argv: list[str]) -> bytes:
    """What one line of nvme-cli gives back."""
    name, target, *options = argv
    given = {key: value for key, _, value in (one[2:].partition("=") for one in options)}
    number = {key: int(value, 0) for key, value in given.items() if value[:1].isdigit()}
    assert target == ("/dev/nvme0n1" if name == "io-passthru" else "/dev/nvme0")
    assert ("raw-binary" in given) == ("read" in given or name == "get-log")
    if name == "get-log":
        length = number["log-len"]
        return device.log_page(number["log-id"], length, lsi=number["lsi"], rae="rae" in given)
    content = None
    if "write" in given:
        content = (folder / given["input-file"]).read_bytes()[: number["data-len"]]
        assert len(content) == number["data-len"]
    send = {"admin-passthru": device.admin, "io-passthru": device.io}[name]
    completion = send(
        number["opcode"],
        nsid=number.get("namespace-id", 0),
        data_out=content,
        data_in_length=number["data-len"] if "read" in given else 0,
        **{f"cdw{index}": number.get(f"cdw{index}", 0) for index in DWORDS},
    )
    return completion.data
