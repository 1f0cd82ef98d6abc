"""The state of a modelled drive, which moves with a migration, or stays with a line in the log."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from potash_firmware.ftl import saving
from potash_firmware.ftl.custom import CustomFtl
from potash_firmware.ftl.drive import Drive
from potash_firmware.ftl.interface import Held
from potash_firmware.rpu.migration.saved import TIME, join, split
from potash_firmware.rpu.settings import RpuSettings
from potash_firmware.rpu.timing.modelled import TimeSettings
from support.extended import settings
from support.migration import load, save
from support.modelled_time import PROFILE, completions, modelled, timing_of
from support.nvme_host import DATA, PAGE, Host, Queue

WRITE, READ = 0x01, 0x02
PAGES = 6
MINE = """
    from potash.ftl import PageMapped

    @ftl
    class Mine(PageMapped):
        version = {version}

        def restore(self, saved):
            super().restore(saved)
            {restore}
"""


def custom(folder: Path, version: int | None = 1, restore: str = "pass") -> RpuSettings:
    folder.mkdir()
    found = settings(folder, MINE.format(version=version, restore=restore))
    assert found.extensions is not None
    drive = CustomFtl(found.extensions.ftls["Mine"], PROFILE)
    return replace(found, time=TimeSettings(drive, keeper=saving))


def built_in() -> RpuSettings:
    found = modelled()
    assert found.time is not None
    return replace(found, time=replace(found.time, keeper=saving))


@contextmanager
def written(given: RpuSettings) -> Iterator[Host]:
    """A drive with data in some pages."""
    with Host(settings=given) as host:
        host.enable()
        queue = host.create_io_queue()
        ask(host, queue, WRITE)
        yield host


def ask(host: Host, queue: Queue, opcode: int) -> None:
    """Have a command for each of the pages complete."""
    for page in range(PAGES):
        host.place(queue, opcode, page, nsid=1, prp1=DATA, cdws=(page, 0, 0))
    host.ring(queue)
    host.service()
    assert len(completions(host, queue)) == PAGES


def mapped(host: Host) -> int:
    return timing_of(host).drive.report.mapped // PAGE


def move(source: Host, target: Host, state: bytes) -> None:
    """`target` goes on with the state, and reads what was written."""
    target.memory.view[:] = source.memory.view
    target.admin, target.io = source.admin, source.io
    target.now = source.now
    load(target, state)
    ask(target, target.io[1], READ)


@pytest.mark.parametrize("kind", ["built-in", "custom"])
def test_the_modelled_drive_moves_with_its_state(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = [built_in() if kind == "built-in" else custom(tmp_path / one) for one in ("a", "b")]
    with written(made[0]) as source, Host(settings=made[1]) as target:
        assert mapped(target) == 0
        state = save(source)
        assert len(split(state)[TIME]) > 0
        move(source, target, state)
        assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []
        assert mapped(target) == PAGES
        assert timing_of(target).held == timing_of(source).held
        assert timing_of(target).drive.counters.senses > 0  # the pages are on its flash


def changed(**arrays: object) -> bytes:
    """The state of another drive, in parts another one."""
    file = io.BytesIO()
    saving.save(Drive(PROFILE), file, Held(((1, 0, 256),)))
    found = dict(np.load(io.BytesIO(file.getvalue())))
    file = io.BytesIO()
    np.savez(file, **found | arrays)
    return file.getvalue()


OTHER = json.dumps(asdict(replace(PROFILE, erase_ns=1))).encode()


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (b"", "was not moved"),  # as of version 1.0
        (b"nonsense", "it is damaged"),
        (changed(pieces=np.array([[1, 0, 9], [1, 3, 9]])), "overlap"),
        (changed(places=np.zeros(9)), "places has the wrong size"),
        (changed(profile=np.frombuffer(OTHER, np.uint8)), "it is of another drive"),
        (changed(custom=np.zeros(1)), "it is not of the FTL page"),
    ],
)
def test_a_drive_without_a_sound_state_is_as_it_was(
    state: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with written(built_in()) as source, Host(settings=built_in()) as target:
        sections = {name: bytes(part) for name, part in split(save(source)).items()}
        sections[TIME] = state
        move(source, target, join({name: [part] for name, part in sections.items()}))
        assert mapped(target) == 0
    (line,) = [one.message for one in caplog.records if one.levelno >= logging.WARNING]
    assert said in line and line.endswith("it is as when this device was started")


@pytest.mark.parametrize(
    ("version", "restore", "said"),
    [
        (None, "pass", "was not moved"),
        (2, "pass", "another FTL, or version of it"),
        (1, "1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_layer_that_does_not_take_its_state_goes_on_empty(
    version: int | None, restore: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = custom(tmp_path / "a"), custom(tmp_path / "b", version, restore)
    if version is None:  # of both
        made = custom(tmp_path / "c", None), made[1]
    with written(made[0]) as source, Host(settings=made[1]) as target:
        move(source, target, save(source))
        assert mapped(target) == 0
        ask(target, target.io[1], WRITE)
        assert mapped(target) == PAGES
    assert said in caplog.text


def test_a_drive_without_modelled_time_takes_the_rest() -> None:
    with written(built_in()) as source, Host() as target:
        state = save(source)
        target.memory.view[:] = source.memory.view
        target.admin, target.io = source.admin, source.io
        load(target, state)
        assert target.command(target.io[1], READ, nsid=1, prp1=DATA).status == 0
