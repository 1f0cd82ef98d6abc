"""`python -m potash_firmware.apu --fds NAMES`: what the board starts as its APU.

It gets descriptors by number: `mailbox`, `config`, `state`, `transfer`, `mediaN` for the media of
namespace N and `arenaN` for the memory of accelerator N; and, where the device observes it,
`counters` for the counters of the accelerators, and `trace` for the file of a trace.
"""

import argparse
import logging
import sys
from contextlib import ExitStack

from potash_device.trace import COMPUTE, record
from potash_firmware.apu import fork_server
from potash_firmware.apu.config import Config, ConfigError, parse_descriptors
from potash_firmware.apu.process import ignore_signals_to_group, set_name
from potash_firmware.apu.service import Service
from potash_firmware.apu.supervisor import Supervisor
from potash_firmware.confinement import be_undumpable
from potash_firmware.mailbox import ApuPort, MailboxError, SharedBuffers
from potash_firmware.mailbox.messages import NO_DESCRIPTOR
from potash_firmware.mailbox.shared import Counters

PROCESS = "potash-apu"

FOR_FORK_SERVER = ("arena", "config", "trace", "counters")
"""Prefixes of the names of descriptors that the fork server gets. A job that reads media brings
their descriptors."""


def run(descriptors: dict[str, int], config: Config) -> None:
    """Serve until the RPU is gone. Raises ConfigError, MailboxError."""
    needed = ["mailbox", "state", "transfer"]
    needed += [f"media{item.nsid}" for item in config.namespaces]
    needed += [f"arena{item.id}" for item in config.accelerators]
    missing = [name for name in needed if name not in descriptors]
    if missing:
        raise ConfigError(f"no descriptor was given for {', '.join(missing)}")
    kept = {name: fd for name, fd in descriptors.items() if name.startswith(FOR_FORK_SERVER)}
    supervisor = Supervisor(config, kept)
    supervisor.fork(fork_server.run)
    if "trace" in descriptors:
        # If it ends, the device reports why.
        record(COMPUTE, descriptors["trace"], PROCESS, level=logging.DEBUG)
    arenas = {item.id: (descriptors[f"arena{item.id}"], item.plan) for item in config.accelerators}
    media = {item.nsid: descriptors[f"media{item.nsid}"] for item in config.namespaces}
    with (
        ApuPort.adopt(descriptors["mailbox"]) as port,
        SharedBuffers.adopt(descriptors["transfer"], descriptors["state"], arenas) as buffers,
        ExitStack() as stack,
    ):
        stack.callback(supervisor.close)
        counters = None
        if "counters" in descriptors:
            adopted = Counters.adopt(descriptors["counters"], config.rows)
            counters = stack.enter_context(adopted)
        Service(config, port, buffers, supervisor, counters, media).run()


def main() -> int:
    ignore_signals_to_group()
    set_name(PROCESS)
    be_undumpable()
    parser = argparse.ArgumentParser(prog="potash_firmware.apu", description=__doc__)
    parser.add_argument("--fds", required=True, help="NAME=FD,…")
    arguments = parser.parse_args()
    try:
        descriptors = parse_descriptors(arguments.fds)
        config = Config.adopt(descriptors.get("config", NO_DESCRIPTOR))
        config.log.apply(PROCESS)
        run(descriptors, config)
    except (ConfigError, MailboxError) as error:
        print(f"apu: {error}", file=sys.stderr)
        return 1
    return 0
