"""The command line and a host in C on memory and compute namespaces, under the stock driver."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from potash.bench import tables
from potash.programs.examples import Example
from potash.sdk.progress import silent
from potash.vm.guest import Guest
from potash.vm.images import GuestImages
from support.checksums import crc32c_bitwise
from support.compute_programs import SUM
from support.docs import blocks
from support.vm import LIMIT, built, each, shell

pytestmark = pytest.mark.usefixtures("accelerator_path")


def test_a_host_in_c_keeps_executions_in_flight(linux: Guest, tmp_path: Path) -> None:
    built("queue", tmp_path)
    linux.copy_in(tmp_path, "/tmp/queue")
    shell(linux, "head -c 4096 /dev/zero | potash slm write /dev/ng0n2 -")
    queue = "/tmp/queue/queue /dev/ng0n2 /dev/ng0n3"
    assert shell(linux, f"{queue} 300") == f"returned {crc32c_bitwise(bytes(4096))}\n"
    done = linux.capture(["sh", "-c", f"{queue} 70 200"], timeout=LIMIT)
    assert (done.code, b"execution 0 ends with" in done.stderr) == (1, True)


def test_a_host_in_c_runs_a_program(linux: Guest, tmp_path: Path) -> None:
    example = Example.load("add")
    built("execute", tmp_path)
    (tmp_path / "program.o").write_bytes(example.program)
    (tmp_path / "input").write_bytes(example.input)
    linux.copy_in(tmp_path, "/tmp/c")
    first, second = (int.from_bytes(one, "little") for one in example.arguments)
    execute = "./execute /dev/nvme0 /dev/ng0n2 /dev/ng0n3 program.o"
    assert execute in blocks("examples.md", "sh")[-1]
    said = shell(
        linux, f"cd /tmp/c; {execute} input output {len(example.expected)} {second << 32 | first}"
    )
    assert said == "returned 0\n"
    linux.copy_out("/tmp/c/output", tmp_path / "output")
    assert (tmp_path / "output").read_bytes() == example.expected


def test_an_application_of_the_computational_storage_api_reads_no_blocks(
    linux: Guest, tmp_path: Path
) -> None:
    built("checksum_cs", tmp_path)
    (tmp_path / "data").write_bytes(data := random.Random(40).randbytes(300 * 4096))
    linux.copy_in(tmp_path, "/tmp/cs")
    shell(linux, "dd if=/tmp/cs/data of=/dev/nvme0n1 bs=4096 seek=700 conv=fsync")
    command = "./checksum_cs /dev/nvme0n1 702 298"
    assert command in blocks("computational.md", "sh")[3]
    assert shell(linux, f"cd /tmp/cs; {command}") == f"{crc32c_bitwise(data[8192:]):08x}\n"
    done = linux.capture(["/tmp/cs/checksum_cs", "/dev/nvme0n1", "0", "5000"], timeout=LIMIT)
    assert (done.code, done.stderr) == (1, b"csAllocMem: status 25\n")


def test_uses_of_the_computational_storage_api_have_its_statuses(
    linux: Guest, tmp_path: Path
) -> None:
    built("computational_api", tmp_path, Path(__file__).parent)
    linux.copy_in(tmp_path, "/tmp/api")
    assert shell(linux, "/tmp/api/computational_api") == "end\n"


def test_the_command_line_copies_a_file_and_runs_a_program_on_it(
    linux: Guest, tmp_path: Path
) -> None:
    """A file of a file system on the drive: its bytes do not come to the host before it runs."""
    example = Example.load("add")
    (tmp_path / "program.o").write_bytes(example.program)
    (tmp_path / "input").write_bytes(example.input)
    linux.copy_in(tmp_path, "/tmp/cli")
    first, second = (int.from_bytes(one, "little") for one in example.arguments)
    shell(linux, "mkfs.ext4 -q /dev/nvme0n1; mount /dev/nvme0n1 /mnt; cp /tmp/cli/input /mnt")
    slm, cp = ("potash", "slm"), ("potash", "cp")
    created, copy, _ = done = each(
        linux,
        (*cp, "ranges", "create", "/dev/ng0n3", "64K:4K", "128K:4K"),
        (*slm, "copy", "/dev/nvme0n1", "--file", "/mnt/input", "--offset", "64K", "--json"),
        (*cp, "load", "/dev/nvme0", "/tmp/cli/program.o", "--index=12", "--identifier=0x77"),
    )
    shell(linux, "umount /mnt")
    ranges = created.stdout.decode().strip()
    values, output = f"--param={second << 32 | first}", ("/tmp/cli/output", "--offset=128K")
    done += each(
        linux,
        (*cp, "execute", "/dev/nvme0n1", "--index=12", f"--ranges={ranges}", values, "--json"),
        (*slm, "read", "/dev/ng0n2", *output, f"--data-len={len(example.expected)}"),
        (*cp, "list", "/dev/nvme0", "--json"),
        (*cp, "ranges", "delete", "/dev/nvme0", ranges),
        (*cp, "deactivate", "/dev/nvme0", "--index=12"),
        (*cp, "unload", "/dev/nvme0", "--index=12"),
    )
    assert [one.code for one in done] == [0] * 9, done
    copied, executed, listed = (json.loads(one.stdout) for one in (copy, done[3], done[5]))
    assert copied == {"nsid": 2, "start": 65536, "length": len(example.input)}
    assert executed.pop("measured_ns") > 0
    assert executed == {"nsid": 3, "index": 12, "return_value": 0, "modelled_ns": None}
    (loaded,) = [one for one in listed["programs"] if not one["built_in"]]
    assert loaded == {
        "index": 12, "built_in": False, "active": True, "type": 0xC0, "identifier": 0x77
    }  # fmt: skip
    linux.copy_out("/tmp/cli/output", tmp_path / "output")
    assert (tmp_path / "output").read_bytes() == example.expected


def test_a_table_is_queried_in_its_file_system(linux: Guest, tmp_path: Path) -> None:
    """By the file's name alone, on an accelerator and in a compute namespace."""
    source = random.Random(7)
    table = pa.table(
        {
            "price": [source.choice([None, 1.5, 99.5, 250.25]) for _ in range(30_000)],
            "region": source.choices(["EU", "US"], k=30_000),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=10_000)
    (tmp_path / "text").write_bytes(bytes(5000))
    linux.copy_in(tmp_path, "/tmp/table")
    shell(linux, "mkfs.ext4 -q /dev/nvme0n1; mount /dev/nvme0n1 /mnt; cp /tmp/table/* /mnt")
    ask = (
        "potash",
        "query",
        "/mnt/t.parquet",
        "sum(price)",
        "--where",
        "price > 50",
        "--by=region",
    )
    *asked, written, rows, refused, elsewhere = each(
        linux,
        (*ask, "--json"),
        (*ask, "--json", "--execute"),
        (*ask[:3], "price == 99.5", "-o", "/mnt/out.csv", "--json", "--limit=1000"),
        (*ask[:3], 'price is None & region == "EU"'),
        ("potash", "query", "/mnt/text", "count()"),
        ("potash", "query", "/tmp/table/t.parquet", "count()"),
    )
    csv = shell(linux, "cat /mnt/out.csv; umount /mnt").splitlines()
    kept = table.filter(pc.field("price") > 50)
    expected = kept.group_by("region").aggregate([("price", "sum")])
    sums = {row["region"]: row["price_sum"] for row in expected.to_pylist()}
    for done in asked:
        assert done.code == 0, done.stderr
        report = json.loads(done.stdout)
        keys, values = (column["values"] for column in report["columns"])
        assert dict(zip(keys, map(float, values), strict=True)) == sums  # quarters, so exact
        assert report["held"] > 10 * report["moved"] and report["groups"] == 3
    assert written.code == 0 and len(csv) == 1001 and csv[0] == '"price","region"'
    assert set(csv[1:]) == {'99.5,"EU"', '99.5,"US"'}
    assert rows.code == 1 and b"put each comparison in parentheses" in rows.stderr
    assert refused.code == 1 and b"is neither a Parquet file nor an Arrow file" in refused.stderr
    assert elsewhere.code == 1 and b"is not on a file system of an NVMe drive" in elsewhere.stderr


def test_queries_are_measured_in_a_guest(
    images: GuestImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROWS", 20_000)
    results = tables.measure_in_guest(images, ["q6-10%"], 1, silent)
    found = {result.metric: result for result in results}
    assert found["time"].ratio and found["time"].baseline
    assert found["moved"].value < found["read by the drive"].value
    assert found["time without a query"].baseline is None


def test_what_the_page_shows_works(linux: Guest, tmp_path: Path) -> None:
    """The drive's first MiB, and a file on it, are integers that the page's program adds up."""
    in_guest, custom, _, nvme_cli = blocks("computational.md", "sh")[1:5]
    in_python, in_flight, *_ = blocks("computational.md", "python")
    numbers = random.Random(5).randbytes(1 << 20)
    total = sum(struct.unpack("<131072Q", numbers)) % (1 << 64)
    (tmp_path / "program.o").write_bytes(SUM)
    (tmp_path / "data.bin").write_bytes(numbers)
    (tmp_path / "numbers").write_bytes(numbers[:4096])
    (tmp_path / "page.py").write_text(f"{in_python}\nprint(value)")
    (tmp_path / "flight.py").write_text(f"{in_flight}\nprint(*sums)")
    linux.copy_in(tmp_path, "/tmp/page")

    shell(linux, "mkfs.ext4 -q /dev/nvme0n1; mkdir -p /mnt; mount /dev/nvme0n1 /mnt")
    said = shell(linux, f"cp /tmp/page/data.bin /mnt; cd /tmp/page; {custom}; umount /mnt")
    assert f"returned {total}\n" in said
    linux.copy_out("/tmp/page/result.bin", tmp_path / "result.bin")
    assert (tmp_path / "result.bin").read_bytes()[:8] == struct.pack("<Q", total)
    shell(linux, "potash cp ranges delete /dev/nvme0 1; potash cp deactivate /dev/nvme0 --index 12")
    shell(linux, "potash cp unload /dev/nvme0 --index 12; dd if=/tmp/page/data.bin of=/dev/nvme0n1")

    assert shell(linux, in_guest).splitlines()[-1] == f"returned {crc32c_bitwise(numbers)}"
    assert shell(linux, "cd /tmp/page; python3 page.py") == f"{total}\n"
    sums = (crc32c_bitwise(numbers[start : start + 4096]) for start in range(0, 1 << 20, 4096))
    said = shell(linux, "potash cp activate /dev/nvme0 --index 2; python3 /tmp/page/flight.py")
    assert said.split() == [str(one) for one in sums]
    shell(
        linux, "potash cp deactivate /dev/nvme0 --index 10; potash cp unload /dev/nvme0 --index 10"
    )

    said = shell(linux, f"cd /tmp/page; exec 2>&1; {nvme_cli}")
    assert f"{sum(struct.unpack('<512Q', numbers[:4096])) % (1 << 32):08x}" in said
    linux.copy_out("/tmp/page/same", tmp_path / "same")
    assert (tmp_path / "same").read_bytes() == numbers[:4096]
    shell(linux, "potash slm read /dev/nvme0 /tmp/page/copied --offset 4K --data-len 8K")
    linux.copy_out("/tmp/page/copied", tmp_path / "copied")
    assert (tmp_path / "copied").read_bytes() == bytes(4096) + numbers[:4096]
    shell(
        linux, "potash cp deactivate /dev/nvme0 --index 12; potash cp unload /dev/nvme0 --index 12"
    )
