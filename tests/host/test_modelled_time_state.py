"""The state of a modelled drive that is kept beside its media."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import potash.sdk
from potash import timing
from potash.cli.device.modelled_time import keep, modelled
from potash.sections import TimeSection
from potash.vm.drive import serving
from potash_device.media.drive import Drive
from potash_device.media.shapes import NamespaceShape
from potash_device.trace import Trace
from potash_firmware.extension_files import load
from potash_firmware.ftl.custom import CustomFtl
from potash_firmware.ftl.interface import Held
from potash_firmware.ftl.plain import PageMapped
from potash_firmware.ftl.saving import save
from potash_firmware.rpu.deadlines import GuestClock
from potash_firmware.rpu.placement import PlacementSettings
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


def test_a_drive_goes_on_where_it_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "drive"
    places = used(path)
    assert sum(place >= 0 for place in places) == 2
    with caplog.at_level(logging.INFO), Drive.open(path) as media:
        time = started(media)
        assert flash_of(time).state.places.tolist() == places
        assert time.held.pieces == ((1, 0, 8192), (2, 8192, 4096))
    assert caplog.messages == [f"the modelled drive goes on from {path / 'time.npz'}"]


@pytest.mark.parametrize("isolated", [False, True])
def test_handles_are_no_part_of_the_spare(isolated: bool, tmp_path: Path) -> None:
    text = f'base = "tlc"\nisolated = {str(isolated).lower()}'
    (tmp_path / "mine.toml").write_text(text)
    section = TimeSection("modelled", str(tmp_path / "mine.toml"))
    with Drive.open(None, SHAPES) as media:
        made = [modelled(section, media, PlacementSettings(count)) for count in (1, 8)]
    few, many = (found.drive.profile for found in made if found is not None)
    assert (many.streams, many.isolated) == (8, isolated)
    spare = [one.superblocks - one.least_superblocks for one in (few, many)]
    assert abs(spare[1] - spare[0]) <= 1


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


LAYER = """
from potash.extend import ftl
from potash.ftl import PageMapped

@ftl
class Mine(PageMapped):
    {body}
"""
MINE = TimeSection("modelled", "tlc", ftl="Mine")


def layered(path: Path, media: Drive, body: str = "version = 1") -> ModelledTime:
    """The same as `started`, with a translation layer of an extension."""
    (path / "mine.py").write_text(LAYER.format(body=body))
    extensions = load([str(path / "mine.py")])
    settings = modelled(MINE, media, extensions=extensions)
    assert settings is not None
    sizes = {nsid: one.size for nsid, one in media.namespaces.items()}
    return ModelledTime(settings, sizes, {}, GuestClock(), Histogram(), Trace())


def mapped(time: ModelledTime) -> int:
    return time.drive.report.mapped // 4096


def test_a_translation_layer_with_a_version_goes_on_where_it_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "drive"
    with Drive.open(path, SHAPES) as media:
        time = layered(tmp_path, media)
        for offset in range(0, 16 * MIB, MIB // 4):
            time.write(1, offset, MIB // 4)
        time.write(2, 0, 512)
        keep(time, media)
        held = time.held
        spread, count = time.drive.spread, mapped(time)
        assert count == 16 * MIB // 4096 + 1
    with Drive.open(path) as media:
        again = layered(tmp_path, media)
        assert (again.held, again.drive.spread, mapped(again)) == (held, spread, count)
        # What it does next is what it would have done.
        time.drive.rest()
        for one in (time, again):
            one.clock = GuestClock(lambda: 0.0)
        assert [time.write(1, 0, MIB), time.read(1, MIB, MIB), time.flush()] == [
            again.write(1, 0, MIB),
            again.read(1, MIB, MIB),
            again.flush(),
        ]
    assert all(record.levelno == logging.INFO for record in caplog.records)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("version = 2", "it is of another FTL, or version of it"),
        ("pass", "Mine has no version of its state"),
        ("version = 1; frontiers = 3", "open is missing, or of another drive"),
        ("version = 1\n    def restore(self, saved): 1 / 0", "line 8: ZeroDivisionError"),
        ("version = 1\n    def restore(self, saved): saved['x']", "KeyError"),
        (
            "version = 1\n    def restore(self, saved):\n        self.places = 7; raise OSError",
            "OSError",
        ),
    ],
)
def test_a_state_that_it_cannot_use_begins_anew(
    body: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "drive"
    with Drive.open(path, SHAPES) as media:
        time = layered(tmp_path, media)
        time.write(1, 0, MIB)
        keep(time, media)
    with Drive.open(path) as media:
        time = layered(tmp_path, media, body)
        assert mapped(time) == 0
        assert time.write(1, 0, 4096) > 0 and mapped(time) == 1
    (line,) = [one.message for one in caplog.records]
    assert "the modelled drive is empty" in line and said in line


def test_states_of_other_layers_and_of_1_0_begin_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "drive"
    used(path)
    with Drive.open(path) as media:
        time = layered(tmp_path, media)
        assert mapped(time) == 0 and "it is of the FTL page" in caplog.text
        time.write(1, 0, 4096)
        keep(time, media)
    caplog.clear()
    with Drive.open(path) as media:
        assert not (flash_of(started(media)).state.places >= 0).any()
    assert "it is not of the FTL page" in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        "1 / 0",
        "return None",
        "return [1]",
        "return {'a': 'text'}",
        "return {7: [1]}",
        "return {'a': [object()]}",
        "return {'../a': [1]}",
    ],
)
def test_a_state_that_cannot_be_saved_leaves_the_one_before(
    body: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "drive"
    with Drive.open(path, SHAPES) as media:
        time = layered(tmp_path, media)
        time.write(1, 0, 4096)
        keep(time, media)
    before = (path / "time.npz").read_bytes()
    with Drive.open(path) as media:
        keep(layered(tmp_path, media, f"version = 1\n    def save(self): {body}"), media)
    assert (path / "time.npz").read_bytes() == before
    assert "the state of the modelled drive is not kept: Mine: " in caplog.text


def test_a_damaged_state_of_a_layer_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Any array of it may be anything."""
    path = tmp_path / "drive"
    with Drive.open(path, SHAPES) as media:
        time = layered(tmp_path, media)
        for _ in range(3):
            time.write(1, 0, 8 * MIB)
        keep(time, media)
        assert isinstance(time.drive, CustomFtl)
        profile, whole = time.drive.profile, time.drive.save()
    random = np.random.default_rng(3)
    for name in whole:
        for value in (-2, -1, 1, 3, 1 << 40):
            damaged = {key: one.copy() for key, one in whole.items()}
            flat = damaged[name].reshape(-1)
            flat[random.integers(0, flat.size, 3)] += value
            fresh = PageMapped(profile)
            try:
                fresh.restore(damaged)
            except ValueError:
                continue
            fresh.run(_writes(fresh))  # what is taken works


def _writes(drive: PageMapped) -> np.ndarray[Any, Any]:
    found = np.zeros(300, timing.REQUEST)
    found["op"], found["count"] = timing.Op.WRITE, 64
    found["first"] = np.arange(300) * 64 % (drive.profile.logical_pages - 64)
    return found
