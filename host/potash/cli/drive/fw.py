"""`potash fw`: programs to and from an accelerator.

Alkali CSD platform documentation, section 4.3.2 (Send Firmware, Read Firmware).
"""

from pathlib import Path

import click

from potash.cli.drive import common, reports
from potash.cli.progress import showing
from potash.files import STREAM
from potash.units import Size


@click.group()
def fw() -> None:
    """Send programs to a drive's accelerators, where they are called firmware, and read them.

    DEVICE is /dev/nvme0n1, vfio-user:SOCKET or the socket's path; "potash acc --help" explains
    the difference. For the drive's own firmware, use "nvme fw-download".
    """


@fw.command()
@click.argument("device")
@common.program_file
@common.accelerator_option
@common.firmware_option
@common.run_time_option
@common.json_option(reports.FirmwareSent)
def send(
    device: str, program: Path, accelerator: int | None, firmware: int, runtime: str | None
) -> None:
    """Send PROGRAM, an object file or a program in C."""
    image = common.program_of(program, runtime)
    with common.accelerator_of(device, accelerator) as one, showing() as progress:
        one.send_firmware(image, firmware, progress=progress)
    report = reports.FirmwareSent(one.id, firmware, len(image))
    common.say(report, [f"{len(image)} bytes as firmware {firmware}"])


@fw.command()
@click.argument("device")
@common.output_file
@common.accelerator_option
@common.firmware_option
@click.option("--data-len", type=Size(), help="Number of bytes (default: all).")
@common.json_option(reports.FirmwareRead)
def read(
    device: str, output: Path, accelerator: int | None, firmware: int, data_len: int | None
) -> None:
    """Read a program into OUTPUT (- for standard output)."""
    with common.accelerator_of(device, accelerator) as one, showing() as progress:
        image = one.read_firmware(data_len, firmware, progress=progress)
    common.write_output(output, image)
    report = reports.FirmwareRead(one.id, firmware, len(image), str(output))
    common.say(report, [f"{len(image)} bytes"], aside=output == STREAM)
