"""The table of events in `docs/admin.md` is that of the firmware."""

import re
from pathlib import Path

from potash_firmware.rpu.logs.alerts import NOTICES

PAGE = (Path(__file__).parents[2] / "docs" / "admin.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_notice_is_listed_with_its_page_and_its_bit() -> None:
    listed = {
        (int(page[:-1], 16), 1 << int(re.findall(r"bit (\d+)", bit)[0]))
        for kind, _, page, bit in rows("Asynchronous events")
        if kind == "notice"
    }
    assert listed == {(notice.log_page, notice.configured_by) for notice in NOTICES.values()}
