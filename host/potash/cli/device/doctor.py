"""`potash doctor`: whether this machine has what Potash needs."""

import sys
from pathlib import Path

import click

from potash import doctor as checks
from potash.cli.device.mirror import mirror_option
from potash.cli.drive.common import json_option, say
from potash.cli.progress import showing
from potash.doctor import Finding, Grade, Report
from potash.observing.status import ask, running, status_socket
from potash.sdk.errors import PotashError
from potash.tables import columns
from potash_firmware.extension_registry import Listed

SHARED_MEMORY = (
    "qemu-system-x86_64 -object memory-backend-memfd,id=m0,size=1G,share=on"
    " -M q35,memory-backend=m0 …"
)


@click.command()
@click.argument("devices", metavar="[DEVICE]...", nargs=-1)
@click.option("--no-boot", is_flag=True, help="Do not boot a guest to test KVM.")
@mirror_option
@json_option(Report)
def doctor(devices: tuple[str, ...], no_boot: bool, debian_mirror: str | None) -> None:
    """Check whether this machine has what Potash needs, and show how to install the rest.

    Running devices are checked too: every DEVICE, a socket of potash serve, and those that other
    commands (guest, demo, bench) run.

    Each check is "good"; "limited" if Potash is slower or lacks a function without it; or "missing"
    if Potash or its guest does not work without it. The exit code is 1 if something is missing.
    """
    findings = _examined(boot=not no_boot, mirror=debian_mirror)
    for socket in dict.fromkeys([*map(status_socket, devices), *running()]):
        findings += _device(socket)
    healthy = all(one.state is not Grade.MISSING for one in findings)
    rows = [
        (one.state, one.name, f"{one.meaning}  → {one.remedy}" if one.remedy else one.meaning)
        for one in findings
    ]
    say(Report(healthy, findings), columns(rows, "<"))
    if not healthy:
        sys.exit(1)


def _examined(*, boot: bool, mirror: str | None) -> list[Finding]:
    with showing() as progress:
        found = [checks.python()]
        progress("importing what Potash is built upon", None)
        found += [*checks.packages(), checks.runtime(), checks.queries(), checks.libubpf()]
        found += checks.extensions()
        found += [
            checks.cpu(),
            checks.memory(),
            checks.confinement(),
            *checks.disk(),
            checks.socket_folder(),
        ]
        progress("looking for QEMU and a compiler", None)
        found += [checks.compiler(), checks.qemu(mirror), checks.guest(mirror)]
        found.append(checks.kvm(progress, boot=boot))
    return found


def _device(socket: Path) -> list[Finding]:
    """The way in which a running device accesses the memory of its host, and its extensions."""
    name = f"device {socket.with_suffix('')}"
    try:
        snapshot = ask(socket)
    except PotashError as error:
        return [Finding(name, Grade.LIMITED, str(error))]
    controller = snapshot["controller"]
    found = Finding(name, Grade.GOOD, "guest memory is mapped")
    if not controller["host_attached"]:
        found = Finding(name, Grade.GOOD, "no host is attached")
    elif controller["memory_by_messages"]:
        said = "guest memory cannot be mapped, and is reached by messages, which takes longer"
        found = Finding(name, Grade.LIMITED, said, SHARED_MEMORY)
    added = [Listed(**one) for one in snapshot.get("extensions", ())]
    return [
        found,
        *(
            Finding(f"{name}, {file}", Grade.GOOD, "; ".join(str(o) for o in added if o[3] == file))
            for file in dict.fromkeys(one.source for one in added)
        ),
    ]
