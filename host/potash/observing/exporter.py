"""The metrics process of a device."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from potash.sdk.errors import PotashError
from potash.vm.parent_death import dies_with_parent

LOOPBACK = "127.0.0.1"
BACKLOG = 16
MODULE = "potash.observing.metrics"


@contextmanager
def exporting(status: Path, port: int) -> Iterator[str]:
    """Answer at a port of this machine's loopback while the block lasts; gives the address.

    Port 0 is any that is free. Raises PotashError where the port is taken.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
            listener.listen(BACKLOG)
        except OSError as error:
            raise PotashError(
                f"the metrics cannot be at port {port}: {error.strerror}; choose another port"
            ) from None
        port = listener.getsockname()[1]
        descriptor = listener.fileno()
        command = [sys.executable, "-m", MODULE, "--listener", str(descriptor)]
        process = subprocess.Popen(
            dies_with_parent([*command, "--status", str(status)]),
            stdin=subprocess.DEVNULL,
            pass_fds=(descriptor,),
            # A key at the terminal is for the device, which ends this process.
            process_group=0,
        )
    try:
        yield f"http://{LOOPBACK}:{port}/metrics"
    finally:
        process.kill()
        process.wait()
