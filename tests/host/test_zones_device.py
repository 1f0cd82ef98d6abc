"""A whole drive with zones: what a kill leaves of them, and programs that read them."""

import random
import struct
from pathlib import Path

import pytest

from potash.sdk import CommandFailed, Device
from potash.testing import booted_device
from support.checksums import crc32c_bitwise as crc32c
from support.docs import ROOT
from support.zone_areas import Areas, ModelZones
from support.zones import (
    APPEND,
    CLOSE,
    COMMIT,
    FINISH,
    FULL,
    OPEN,
    RECEIVE,
    RESET,
    SEND,
    WITH_AREA,
    WRITE,
    decoded,
)

BLOCK = 4096


def test_write_pointers_outlive_a_kill(tmp_path: Path) -> None:
    media = tmp_path / "drive"
    options = ["--zoned-namespace", "4M:1M"]
    with booted_device(media=media, options=options) as device:
        for lba in range(5):
            device.write(lba, bytes([lba + 1]) * BLOCK)
        device.kill()
    with booted_device(media=media, options=options) as device:
        assert [device.read(lba, 1)[0] for lba in range(6)] == [1, 2, 3, 4, 5, 0]
        with pytest.raises(CommandFailed, match="Zone Invalid Write"):
            device.write(4, bytes(BLOCK))
        device.write(5, b"\6" * BLOCK)
        assert device.read(5, 1) == b"\6" * BLOCK


ZONES, ZONE_BLOCKS = 4, 16
AREAS = Areas(capacity=12, size=4, granularity=2, most=2)
WITH_AREAS = ["--zoned-namespace", "256K:64K:48K", "--zrwa", "16K:8K:2"]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))]
)
def test_random_write_areas_are_as_the_model_has_them(tmp_path: Path, seed: int) -> None:
    """Random commands, with a kill in between, of a host that flushes before it."""
    choose, model, media = random.Random(seed), ModelZones(ZONES, AREAS), tmp_path / "drive"
    for _ in range(3):
        with booted_device(media=media, options=WITH_AREAS) as device:
            require_same(device, model)
            for _ in range(300):
                number, step = choose.randrange(ZONES), choose.randrange(12)
                pointer = model.every[number].pointer
                at = min(max(0, pointer + choose.randint(-1, 2 * AREAS.size)), ZONE_BLOCKS - 1)
                count = min(choose.randint(1, 4), ZONE_BLOCKS - at)
                fill = choose.randrange(1, 256)
                if step < 5:
                    expected = model.write(number, at, count, fill)
                    found = status_of(device, WRITE, number, at, count, fill)
                elif step < 8:
                    expected = model.commit(number, at)
                    found = status_of(device, SEND, number, at, action=COMMIT)
                elif step < 9:
                    expected = model.append(number, count, fill)
                    found = status_of(device, APPEND, number, 0, count, fill)
                else:
                    action = choose.choice([CLOSE, FINISH, *[OPEN] * 4, *[RESET] * 4])
                    area = action == OPEN and choose.random() < 0.8
                    expected = model.send(action, number, area)
                    found = status_of(device, SEND, number, action=action | area * WITH_AREA)
                assert found == expected, (number, step, at, count)
            require_same(device, model)
            device.flush()
            device.kill()
        for zone in model.every:
            zone.power_cycled()


def status_of(
    device: Device,
    opcode: int,
    number: int,
    at: int = 0,
    count: int = 0,
    fill: int = 0,
    *,
    action: int = 0,
) -> int:
    first, data = number * ZONE_BLOCKS + at, bytes([fill]) * count * BLOCK or None
    blocks = max(0, count - 1)
    try:
        device.submit(
            opcode, nsid=1, data_out=data, cdw10=first, cdw12=blocks, cdw13=action
        ).result()
    except CommandFailed as error:
        return error.status
    return 0


def require_same(device: Device, model: ModelZones) -> None:
    report = device.submit(RECEIVE, nsid=1, data_in_length=4096, cdw12=1023).result().data
    for number, (found, zone) in enumerate(zip(decoded(report)[1], model.every, strict=True)):
        assert (found.state, found.attributes) == (zone.state, zone.area << 3)
        assert found.pointer == found.first + zone.pointer or zone.state == FULL
        data = device.read(number * ZONE_BLOCKS, ZONE_BLOCKS)
        assert list(data[::BLOCK]) == [zone.blocks.get(at, 0) for at in range(ZONE_BLOCKS)]


CHECKSUM = ROOT / "examples/checksum/program.o"


def test_programs_read_zones_and_have_no_output_there(tmp_path: Path) -> None:
    data = bytes(range(256)) * 48  # three blocks, of which the last is behind the write pointer
    with booted_device(media=tmp_path / "drive", options=["--zoned-namespace", "4M:1M"]) as device:
        device.write(0, data[: 2 * BLOCK])
        accelerator = device.accelerator()
        accelerator.enable()
        accelerator.send_firmware(CHECKSUM.read_bytes())
        accelerator.use_local_input(0, 3)
        accelerator.start(0, [3 * BLOCK])
        accelerator.wait(timeout=60)
        sums = struct.unpack("<4I", accelerator.read_output(16))
        pages = (data[:BLOCK], data[BLOCK : 2 * BLOCK], bytes(BLOCK))
        assert sums == (crc32c(b"".join(pages)), *map(crc32c, pages))

        with pytest.raises(CommandFailed, match="Invalid Opcode"):
            accelerator.use_local_output(256, 1)
