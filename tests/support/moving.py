"""A drive's state, moved from one host's board to another's by the steps of the migration."""

from itertools import pairwise

from pyvfio_user.migration import State
from support.nvme_host import Host


def move_drive(source: Host, target: Host) -> None:
    """Have `target` go on with the drive of `source`, and with its host's memory."""
    _step(source, State.RUNNING, State.STOP, State.STOP_COPY)
    _step(target, State.RUNNING, State.STOP, State.RESUMING)
    while piece := source.rpu.migration.read(1 << 20):
        target.rpu.migration.write(piece)
    target.memory.view[:] = source.memory.view
    target.admin, target.io, target.cmb_at = source.admin, source.io, source.cmb_at
    _step(target, State.RESUMING, State.STOP, State.RUNNING)


def _step(host: Host, *states: State) -> None:
    """Take a drive from each state of its migration to the next one."""
    for before, after in pairwise(states):
        host.rpu.migration.change(before, after)
        for _ in range(10):
            host.service()
            host.executor.run_all()
