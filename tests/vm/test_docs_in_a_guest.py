"""Commands that pages show for a guest, typed into one."""

from __future__ import annotations

import pytest

from potash.vm.guest import Guest
from support.docs import Block, shell_blocks, typed

pytestmark = pytest.mark.usefixtures("accelerator_path")

BLOCKS = shell_blocks()
COMMANDS = sorted({words for block in BLOCKS for words in block.in_guests})
IN_A_GUEST = [block for block in BLOCKS if block.mark == "run in a guest"]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_what_is_given_to_a_guest_succeeds(linux: Guest, words: tuple[str, ...]) -> None:
    done = linux.capture([*words])
    assert done.code == 0 and done.stdout, done


@pytest.mark.parametrize("block", IN_A_GUEST, ids=str)
def test_what_is_typed_into_a_guest_succeeds(linux: Guest, block: Block) -> None:
    typed(linux, block.script)
