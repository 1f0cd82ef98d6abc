"""A worker's process, from its confinement to the worker of its kind."""

import logging
import socket
from collections.abc import Mapping

from potash_device.trace import COMPUTE, record
from potash_firmware import bpf
from potash_firmware.apu import channel
from potash_firmware.apu.compile_service import CompileClient
from potash_firmware.apu.config import Config
from potash_firmware.apu.engine_worker import EngineWorker
from potash_firmware.apu.process import confine_compiler, confine_worker
from potash_firmware.apu.worker import Checker, JobWorker, Setup
from potash_firmware.bpf.native import engine as native
from potash_firmware.mailbox.shared import Counters

log = logging.getLogger(__name__)


def run(
    service: socket.socket,
    kind: int,
    compiler: CompileClient,
    *,
    config: Config,
    descriptors: Mapping[str, int],
    engine: bpf.Engine,
) -> None:
    """Confine this process, and run what comes through `service` until that is closed."""
    if kind == channel.CHECKER:
        confine_compiler(config.limits, [service.fileno()])
        Checker(service, config).serve()
        return
    name = channel.process_name(kind)
    config.log.apply(name)
    log.debug("%s started", name)
    if "trace" in descriptors:
        record(COMPUTE, descriptors["trace"], name, level=logging.DEBUG)
    kept = {"trace"} if kind == channel.ENGINE else {f"arena{kind}", "counters", "trace"}
    if config.processor is not None:
        kept.add("counters")
    keep = [fd for key, fd in descriptors.items() if key in kept]
    confine_worker(
        config.limits, config.vta_threads, [service.fileno(), *compiler.descriptors, *keep]
    )
    native.compile_elsewhere = compiler.program
    counters = None
    if "counters" in descriptors and "counters" in kept:
        counters = Counters.adopt(descriptors["counters"], config.rows)
    setup = Setup(service, config, engine, compiler, counters)
    if kind == channel.ENGINE:
        EngineWorker(setup).serve()
    else:
        JobWorker(setup, kind, descriptors[f"arena{kind}"]).serve()
