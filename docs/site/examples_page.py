"""The page `docs/examples.md`, generated from the READMEs of the examples."""

from potash.cli.device.example_index import index

HEAD = """\
# Examples

Each is a folder with a program, what it is run on, what must come of it, and a README.md. `potash demo
list` shows them too. This page is made from those READMEs (`make docs-page`).

| example | | what it teaches |
|---|---|---|
"""

TAIL = """
## Running one

```sh
potash demo grep                 # in a Linux guest, on the kernel's /dev/nvme0n1
potash demo grep --embedded      # without a guest, in a second
potash demo grep --json
```

A demo ends with 0 only if the output is what the example says that it must be: TensorFlow Lite's
reference kernels or plain Python have made that, apart from the device.

On a drive that is there already, whichever way it is reached, the commands of the original platform
do it; they are the same for each example that `potash demo` runs:

```sh
EXAMPLE=add make example/build
EXAMPLE=add NVME_DEVICE=/dev/nvme0n1 make example/load
EXAMPLE=add NVME_DEVICE=vfio-user:/tmp/potash.sock make example/load
```

The first compiles the program (with clang, or the Python package ziglang; without either it takes the
object file that comes with the example) and puts it with its input into `build/examples/add`. The
second runs it there, leaves `build/examples/add/output.bin`, and compares. `/dev/nvme0n1` needs root.
A program of your own is run in the same way: [programs.md](programs.md).
"""


def page() -> str:
    """The page, with a row for each example."""
    rows = (
        f"| [`{one.name}`](../examples/{one.name}/README.md) | {one.title} | {one.teaches} |\n"
        for one in index()
    )
    return HEAD + "".join(rows) + TAIL
