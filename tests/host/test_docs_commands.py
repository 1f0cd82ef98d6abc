"""The session that `docs/commands.md` shows, typed into a shell: its numbers must be the
device's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import potash.sdk
from support.accelerator_flow import EXAMPLE, check_step, steps
from support.nvme_cli import nvme_cli


def test_the_example_command_flow_step_by_step(drive: str, tmp_path: Path) -> None:
    assert len(steps()) == 8
    work = tmp_path / "work"
    shutil.copytree(EXAMPLE, work)
    with potash.sdk.open(drive) as device, nvme_cli(device, tmp_path) as path:
        for number, step in enumerate(steps(), start=1):
            subprocess.run(
                ["sh", "-ec", step],
                cwd=work,
                env={**os.environ, "PATH": path},
                timeout=60,
                check=True,
            )
            check_step(number, lambda name: (work / name).read_bytes())
