"""The process from which all devices of a guest are forked: `python -m potash.cli.device.drives`.

It imports once what devices and their APUs need, with the compiled model if a drive's time is
modelled, so that a further drive takes a fraction of the time and memory of the first. It reads on
standard input which drives there are, forks their devices, and waits for them. Signals that end it
end them.

Each device forks the process that becomes its APU before it reads its configuration and the
environment of its user. This process has the environment of an APU.
"""

import gc
import json
import os
import signal
import sys
from collections.abc import Collection
from typing import NoReturn

from potash.cli.main import ENDING
from potash.cli.main import main as potash
from potash_device.pcie import peers
from potash_device.pcie.peers import Shared
from potash_firmware import apu_process
from potash_firmware.apu.process import die_with_parent, keep_open, set_name
from potash_firmware.confinement import be_undumpable

PROCESS = "potash-drives"
DEVICE = "potash"
STDOUT, STDERR = 1, 2


def main() -> None:
    set_name(PROCESS)
    be_undumpable()
    request = json.load(sys.stdin)
    import_devices(modelled=request["modelled"])
    signals = {*map(signal.Signals.__getitem__, ENDING), signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    parent = os.getpid()
    shared = Shared(request["shares"])
    running: dict[int, int] = {}
    """Numbers of the drives by process ID."""
    for number, (file, output, log) in enumerate(request["drives"]):
        pid = os.fork()
        if not pid:
            die_with_parent(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            _become_device(number, file, output, log, request["environment"], shared)
        running[pid] = number
    keep_open([shared.table])
    while running:
        came = signal.sigwait(signals)
        if came == signal.SIGCHLD:
            for pid in _exited(running):
                shared.withdraw(running.pop(pid))
            continue
        for pid in running:
            os.kill(pid, came)


def import_devices(*, modelled: bool) -> None:
    """Import what devices and APUs need."""
    gc.disable()
    import potash.cli.app
    import potash.cli.device.serve  # noqa: F401
    import potash_firmware.apu.main  # noqa: F401

    if modelled:
        from potash.cli.device.modelled_time import preload

        preload()
    gc.freeze()
    gc.enable()


def _become_device(
    number: int, file: str, output: int, log: int, environment: int, shared: Shared
) -> NoReturn:
    """Run `potash serve` with a configuration."""
    os.dup2(output, STDOUT)
    os.dup2(log, STDERR)
    keep_open([environment, *shared.descriptors])
    set_name(DEVICE)
    apu_process.prepare()
    if shared.memories:
        peers.inherited = peers.Peers(shared.table, shared.memories, number)
    size = os.fstat(environment).st_size
    variables = json.loads(os.pread(environment, size, 0))  # all devices share the position
    os.close(environment)
    os.environ.clear()
    os.environ.update(variables)
    sys.path.insert(0, os.getcwd())  # as for `python -m`
    sys.argv = ["potash", "serve", "--json", "--config", file]
    potash()
    raise AssertionError("it exits")


def _exited(running: Collection[int]) -> list[int]:
    """The processes that have exited, which are reaped."""
    return [pid for pid in running if os.waitpid(pid, os.WNOHANG)[0]]


if __name__ == "__main__":
    main()
