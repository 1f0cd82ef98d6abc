"""`python -m potash_firmware.apu --fds NAMES`: what the board starts as its APU.

The configuration is JSON, in the environment. The descriptors that it is given by number:
`mailbox`, `state`, `transfer`, `mediaN` for the media of namespace N and `arenaN` for the memory of
accelerator N; and, where somebody looks on, `counters` for the numbers of the accelerators, and
`trace` for a file for what happens here.
"""

import argparse
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from potash_device.trace import COMPUTE, record
from potash_firmware.apu import fork_server
from potash_firmware.apu.config import (
    CONFIG_VARIABLE,
    Config,
    ConfigError,
    parse_descriptors,
)
from potash_firmware.apu.process import ignore_signals_to_group, set_name
from potash_firmware.apu.service import Service
from potash_firmware.apu.supervisor import Supervisor
from potash_firmware.confinement import be_undumpable
from potash_firmware.mailbox import ApuPort, MailboxError, SharedBuffers
from potash_firmware.mailbox.counters import Counters

PROCESS = "potash-apu"

FOR_WORKERS = ("arena", "trace", "counters")
"""What the names of descriptors begin with that workers get, too. Media come with a job that reads
them."""


def run(descriptors: dict[str, int], config: Config) -> None:
    """Serve until the RPU is gone. Raises ConfigError, MailboxError."""
    wanted = ["mailbox", "state", "transfer"]
    wanted += [f"media{item.nsid}" for item in config.namespaces]
    wanted += [f"arena{item.id}" for item in config.accelerators]
    missing = [name for name in wanted if name not in descriptors]
    if missing:
        raise ConfigError(f"no descriptor was given for {', '.join(missing)}")
    for_workers = {name: fd for name, fd in descriptors.items() if name.startswith(FOR_WORKERS)}
    supervisor = Supervisor(config, for_workers)
    supervisor.fork(fork_server.run)
    if "trace" in descriptors:
        # What ends it is said by the device.
        record(COMPUTE, descriptors["trace"], PROCESS, level=logging.DEBUG)
    arenas = {item.id: (descriptors[f"arena{item.id}"], item.plan) for item in config.accelerators}
    media = {item.nsid: descriptors[f"media{item.nsid}"] for item in config.namespaces}
    with (
        _counters(descriptors, config) as counters,
        ApuPort.adopt(descriptors["mailbox"]) as port,
        SharedBuffers.adopt(descriptors["transfer"], descriptors["state"], arenas) as buffers,
    ):
        try:
            Service(config, port, buffers, supervisor, counters, media).run()
        finally:
            supervisor.close()


@contextmanager
def _counters(descriptors: dict[str, int], config: Config) -> Iterator[Counters | None]:
    if "counters" not in descriptors:
        yield None
        return
    with Counters.adopt(descriptors["counters"], config.rows) as counters:
        yield counters


def main() -> int:
    ignore_signals_to_group()
    set_name(PROCESS)
    be_undumpable()
    parser = argparse.ArgumentParser(prog="potash_firmware.apu", description=__doc__)
    parser.add_argument("--fds", required=True, help="NAME=FD,…")
    arguments = parser.parse_args()
    try:
        config = Config.from_json(os.environ.get(CONFIG_VARIABLE, ""))
        config.log.apply(PROCESS)
        run(parse_descriptors(arguments.fds), config)
    except (ConfigError, MailboxError) as error:
        print(f"apu: {error}", file=sys.stderr)
        return 1
    return 0
