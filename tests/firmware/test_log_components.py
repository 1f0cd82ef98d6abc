"""What the components say: by level, as text and as JSON, in every process of a device."""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import potash.sdk
from potash.cli.app import run_app
from potash.sdk.errors import PotashError
from potash_firmware.apu.config import AcceleratorConfig, Config
from potash_firmware.log_components import COMPONENTS, LogSettings, component_of
from support.apu import program
from support.bpf import exit_, insn, mov

LIMIT = 60
ROOT = Path(__file__).parents[2]

RETURN_7 = program(mov(0, 7), exit_)
FAULT = program(insn(0x79, dst=0, src=0), exit_)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """What has been written to standard error; loggers are as before afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    names = [package for packages in COMPONENTS.values() for package in packages]
    levels = {name: logging.getLogger(name).level for name in names}
    root.handlers.clear()  # which are pytest's, and must not be closed
    yield lambda: capsys.readouterr().err
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)


def test_every_module_that_logs_is_in_a_room() -> None:
    modules = [
        path.relative_to(ROOT / root).with_suffix("")
        for root in ("device", "firmware", "host")
        for path in (ROOT / root).rglob("*.py")
        if "getLogger(__name__)" in path.read_text()
    ]
    assert len(modules) > 20
    assert {component_of(".".join(module.parts)) for module in modules} <= set(COMPONENTS)


@pytest.mark.parametrize(
    ("logger", "component"),
    [
        ("potash_firmware.rpu.loop", "rpu"),
        ("potash_firmware.boot", "boot"),
        ("potash_device.media.drive", "media"),
        ("potash_device.board", "board"),
        ("potash_firmware.mailbox", "mailbox"),
        ("potash.cli.device.serve", "host"),
        ("potash_firmwares", "potash_firmwares"),
        ("asyncio", "asyncio"),
    ],
)
def test_the_longest_name_decides(logger: str, component: str) -> None:
    assert component_of(logger) == component


def test_each_room_has_its_level(said: Callable[[], str]) -> None:
    LogSettings("warning", {"rpu": "debug", "media": "error"}).apply("potash")
    for name in ("potash_firmware.rpu.loop", "potash_firmware.apu.jobs", "potash_device.media.x"):
        logging.getLogger(name).debug("%s debug", name)
        logging.getLogger(name).warning("%s warning", name)
    logging.getLogger("numba.core").info("somebody else's")
    lines = said().splitlines()
    stamp = r"\d\d:\d\d:\d\d\.\d{3} "
    assert [re.sub(stamp, "", line) for line in lines] == [
        "debug rpu: potash_firmware.rpu.loop debug",
        "warning rpu: potash_firmware.rpu.loop warning",
        "warning apu: potash_firmware.apu.jobs warning",
    ]
    assert all(re.match(stamp, line) for line in lines)


def test_json_has_what_is_known_and_says_how_it_failed(said: Callable[[], str]) -> None:
    LogSettings(format="json").apply("potash-apu")
    log = logging.getLogger("potash_firmware.apu.jobs")
    log.info(
        "two\nlines and a %s", "\u2028", extra={"known": {"accelerator": 3, "component": "liar"}}
    )
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("it went wrong")
    first, second = map(json.loads, said().splitlines())
    assert first["message"] == "two\nlines and a \u2028"
    assert (first["accelerator"], first["component"], first["level"]) == (3, "apu", "info")
    assert first["process"] == "potash-apu"
    assert "ValueError: no" in second["exception"]


def test_what_is_logged_cannot_command_a_terminal(said: Callable[[], str]) -> None:
    LogSettings().apply("potash-test")
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        logging.getLogger("potash_firmware.apu").exception("a worker sent %s", "\x1b[31m\nforged")
    shown = said()
    assert r"a worker sent \x1b[31m\nforged" in shown and r"ValueError: \x1b[2J" in shown
    assert "\x1b" not in shown


def test_applying_settings_again_doubles_nothing(said: Callable[[], str]) -> None:
    for _ in range(3):
        LogSettings().apply("potash")
    logging.getLogger("potash_firmware.rpu").info("once")
    assert said().count("once") == 1


@pytest.mark.parametrize(
    "wrong", [{"level": "loud"}, {"components": {"cellar": "info"}}, {"components": {"rpu": "x"}},
              {"format": "xml"}]
)  # fmt: skip
def test_settings_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="there is no"):
        LogSettings(**wrong)  # type: ignore[arg-type]  # which is what is tried


def test_the_apu_is_told(tmp_path: Path) -> None:
    config = Config(
        (AcceleratorConfig(0, 4096, 4096),), log=LogSettings("error", {"apu": "debug"}, "json")
    )
    descriptor = config.share()
    assert Config.adopt(descriptor).log == config.log
    os.close(descriptor)


def test_all_processes_of_a_device_say_it_as_they_are_told(tmp_path: Path) -> None:
    socket = tmp_path / "device.sock"
    command = [sys.executable, "-m", "potash.cli.main", "serve", "--json", "--size", "16M"]
    command += ["--log-format", "json", "--log-level", "error", "--log", "rpu=debug,apu=info"]
    with subprocess.Popen(
        [*command, "--log", "board=info", "--socket", str(socket)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as served:
        assert served.stdout is not None and served.stderr is not None
        served.stdout.readline()
        with potash.sdk.open(f"vfio-user:{socket}") as host:
            (accelerator,) = host.accelerators()
            accelerator.enable()
            accelerator.write_input(bytes(64))
            for image in (RETURN_7, FAULT):
                accelerator.send_firmware(image)
                accelerator.start(0)
                if image is FAULT:
                    with pytest.raises(PotashError):
                        accelerator.wait(LIMIT)
                else:
                    accelerator.wait(LIMIT)
        served.terminate()
        lines = [json.loads(line) for line in served.stderr]
        assert served.wait(LIMIT) == 0
    components = {(one["component"], one["process"]) for one in lines}
    assert components == {("rpu", "potash"), ("board", "potash"), ("apu", "potash-apu")}
    jobs = [one for one in lines if one["component"] == "apu"]
    assert [(one["result"], one["accelerator"], one["level"]) for one in jobs] == [
        ("failed", 0, "info")
    ], "one that has ended well is told at debug"
    assert len({one["pid"] for one in lines}) == 2


@pytest.mark.parametrize("wrong", ["rpu", "cellar=info", "rpu=loud", "rpu=debug,"])
def test_rooms_and_levels_that_there_are_not_are_a_wrong_use(
    wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["serve", "--socket", str(tmp_path / "x"), "--log", wrong]) == 2
    assert "--log" in capsys.readouterr().err
