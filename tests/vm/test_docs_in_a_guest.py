"""Commands that pages show for a guest, typed into one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from potash.vm.drive import serving
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.docs import Block, shell_blocks, typed

BLOCKS = shell_blocks()
COMMANDS = sorted({words for block in BLOCKS for words in block.in_guests})
IN_A_GUEST = [block for block in BLOCKS if block.mark == "run in a guest"]


@pytest.fixture(scope="module")
def guest(images: GuestImages) -> Iterator[Guest]:
    with serving("--size", "64M", "--fdp", "4:8M") as socket, Guest(images, socket) as guest:
        guest.await_drive("/dev/nvme0n1")
        yield guest


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_what_is_given_to_a_guest_succeeds(guest: Guest, words: tuple[str, ...]) -> None:
    done = guest.capture([*words])
    assert done.code == 0 and done.stdout, done


@pytest.mark.parametrize("block", IN_A_GUEST, ids=str)
def test_what_is_typed_into_a_guest_succeeds(guest: Guest, block: Block) -> None:
    typed(guest, block.script)
