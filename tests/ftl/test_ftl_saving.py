"""Modelled drives that are saved and loaded, and files that hold none."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potash_device.flash.profile import Profile, Rate
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.interface import Held, ZoneStream
from potash_firmware.ftl.policies import PolicyError
from potash_firmware.ftl.requests import WORN, Op
from potash_firmware.ftl.saving import StateError, kept, load, load_held, save
from potash_firmware.ftl.state import IS_CLOSED, IS_FREE, IS_RETIRED
from support.drive_time import policies, problems, profiles, requests

KEYS_OF_1_0 = (
    *("channels", "dies", "planes", "blocks", "pages", "page_bytes", "program_pages", "capacity"),
    *("read_ns", "program_ns", "erase_ns", "bus", "link", "bus_command_ns", "short_read_ns"),
    *("suspend_ns", "submission_ns", "completion_ns", "cores", "read_command_ns"),
    *("short_read_command_ns", "read_page_ns", "write_command_ns", "write_page_ns"),
    *("other_command_ns", "buffer_bytes", "protected", "mapping_cache", "streams", "reserve"),
    *("background", "background_pages", "background_invalid", "cycles"),
)


def saved(drive: Drive) -> io.BytesIO:
    file = io.BytesIO()
    save(drive, file)
    file.seek(0)
    return file


@settings(max_examples=40, deadline=None)
@given(profiles(), st.integers(0, 1 << 20))
def test_a_loaded_drive_goes_on_as_the_saved_one(profile: Profile, seed: int) -> None:
    # What a file does not keep: the mapping's cache, and a victim half relocated.
    profile = replace(profile, mapping_cache=0, background=0)
    drive = Drive(profile, policies(0))
    try:
        drive.run(requests(profile, 300, seed))
        drive.rest()
        copy = load(saved(drive), policies(0))
        assert problems(profile, copy.state) == []
        assert copy.profile == profile
        more = requests(profile, 200, seed + 1)
        assert copy.run(more).tolist() == drive.run(more).tolist()
    except PolicyError as error:
        assert "frees nothing" in str(error)


@pytest.fixture
def written() -> Drive:
    drive = Drive(
        Profile(
            channels=1,
            dies=2,
            planes=1,
            blocks=12,
            pages=8,
            page_bytes=4096,
            program_pages=1,
            capacity=1 << 16,
            read_ns=(1,),
            program_ns=(1,),
            erase_ns=1,
            bus=Rate(1, 0),
            link=Rate(1, 0),
        )
    )
    drive.submit(0, Op.WRITE, 0, 16)
    drive.submit(0, Op.WRITE, 0, 4)
    return drive


@pytest.mark.parametrize(
    ("name", "index", "value", "expected"),
    [
        ("status", 0, 9, "superblocks"),
        ("status", 5, 1, "superblocks"),
        ("open", 0, 12, "superblocks"),
        ("open", 5, 1, "superblocks"),
        ("zone", 0, 5, "zones"),
        ("zone", 0, -2, "zones"),
        ("open", 1, 1, "superblocks"),
        ("filled", 0, 16, "superblocks"),
        ("filled", 0, -1, "superblocks"),
        ("erases", 3, -1, "superblocks"),
        ("erases", 3, 1 << 62, "superblocks"),
        ("closed_at", 3, 1 << 62, "superblocks"),
        ("places", 0, 12 * 16, "mapping"),
        ("places", 0, -2, "mapping"),
        ("places", 0, 17, "mapping"),  # page 1 is there
        ("places", 0, 16 + 4, "mapping"),  # behind what was filled
    ],
)
def test_a_state_that_contradicts_itself_is_refused(
    written: Drive, name: str, index: int, value: int, expected: str
) -> None:
    kept(written, name)[index] = value
    with pytest.raises(StateError, match=expected):
        load(saved(written))


def test_a_state_without_a_free_superblock_is_refused(written: Drive) -> None:
    written.state.status[written.state.status == IS_FREE] = IS_CLOSED
    with pytest.raises(StateError, match="superblocks"):
        load(saved(written))


def test_a_drive_whose_last_superblocks_have_retired_is_kept_as_a_worn_one(written: Drive) -> None:
    free = np.flatnonzero(written.state.status == IS_FREE)
    written.state.status[free] = IS_RETIRED
    loaded = load(saved(written))
    assert loaded.worn and loaded.good == written.profile.superblocks - len(free)
    assert loaded.submit(0, Op.WRITE, 0, 1) == WORN
    assert loaded.submit(0, Op.READ, 0, 1) > 0


def test_pieces_of_namespaces_are_kept_too(written: Drive) -> None:
    held = Held(((1, 0, 7), (3, 7, 2), (1, 9, 4)), (ZoneStream(3, 0, 4),))
    file = io.BytesIO()
    save(written, file, held)
    file.seek(0)
    assert load_held(file) == held
    assert load_held(saved(written)) == Held()
    arrays: dict[str, Any] = dict(np.load(io.BytesIO(file.getvalue())))
    for wrong in (np.zeros(3), np.zeros((1, 2), np.int64), np.zeros((1 << 20, 3), np.int64)):
        file = io.BytesIO()
        np.savez_compressed(file, **arrays | {"pieces": wrong})
        with pytest.raises(StateError):
            load_held(io.BytesIO(file.getvalue()))
    with pytest.raises(StateError):
        load_held(io.BytesIO(b"no file of NumPy's"))


def test_a_file_of_version_1_0_is_loaded_as_it_was(written: Drive) -> None:
    file = io.BytesIO()
    save(written, file, Held(((1, 0, 7), (2, 7, 9))))
    arrays: dict[str, Any] = dict(np.load(io.BytesIO(file.getvalue())))
    for later in ("zone", "mode", "born", "reads", "handles", "bad", "zones"):
        del arrays[later]
    for name in ("open", "filled"):  # of one stream, the mapping, and relocated pages
        arrays[name] = arrays[name][:3]
    profile = json.loads(arrays["profile"].tobytes())
    profile = {key: profile[key] for key in KEYS_OF_1_0}
    arrays["profile"] = np.frombuffer(json.dumps(profile).encode(), np.uint8)
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    file.seek(0)
    loaded = load(file)
    assert loaded.profile == written.profile
    assert problems(loaded.profile, loaded.state) == []
    assert loaded.state.places.tolist() == written.state.places.tolist()
    file.seek(0)
    assert load_held(file) == Held(((1, 0, 7), (2, 7, 9)))
    written.rest()
    more = requests(written.profile, 200, 1)
    assert loaded.run(more).tolist() == written.run(more).tolist()


def test_damaged_files_are_refused(written: Drive) -> None:
    good = saved(written).getvalue()
    for data in (b"", b"drive", good[:100], good[: len(good) // 2], good[:-30]):
        with pytest.raises(StateError):
            load(io.BytesIO(data))
    arrays: dict[str, Any] = dict(np.load(io.BytesIO(good)))
    for change in (
        {"places": arrays["places"][:-1]},
        {"places": arrays["places"].astype(np.int64)},
        {"erases": np.zeros(1 << 20, np.int64)},
        {"profile": np.frombuffer(b'{"channels": 1}', np.uint8)},
        {"profile": np.frombuffer(b"[]", np.uint8)},
        {"status": np.array(None)},
    ):
        file = io.BytesIO()
        np.savez_compressed(file, **arrays | change)
        with pytest.raises(StateError):
            load(io.BytesIO(file.getvalue()))


@pytest.mark.parametrize("name", ["pieces", "profile", "places"])
@pytest.mark.parametrize(
    ("found", "instead"),
    [
        (b"}", b"("),  # Python's tokenizer meets the end of the file
        (b"'shape': (", b"'shape': (9999999999999,"),  # 80 TB
        (b"\x93NUMPY", b"\x00NUMPY"),  # read as bytes, as those of no array
    ],
)
def test_a_header_that_claims_anything_is_refused(
    written: Drive, name: str, found: bytes, instead: bytes
) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(saved(written)) as good, zipfile.ZipFile(file, "w") as changed:
        for one in good.namelist():
            data = good.read(one)
            if one == f"{name}.npy":
                assert found in data
                data = data.replace(found, instead, 1)
                if len(instead) > len(found):  # in the place of blanks
                    data = data.replace(b" " * (len(instead) - len(found)), b"", 1)
            changed.writestr(one, data)
    with pytest.raises(StateError):
        (load_held if name == "pieces" else load)(io.BytesIO(file.getvalue()))


def test_a_file_with_wrong_bytes_is_refused_or_a_sound_drive(written: Drive) -> None:
    good, random = saved(written).getvalue(), Random(1)
    refused = 0
    for _ in range(1500):
        data = bytearray(good)
        for _ in range(random.choice([1, 2, 5])):
            # Most of what matters to the container are its directory and its headers.
            at = random.choice([random.randrange(len(data)), -random.randrange(1, 600)])
            data[at] = random.randrange(256)
        try:
            drive = load(io.BytesIO(data))
        except StateError as error:
            assert str(error).startswith("this is no state of a drive: ")
            assert "\n" not in str(error)
            refused += 1
        else:
            assert problems(drive.profile, drive.state) == []
            drive.run(requests(drive.profile, 20, 1))
            assert problems(drive.profile, drive.state) == []
    assert refused > 1000
