"""A guest's commands in a trace, as Linux sends them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.tracing import Viewed

LIMIT = 120.0

pytestmark = pytest.mark.usefixtures("images")


def test_a_guest_s_reads_are_all_there(tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    read = "dd if=/dev/nvme0n1 of=/dev/null bs=64k count=16 iflag=direct status=none"
    command = [sys.executable, "-m", "potash.cli.main", "guest", "--size", "16M"]
    done = subprocess.run(
        [*command, "--trace", str(out), "--", "sh", "-c", f"{read}; exit 7"],
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, b""), done.stderr
    found = Viewed(out)
    found.check_nesting()
    found.check_arrows()
    reads = found.named("read", "device", "queue 1")
    places = {one.args["slba"] for one in reads if one.args["blocks"] == 16}
    assert places >= set(range(0, 256, 16))
    assert found.named("doorbell_buffer_config", "device", "admin queue")
    waits = found.one("asynchronous_event_request", "device", "admin queue, event requests")
    assert waits.args["status"] in ("unanswered", "ended by a reset")
