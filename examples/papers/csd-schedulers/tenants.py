"""A program for each tenant, of the same work; the first tenant's is the most urgent."""

from collections.abc import Sequence

from potash.extend import device_program


def work(ranges: Sequence[memoryview], parameters: tuple[int, int], data: bytes) -> int:
    """Nothing; on the modelled drive it takes 1 ns for each byte of its range."""
    return 0


for number in range(4):
    device_program(name=f"Tenant {number}", run_time=f"per_byte=1ns,priority={3 - number}")(work)
