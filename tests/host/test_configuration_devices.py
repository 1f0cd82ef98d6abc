"""Devices that `potash serve` starts from a configuration file."""

import json
import subprocess
import sys
from pathlib import Path

import potash.sdk
from potash.vm.drive import device_process

EXAMPLE = Path(__file__).parents[2] / "examples" / "add"


def test_a_device_is_what_its_file_says(tmp_path: Path) -> None:
    file = tmp_path / "potash.toml"
    file.write_text(
        """
        [device]
        socket = "overridden"
        media = "drive"
        range_unit = "lba"
        [namespace.1]
        size = "16M"
        [namespace.2]
        size = "1M"
        block_size = 512
        [accelerator.0]
        [accelerator.1]
        input_size = "8K"
        output_size = "1M"
        [vta]
        LOG_BLOCK = 5
        """
    )
    socket = tmp_path / "s"
    with device_process(socket, "--config", str(file)):
        with potash.sdk.open(f"vfio-user:{socket}") as device:
            blocks = [namespace.identify().nsze for namespace in device.namespaces()]
            assert blocks == [(16 << 20) // 4096, (1 << 20) // 512]
            second = device.accelerators()[1]
            assert (second.input_size, second.output_size) == (8192, 1 << 20)
            result = device.accelerators()[0].run(
                EXAMPLE / "program.o", EXAMPLE / "input.bin", args=[520, 1024], timeout=60
            )
        assert result.output == (EXAMPLE / "expected.bin").read_bytes(), "32 channels a block"
    assert (tmp_path / "drive" / "namespaces.toml").is_file()
    assert not (tmp_path / "overridden").exists()


def test_a_device_says_where_it_is_as_its_file_told_it(tmp_path: Path) -> None:
    file = tmp_path / "potash.toml"
    zones = '[namespace.2]\nsize = "64M"\nzone_size = "16M"'
    file.write_text(f'[device]\nsocket = "named"\n[namespace.1]\nsize = 4097\n{zones}\n')
    command = [sys.executable, "-m", "potash.cli.main", "serve", "--json", "--config", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            report = json.loads(process.stdout.readline())
        finally:
            process.terminate()
    assert report["socket"] == str(tmp_path / "named")
    sizes = [namespace["size"] for namespace in report["namespaces"]]
    assert sizes == [4096, 64 << 20], "without a part of a block, and without records of zones"
    assert report["size"] == sum(sizes)
    assert process.returncode == 0
