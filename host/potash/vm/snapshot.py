"""A booted machine, frozen without its drive, so that later starts need not boot it again.

The state is QEMU's migration stream in a file (docs/devel/migration): a machine of the same QEMU
with the same options resumes from it in half a second, and the drive is plugged in then. Pages of
memory have fixed offsets in the file (the "mapped-ram" capability), so that untouched ones are
neither written nor read, however much memory there is. States have a folder and a lock of their
own: a guest that has one does not wait for the boot of another size.

The first boot also decides what executes the guest: KVM only if a guest responds under it within a
short limit, as a `/dev/kvm` that can be opened may still be useless (nested in software). The
verdict is cached.
"""

import contextlib
import json
import os
import platform
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from potash.sdk.progress import Progress
from potash.vm.cache import Cache, key
from potash.vm.channel import Channel
from potash.vm.errors import GuestError, GuestTimeout
from potash.vm.images import Emulator, GuestImages
from potash.vm.machine import Machine
from potash.vm.qemu import Accelerator, Memory, Qemu, Shape, machine_arguments

KVM = Path("/dev/kvm")
KVM_LIMIT = 6.0
"""Seconds in which a guest must be up under KVM; an emulated processor needs less."""
KERNEL_LIMIT = 1.0
"""Seconds in which its firmware must have started the kernel; an emulated processor needs 0.3."""
BOOT_LIMIT = 180.0
"""Seconds in which a guest must be up at all."""
MIGRATION_LIMIT = 120.0
MAPPED = {"capabilities": [{"capability": "mapped-ram", "state": True}]}
UNLIMITED = 1 << 40
KEPT = 4
"""Maximum number of states in the cache."""


@dataclass(frozen=True)
class Frozen:
    """A frozen machine: the options it was started with, and its state."""

    arguments: tuple[str, ...]
    state: Path

    def machine(self, qemu: Qemu, *more: str) -> Machine:
        """A machine that waits for the state, which `resume` loads. `more` are further options."""
        return Machine(qemu, [*self.arguments, *more, "-incoming", "defer"])

    def resume(self, machine: Machine) -> None:
        machine.qmp.execute("migrate-set-capabilities", MAPPED)
        machine.qmp.execute("migrate-incoming", {"uri": f"file:{self.state}"})


def frozen(images: GuestImages, shape: Shape, progress: Progress) -> Frozen:
    """The frozen machine of these images and this shape, which is booted and frozen if there is
    none. Raises GuestError where the guest does not boot."""
    verdict = kvm_verdict(images)
    if verdict is not None:
        found = _entry(images, shape, _accelerator(verdict))
        if found.state.exists():
            os.utime(found.state)
            return found
    with _states(images).locked(progress):
        if kvm_verdict(images) is None:
            try:
                made = _freeze(images, shape, Accelerator.KVM, KVM_LIMIT, progress)
                _keep_verdict(images, True)
                return made
            except GuestError:
                _keep_verdict(images, False)
        accelerator = _accelerator(bool(kvm_verdict(images)))
        return _freeze(images, shape, accelerator, BOOT_LIMIT, progress)


def boot(images: GuestImages, shape: Shape, accelerator: Accelerator) -> float:
    """Boot a guest, wait until it responds, and end it. Returns the seconds until it responded; no
    state is saved. Raises GuestError where it does not respond in time."""
    limit = KVM_LIMIT if accelerator is Accelerator.KVM else BOOT_LIMIT
    started = time.monotonic()
    with Machine(images.qemu, _entry(images, shape, accelerator).arguments) as machine:
        _await_response(machine, accelerator, limit)
    return time.monotonic() - started


def kvm_verdict(images: GuestImages | Emulator) -> bool | None:
    """True where KVM is usable, False where it is not; None when no guest has tried it yet."""
    if not os.access(KVM, os.R_OK | os.W_OK):
        return False
    try:
        kept = json.loads(_verdict_path(images).read_text())
        return bool(kept["useful"]) if kept["host"] == _host(images) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep_verdict(images: GuestImages, useful: bool) -> None:
    path = _verdict_path(images)
    with _states(images).scratch() as scratch:
        (scratch / path.name).write_text(json.dumps({"host": _host(images), "useful": useful}))
        os.rename(scratch / path.name, path)


def _verdict_path(images: GuestImages | Emulator) -> Path:
    return images.cache.root / "kvm.json"


def _host(images: GuestImages | Emulator) -> str:
    """The key of a verdict: this host, its kernel, this QEMU."""
    processors = Path("/proc/cpuinfo").read_text(errors="replace")
    model = next((line for line in processors.splitlines() if line.startswith("model name")), "")
    return key(platform.node(), platform.release(), model, images.qemu.version)


def _accelerator(kvm: bool) -> Accelerator:
    return Accelerator.KVM if kvm else Accelerator.TCG


def _entry(images: GuestImages, shape: Shape, accelerator: Accelerator) -> Frozen:
    machine = partial(machine_arguments, images.kernel, images.initrd, accelerator)
    # Under KVM the guest sees the host's own processor, so its state is this host's alone.
    host = _host(images) if accelerator is Accelerator.KVM else ""
    name = key(images.key, machine(replace(shape, backend=Memory.MEMFD)), host)
    return Frozen(tuple(machine(shape)), _states(images).root / "snapshots" / name)


def _states(images: GuestImages | Emulator) -> Cache:
    return Cache(images.cache.root / "states")


def _freeze(
    images: GuestImages, shape: Shape, accelerator: Accelerator, limit: float, progress: Progress
) -> Frozen:
    target = _entry(images, shape, accelerator)

    def build(place: Path) -> None:
        progress("booting the guest for the first time", None)
        with Machine(images.qemu, target.arguments) as machine:
            _await_response(machine, accelerator, limit)
            progress("saving a snapshot of the guest", None)
            _migrate(machine, place)

    states, kind = _states(images), target.state.parent.name
    states.entry(kind, target.state.name, build)
    states.prune(kind, KEPT)
    return target


def _await_response(machine: Machine, accelerator: Accelerator, limit: float) -> None:
    channel = Channel(machine.control)
    try:
        if accelerator is Accelerator.KVM:
            with contextlib.suppress(GuestTimeout):
                return channel.greet(KERNEL_LIMIT)
            if not machine.runs_kernel():
                raise GuestTimeout(f"no kernel was started within {KERNEL_LIMIT:g} seconds")
            limit -= KERNEL_LIMIT
        channel.greet(limit)
    except GuestError as error:
        raise machine.failure(error.reason) from error


def _migrate(machine: Machine, place: Path) -> None:
    qmp = machine.qmp
    qmp.execute("migrate-set-capabilities", MAPPED)
    qmp.execute("migrate-set-parameters", {"max-bandwidth": UNLIMITED})
    qmp.execute("migrate", {"uri": f"file:{place}"})
    deadline = time.monotonic() + MIGRATION_LIMIT
    while (status := qmp.execute("query-migrate").get("status")) != "completed":
        if status in ("failed", "cancelled") or time.monotonic() > deadline:
            raise machine.failure(f"QEMU cannot freeze the guest (migration {status})")
        time.sleep(0.02)
    place.chmod(0o600)
