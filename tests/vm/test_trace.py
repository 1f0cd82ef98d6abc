"""A guest's commands in a trace, as Linux sends them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.tracing import Viewed
from support.vm import PotashGuest

pytestmark = pytest.mark.usefixtures("images")


def test_a_guest_s_reads_are_all_there(tmp_path: Path, potash_guest: PotashGuest) -> None:
    out = tmp_path / "trace.json"
    read = "dd if=/dev/nvme0n1 of=/dev/null bs=64k count=16 iflag=direct status=none"
    done = potash_guest("--size", "16M", "--trace", out, "--", "sh", "-c", f"{read}; exit 7")
    assert (done.returncode, done.stdout) == (7, ""), done.stderr
    found = Viewed(out)
    found.check_nesting()
    found.check_arrows()
    reads = found.named("read", "device", "queue 1")
    places = {one.args["slba"] for one in reads if one.args["blocks"] == 16}
    assert places >= set(range(0, 256, 16))
    assert found.named("doorbell_buffer_config", "device", "admin queue")
    waits = found.one("asynchronous_event_request", "device", "admin queue, event requests")
    assert waits.args["status"] in ("unanswered", "ended by a reset")
