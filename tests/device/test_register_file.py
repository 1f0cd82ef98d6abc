"""The NVMe register module: what the host stores, and what the firmware is told of it."""

from nvme_spec.registers import Capabilities, Register
from potash_device.controller.interrupts import InterruptLines
from potash_device.controller.registers import RegisterFile

FIVE_PAIRS = 5
"""The platform's own number of queue pairs, whose doorbells end at 1028h."""


def make(vectors: int = 40, *, maskable: bool = False) -> tuple[RegisterFile, list[int]]:
    fired: list[int] = []
    lines = InterruptLines(vectors)
    lines.master(True)

    def signal(vector: int) -> bool:
        fired.append(vector)
        return True

    lines.connect(signal)
    return RegisterFile(Capabilities(mqes_z=0xFFF), FIVE_PAIRS, lines, maskable=maskable), fired


def test_each_host_write_is_in_the_fifo_in_order_and_none_is_lost() -> None:
    registers, _ = make()
    registers.host_write(0x14, (0x460001).to_bytes(4, "little"))
    registers.host_write(0x28, (0x1_2345_6000).to_bytes(8, "little"))
    for tail in range(1000):
        registers.host_write(0x1000, tail.to_bytes(4, "little"))
    offsets = [write.offset for write in registers.host_writes]
    assert offsets == [0x14, 0x28, 0x2C] + [0x1000] * 1000
    assert registers.read(Register.ASQ) == 0x1_2345_6000


def test_what_is_behind_the_doorbells_is_reserved() -> None:
    registers, _ = make()
    registers.host_write(0x1028, b"\xff\xff\xff\xff")
    assert not registers.host_writes
    assert registers.host_read(0x1028, 4) == bytes(4)


def test_read_only_bits_stay_and_status_bits_clear_by_one() -> None:
    registers, _ = make()
    registers.host_write(0x00, b"\xff" * 8)
    registers.host_write(0x24, b"\xff" * 4)
    assert registers.host_read(0x00, 8) == (0xFFF).to_bytes(8, "little")
    assert registers.host_read(0x24, 4) == (0x0FFF_0FFF).to_bytes(4, "little")
    registers.write(Register.CSTS, 0x11)
    registers.host_write(0x1C, (0x11).to_bytes(4, "little"))
    assert registers.read(Register.CSTS) == 0x01


def test_a_subsystem_reset_register_reads_as_zero() -> None:
    """NSSRC (Base 2.0, section 3.1.3.7); the firmware finds what was written in the FIFO."""
    registers, _ = make()
    registers.host_write(0x20, (0x4E56_4D65).to_bytes(4, "little"))
    assert registers.host_read(0x20, 4) == bytes(4)
    assert registers.host_writes.popleft() == (0x20, 0x4E56_4D65)


def test_mask_registers_hold_vectors_back_until_they_are_cleared() -> None:
    """INTMS and INTMC both read as the mask (Base 2.0, section 3.1.3.3 and 3.1.3.4)."""
    registers, fired = make(maskable=True)
    lines = registers.interrupts
    registers.host_write(0x0C, (0b1101).to_bytes(4, "little"))
    registers.host_write(0x0C, (0b0010).to_bytes(4, "little"))
    registers.host_write(0x10, (0b1000).to_bytes(4, "little"))
    assert registers.host_read(0x0C, 8) == (0b0111).to_bytes(4, "little") * 2
    for vector in (0, 1, 3, 0):
        lines.fire(vector)
    assert fired == [3]
    registers.host_write(0x10, (0b0011).to_bytes(4, "little"))
    assert fired == [3, 0, 1]
    lines.fire(2)
    registers.reset()
    assert fired == [3, 0, 1, 2]
    assert registers.host_read(0x0C, 8) == bytes(8)


def test_without_msi_there_are_no_mask_registers() -> None:
    registers, fired = make()
    registers.host_write(0x0C, b"\xff" * 4)
    assert registers.host_read(0x0C, 8) == bytes(8)
    registers.interrupts.fire(0)
    assert fired == [0]


def test_accesses_that_are_not_whole_dwords_have_no_effect() -> None:
    registers, _ = make()
    for offset, data in (
        (0x15, b"\x01\0\0\0"),
        (0x14, b"\x01"),
        (0x14, b"\x01\0"),
        (0x16, b"\1\0"),
    ):
        registers.host_write(offset, data)
    assert registers.read(Register.CC) == 0
    assert not registers.host_writes


def test_a_reset_forgets_what_was_written_and_not_yet_seen() -> None:
    registers, _ = make()
    registers.host_write(0x14, (1).to_bytes(4, "little"))
    registers.reset()
    assert registers.read(Register.CC) == 0
    assert not registers.host_writes
