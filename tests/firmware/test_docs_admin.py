"""The tables of `docs/admin.md` are those of the firmware."""

import re
from pathlib import Path

from nvme_spec.features import FeatureId
from potash_firmware.rpu.admin.identify import _STRUCTURES
from potash_firmware.rpu.alerts import NOTICES
from potash_firmware.rpu.feature_table import FEATURES

PAGE = (Path(__file__).parents[2] / "docs" / "admin.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_feature_is_listed_as_it_is() -> None:
    def name(fid: int) -> str:
        return FeatureId(fid).name.replace("_", " ").lower()

    listed = {
        int(fid[:-1], 16): (words.lower().replace("i/o", "io"), scope, outlives)
        for fid, words, scope, outlives, _ in rows("Features")
    }
    assert listed == {
        int(fid): (
            name(fid),
            "namespace" if feature.namespace_specific else "controller",
            "saved" if feature.saveable else "kept" if feature.persistent else "–",
        )
        for fid, feature in FEATURES.items()
    }


def test_every_structure_of_identify_is_listed() -> None:
    listed = {int(cns[:-1], 16) for cns, _, _ in rows("Identify")}
    assert listed <= set(_STRUCTURES)
    assert {cns for cns in _STRUCTURES if cns not in range(0x10, 0x14)} <= listed


def test_every_notice_is_listed_with_its_page_and_its_bit() -> None:
    listed = {
        (int(page[:-1], 16), 1 << int(re.findall(r"bit (\d+)", bit)[0]))
        for kind, _, page, bit in rows("Asynchronous events")
        if kind == "notice"
    }
    assert listed == {(notice.log_page, notice.configured_by) for notice in NOTICES.values()}
