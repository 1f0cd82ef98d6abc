"""A device with a key value namespace: the commands of kv.md, the mapping, and what is durable."""

import contextlib
import errno
import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from potash import sdk
from potash.cli.app import run_app
from potash.sdk import CommandFailed, DeviceGone, InvalidRequest
from potash.sdk.kv_namespace import KeyValueNamespace
from potash.sdk.memory_namespace import Bytes
from potash.sdk.vfio_user import VfioUserTransport
from potash.vm.drive import device_process
from support.docs import ROOT, blocks, run_python, run_shell
from support.processes import descendants, descriptors

EXAMPLES, PAGE = ROOT / "examples", 4096


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a device, which listens at S."""
    made = tmp_path_factory.mktemp("kv")
    with device_process(made / "S", "--size", "1M", "--kv-namespace", "8M"):
        yield made


@pytest.fixture
def values(folder: Path) -> Iterator[KeyValueNamespace]:
    with sdk.open(f"vfio-user:{folder / 'S'}", queue_depth=8) as device:
        found = device.kv_namespace()
        for key in found:
            del found[key]
        yield found


def test_the_commands_of_the_page_run(folder: Path, values: KeyValueNamespace) -> None:
    values.device.transport.close()
    said = run_shell(blocks("kv.md", "sh")[1], cwd=folder)
    assert said.splitlines() == [
        *("hello", "greeting", "written: 1 values, 6 bytes", "stored: 1 values"),
    ]
    assert json.loads((folder / "pairs.jsonl").read_text()) == {
        "key": "greeting",
        "value": "aGVsbG8K",
    }
    code = blocks("kv.md", "python")[0]
    printed = run_python(code, replace={"vfio-user:S": f"vfio-user:{folder / 'S'}"}).splitlines()
    assert printed == [
        "b'hello' False [b'greeting']",
        "Retrieved(data=b'h', size=2)",
        f"10 of {8 << 20}",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["get", "S", "absent", "-"], "key absent does not exist"),
        (["delete", "S", "hex:00ff"], "key hex:00ff does not exist"),
        (["put", "S", "absent", "kv", "--must-exist"], "key absent does not exist"),
        (["load", "S", "kv"], "kv, line 2: it is not an object with a key and a value in base64"),
        (["list", "S", "-n", "1"], "no kv namespace 1; potash serve --kv-namespace makes one"),
        (["get", "S", "more than 16 bytes", "-"], "a key has 1 to 16 bytes"),
        (["get", "S", "hex:0", "-"], "is not hex:BYTES"),
    ],
)
def test_a_wrong_use_is_a_sentence(
    folder: Path,
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    Path("kv").write_text('{"key": "a", "value": ""}\n{"key": "a", "value": 1}\n')
    assert run_app(["kv", *arguments]) != 0
    assert said in capsys.readouterr().err


def test_keys_and_sizes_are_reported(
    values: KeyValueNamespace, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values.store_all([(b"b", b"1"), (b"\0", b"22"), (b"hex:", b"")])
    values.device.transport.close()
    assert run_app(["kv", "list", str(folder / "S"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "nsid": 2,
        "size": 8 << 20,
        "used": 9,
        "max_value": 512 << 10,
        "keys": ["hex:00", "b", "hex:6865783a"],
    }


def test_the_namespace_is_a_mapping(values: KeyValueNamespace) -> None:
    chosen = random.Random(7)
    model: dict[bytes, bytes] = {}
    for step in range(300):
        key = bytes(chosen.choices(b"abc", k=chosen.choice((1, 2, 16))))
        if chosen.random() < 0.6:
            model[key] = values[key] = step.to_bytes(2, "big") * chosen.choice((0, 1, 2048, 9000))
        elif key in model:
            del model[key]
            del values[key]
        else:
            assert key not in values and values.get(key) is None
            with pytest.raises(KeyError):
                del values[key]
    assert values == model
    assert list(values) == sorted(model)
    assert len(values) == len(model) and values
    assert values.used == sum(len(key) + len(value) for key, value in model.items())
    values.clear()
    assert not values and list(values) == []


def test_many_keys_take_several_lists(values: KeyValueNamespace) -> None:
    pairs = {number.to_bytes(2, "big"): b"" for number in range(2000)}
    assert values.store_all(pairs.items()) == 2000
    assert len(values.list_keys(size=4096)) == 4092 // 4
    assert list(values) == list(pairs)
    assert list(values.keys_from(b"\7\xcd")) == [b"\7\xcd", b"\7\xce", b"\7\xcf"]


def test_options_and_impossible_keys(values: KeyValueNamespace) -> None:
    with pytest.raises(KeyError):
        values.store(b"k", b"", must_exist=True)
    values.store(b"k", b"value", must_not_exist=True)
    with pytest.raises(CommandFailed, match="Store failed: Key Exists"):
        values.store(b"k", b"", must_not_exist=True)
    assert values.retrieve(b"k", 0) == (b"", 5)
    assert b"" not in values and bytes(17) not in values
    with pytest.raises(InvalidRequest, match="a key has at most 16 bytes, not 17"):
        values[bytes(17)] = b""
    with pytest.raises(CommandFailed, match="Invalid Key Size"):
        values[b""] = b""
    with pytest.raises(CommandFailed, match="Invalid Value Size"):
        values[b"k"] = bytes((512 << 10) + 1)
    values[b"k"] = bytes(512 << 10)
    assert values[b"k"] == bytes(512 << 10)


class Writer:
    """A host that stores and deletes until its device is gone; it knows what each key may have."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.acknowledged: dict[bytes, bytes | None] = {}
        self.under_way: dict[bytes, bytes | None] = {}

    def write_until_gone(self, values: KeyValueNamespace) -> None:
        with contextlib.suppress(DeviceGone):
            while True:
                key = b"%d" % self.random.randrange(40)
                size = self.random.choice((0, 10, 5000, 100_000))
                value = self.random.randbytes(4) * (size // 4)
                stores = self.random.random() < 0.8
                self.under_way = {key: value if stores else None}
                if stores:
                    values[key] = value
                else:
                    values.pop(key, None)
                self.acknowledged |= self.under_way
                if self.random.random() < 0.1:
                    values.flush()

    def check(self, values: KeyValueNamespace) -> None:
        """Verify what is there, and go on from that."""
        found = dict(values)
        for key, value in self.acknowledged.items():
            assert found.get(key) in (value, self.under_way.get(key, value)), key
        assert set(found) <= {*self.acknowledged, *self.under_way}
        assert values.used == sum(len(key) + len(value) for key, value in found.items())
        self.acknowledged = {**dict.fromkeys(self.acknowledged), **found}
        self.under_way = {}


@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_a_killed_device_loses_nothing_that_it_acknowledged(tmp_path: Path, kills: int) -> None:
    socket, writer = tmp_path / "s", Writer(kills)
    options = ["--media", str(tmp_path / "drive"), "--namespace", "1M", "--kv-namespace", "64M"]
    for _ in range(kills):
        with (
            device_process(socket, *options) as process,
            sdk.open(f"vfio-user:{socket}") as device,
        ):
            values = device.kv_namespace()
            writer.check(values)
            writing = threading.Thread(target=writer.write_until_gone, args=[values])
            writing.start()
            time.sleep(0.05 + writer.random.random() / 2)
            process.send_signal(signal.SIGKILL)
            writing.join()
            process.wait()
    with device_process(socket, *options), sdk.open(f"vfio-user:{socket}") as device:
        values = device.kv_namespace()
        writer.check(values)
        assert writer.acknowledged


def test_a_drive_with_values_is_opened_again(tmp_path: Path) -> None:
    """In one file, which Linux tools read as it is, and read-only."""
    socket, image = tmp_path / "s", tmp_path / "image"

    def opened(*options: str) -> contextlib.AbstractContextManager[object]:
        return device_process(socket, "--media", str(image), *options)

    target = f"vfio-user:{socket}"
    with opened("--size", "1M", "--kv-namespace", "1M:1K"), sdk.open(target) as device:
        device.write(0, b"block   " * 512)
        device.kv_namespace()[b"k"] = b"value"
    assert sorted(path.name for path in tmp_path.iterdir() if "values" in path.name) == [
        "image.values-2"
    ]
    with opened("--kv-namespace", "1M:1K"), sdk.open(target) as device:
        assert device.kv_namespace()[b"k"] == b"value"
    with opened("--read-only"), sdk.open(target) as device:
        assert device.kv_namespace()[b"k"] == b"value"
        with pytest.raises(CommandFailed, match="Namespace Write Protected"):
            device.kv_namespace()[b"k"] = b"other"
    assert image.read_bytes().startswith(b"block   ")
    with opened(), sdk.open(target) as device:
        device.admin(0x0D, nsid=2, cdw10=1)
    assert not (tmp_path / "image.values-2").exists()
    assert image.read_bytes().startswith(b"block   ")


def test_values_that_are_gone_or_others_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    socket, media = str(tmp_path / "s"), tmp_path / "drive"
    media.mkdir()
    with device_process(tmp_path / "s", "--media", str(media), "--kv-namespace", "1M"):
        pass

    def refused(*options: str) -> str:
        assert run_app(["serve", "--socket", socket, "--media", str(media), *options]) == 1
        (said,) = capsys.readouterr().err.splitlines()
        return said

    assert "or others with keys" in refused("--kv-namespace", "1M:1K")
    path = media / "namespace-2.values"
    path.write_bytes(b"no database, but something else" * 400)
    assert f"cannot use the values in {path}" in refused()
    path.unlink()
    assert f"cannot use the values in {path}" in refused()
    assert run_app(["serve", "--socket", socket, "--kv-namespace", "1M:1M"]) == 2
    assert run_app(["serve", "--socket", socket, "--kv-namespace", "0"]) == 2


def test_values_move_to_another_process(tmp_path: Path) -> None:
    media, sockets = ("--media", str(tmp_path / "image")), (tmp_path / "a", tmp_path / "b")
    with (
        device_process(sockets[0], *media, "--size", "1M", "--kv-namespace", "1M"),
        device_process(sockets[1], *media, "--incoming"),
        sdk.open(f"vfio-user:{sockets[0]}") as device,
    ):
        values = device.kv_namespace()
        values[b"before"] = b"value"
        cast(VfioUserTransport, device.transport).move(str(sockets[1]))
        assert dict(values) == {b"before": b"value"}
        values[b"after"] = b"other"
    with device_process(sockets[0], *media), sdk.open(f"vfio-user:{sockets[0]}") as device:
        assert dict(device.kv_namespace()) == {b"before": b"value", b"after": b"other"}


@pytest.fixture(scope="module")
def with_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The device of the page's programs."""
    socket = tmp_path_factory.mktemp("programs") / "S"
    options = ("--kv-namespace", "64M", "--memory-namespace", "1M", "--compute-namespace")
    with device_process(socket, *options):
        yield f"vfio-user:{socket}"


def test_the_programs_of_the_page_run(with_programs: str) -> None:
    copied, read = blocks("kv.md", "python")[1:]
    place = {"vfio-user:S": with_programs}
    said = run_python(copied, replace=place).splitlines()
    assert said == ["CopiedValues(values=1000, size=8000) 10 (990,)", "499500"]
    assert run_python(read, replace=place).splitlines() == ["80 (990, 991)"]


def test_a_program_s_reads_take_modelled_time_and_are_traced(tmp_path: Path) -> None:
    options = ("--size", "64M", "--kv-namespace", "8M", "--time", "modelled")
    image = (EXAMPLES / "filter" / "values.o").read_bytes()
    with (
        device_process(tmp_path / "S", *options, "--trace", str(tmp_path / "trace.json")),
        sdk.open(f"vfio-user:{tmp_path / 'S'}") as device,
    ):
        values = device.kv_namespace()
        for number in range(20):  # more than the write buffer has
            values[b"%d" % number] = number.to_bytes(4, "little") * 10_000
        ran = device.accelerator().run(image, bytes(4), args=[values.nsid, 0, 5, 9])
        assert ran.status.return_value == 5 * 40_000
        assert ran.status.modelled > 10 * 50_000  # reads of flash
    traced = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    events = Counter(event["name"] for event in traced if event["ph"] == "X")
    assert (events["kv_retrieve"], events["kv_list"]) == (20, 2)
    assert events["ReadJobValue"] == events["JobValueRead"] == 2 * 22  # sent, and received


def test_no_process_but_the_device_has_the_store(tmp_path: Path) -> None:
    image = (EXAMPLES / "filter" / "values.o").read_bytes()
    options = ("--media", str(tmp_path), "--namespace", "1M", "--kv-namespace", "1M")
    with (
        device_process(tmp_path / "S", *options) as process,
        sdk.open(f"vfio-user:{tmp_path / 'S'}") as device,
    ):
        values = device.kv_namespace()
        values[b"k"] = bytes(4)
        assert device.accelerator().run(image, bytes(4), args=[values.nsid, 0, 0, 0]).output
        store = str(tmp_path / "namespace-2.values")
        holders = [
            pid
            for pid in (process.pid, *descendants(process.pid))
            if any(path.startswith(store) for path in descriptors(pid))
        ]
        assert holders == [process.pid]


@pytest.mark.parametrize("size", [8, 5000])
def test_programs_read_values_as_a_host_does(with_programs: str, size: int) -> None:
    """The example, on an accelerator and in a compute namespace, against plain Python."""
    chosen, image = random.Random(size), (EXAMPLES / "filter" / "values.o").read_bytes()
    with sdk.open(with_programs) as device:
        values, memory, compute = (
            device.kv_namespace(), device.memory_namespace(), device.compute_namespace(),
        )  # fmt: skip
        values.clear()
        keys = {chosen.randbytes(chosen.randrange(1, 17)) for _ in range(100)} | {b"k" * 16}
        values.store_all((key, chosen.randbytes(chosen.randrange(size))) for key in keys)
        expected = b""
        for _, value in sorted(values.items()):
            if len(value) >= 6 and 1 << 30 <= int.from_bytes(value[2:6], "little") <= 3 << 30:
                expected += value
        arguments = values.nsid, 2, 1 << 30, 3 << 30
        ran = device.accelerator().run(image, bytes(4), args=arguments)
        assert (ran.status.return_value, ran.output[: len(expected)]) == (len(expected), expected)
        compute.load(index := compute.free_index(), image)
        ranges = [Bytes(memory.nsid, 0, PAGE), Bytes(memory.nsid, PAGE, 1 << 19)]
        parameters = arguments[0] | arguments[1] << 32, arguments[2] | arguments[3] << 32
        assert compute.execute(index, ranges, parameters=parameters) == len(expected)
        assert memory.read(PAGE, len(expected)) == expected
        absent = compute.execute(index, ranges, parameters=(1, 0))
        assert absent == (1 << 64) - errno.ENODEV
