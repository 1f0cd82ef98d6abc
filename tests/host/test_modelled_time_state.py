"""The state of a modelled drive that is kept beside its media."""

import logging
from pathlib import Path

import pytest

import potash.sdk
from potash import timing
from potash.cli.device.modelled_time import keep, modelled
from potash.sections import TimeSection
from potash.vm.drive import serving
from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from potash_device.trace import Trace
from potash_firmware.ftl.interface import Held
from potash_firmware.ftl.saving import save
from potash_firmware.rpu.deadlines import GuestClock
from potash_firmware.rpu.statistics import Histogram
from potash_firmware.rpu.timing.modelled import ModelledTime
from support.modelled_time import flash_of

MIB = 1 << 20
SHAPES = (NamespaceShape(32 * MIB), NamespaceShape(16 * MIB, 512))
TLC = TimeSection("modelled", "tlc")


def started(media: Drive, section: TimeSection = TLC) -> ModelledTime:
    """As a device does."""
    settings = modelled(section, media)
    assert settings is not None
    sizes = {nsid: one.size for nsid, one in media.namespaces.items()}
    return ModelledTime(settings, sizes, {}, GuestClock(), Histogram(), Trace())


def used(path: Path) -> list[int]:
    """Have a page of each namespace be written, and keep that; where they are on flash."""
    with Drive.open(path, SHAPES) as media:
        time = started(media)
        time.write(1, 4096 * 7, 4096)
        time.write(2, 0, 512)
        keep(time, media)
        places: list[int] = flash_of(time).state.places.tolist()
        return places


def test_a_drive_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "drive"
    places = used(path)
    assert sum(place >= 0 for place in places) == 2
    with Drive.open(path) as media:
        time = started(media)
        assert flash_of(time).state.places.tolist() == places
        assert time.held.pieces == ((1, 0, 8192), (2, 8192, 4096))


def test_a_namespace_that_is_gone_meanwhile_has_no_pages(tmp_path: Path) -> None:
    path = tmp_path / "drive"
    used(path)
    with Drive.open(path) as media:
        media.delete([1])
    with Drive.open(path, capacity=48 * MIB) as media:
        time = started(media)
        assert time.held.pieces == ((2, 8192, 4096),)
        assert (flash_of(time).state.places >= 0).nonzero()[0].tolist() == [8192]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("plain", [0, MIB])
def test_a_small_drive_starts_without_the_zones_that_it_was_made_for(
    killed: bool, plain: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, zoned = tmp_path / "drive", NamespaceShape.zoned(2 * MIB, MIB)
    with Drive.open(path, (zoned, zoned)) as media:
        time = started(media)
        if not killed:
            keep(time, media)
        media.delete([1])
        if plain:
            media.create(1, NamespaceShape(plain))
    with Drive.open(path) as media:
        assert started(media).write(2, 0, 4096) > 0
    assert "such flash takes at least" in caplog.text


@pytest.mark.parametrize("how", ["another", "damaged", "overlap"])
def test_another_geometry_or_a_damaged_file_begins_anew(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, section, said = tmp_path / "drive", TLC, "cannot be used"
    used(path)
    state = path / "time.npz"
    if how == "another":
        section, said = TimeSection("modelled", "z-nand"), "begins anew"
    elif how == "damaged":
        state.write_bytes(state.read_bytes()[:-100])
    else:
        found = timing.restored(state)
        with state.open("wb") as file:
            save(found, file, Held(((1, 0, 9),) * 2))
    with caplog.at_level(logging.WARNING), Drive.open(path) as media:
        time = started(media, section)
        assert not (flash_of(time).state.places >= 0).any()
    assert said in caplog.text


def test_a_device_keeps_it_when_it_ends(tmp_path: Path) -> None:
    media = tmp_path / "drive.img"
    options = ("--time", "modelled", "--media", str(media), "--size", "32M")
    with serving(*options) as socket, potash.sdk.open(f"vfio-user:{socket}") as device:
        device.namespace(1).write(3, b"x" * 4096)
    found = timing.restored(tmp_path / "drive.img.time.npz")
    assert (found.state.places >= 0).nonzero()[0].tolist() == [3]


def test_a_drive_in_memory_or_that_is_only_read_keeps_nothing(tmp_path: Path) -> None:
    with Drive.open(None, SHAPES) as media:
        assert media.time_state is None
        keep(started(media), media)
    path = tmp_path / "drive"
    used(path)
    with Drive.open(path, read_only=True) as media:
        assert media.time_state is None
