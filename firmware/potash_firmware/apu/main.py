"""`python -m potash_firmware.apu --fds NAMES`: what the board starts as its APU.

It gets descriptors by number: `mailbox`, `config`, `state`, `transfer`, `mediaN` for the media of
namespace N and `arenaN` for the memory of accelerator N; and, where the device observes it,
`counters` for the counters of the accelerators, and `trace` for the file of a trace.
"""

import argparse
import json
import logging
import os
import socket
import sys
from contextlib import ExitStack

from potash_device.trace import COMPUTE, record
from potash_firmware.apu import fork_server
from potash_firmware.apu.config import (
    DESCRIPTORS_AT_ONCE,
    MAX_NAMES,
    Config,
    ConfigError,
    format_descriptors,
    parse_descriptors,
)
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
    _begin()
    parser = argparse.ArgumentParser(prog="potash_firmware.apu", description=__doc__)
    parser.add_argument("--fds", required=True, help="NAME=FD,…")
    arguments = parser.parse_args()
    return _serve(arguments.fds)


def run_forked(connection: socket.socket) -> None:
    """Serve as a fork of a process that has imported this, once the device sends descriptors.

    Each message names those that come with it; `environment` is a file with the variables. The
    connection ends after the last one, or without one if the device does not start.
    """
    _begin()
    descriptors: dict[str, int] = {}
    with connection:
        while True:
            names, fds, _, _ = socket.recv_fds(connection, MAX_NAMES, DESCRIPTORS_AT_ONCE)
            if not names:
                break
            descriptors |= zip(names.decode().split(), fds, strict=True)
    if descriptors:
        with open(descriptors.pop("environment"), encoding="utf-8") as file:
            os.environ.update(json.load(file))
        _serve(format_descriptors(descriptors))


def _begin() -> None:
    ignore_signals_to_group()
    set_name(PROCESS)
    be_undumpable()


def _serve(named: str) -> int:
    """Run with descriptors, NAME=FD,…; the exit code."""
    try:
        descriptors = parse_descriptors(named)
        config = Config.adopt(descriptors.get("config", NO_DESCRIPTOR))
        config.log.apply(PROCESS)
        run(descriptors, config)
    except (ConfigError, MailboxError) as error:
        print(f"apu: {error}", file=sys.stderr)
        return 1
    return 0
