"""`potash kv`: the keys and values of a drive's key value namespaces."""

import base64
import binascii
import contextlib
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import click

from csd_spec.reporting import Count
from nvme_spec.key_value import LONGEST_KEY
from potash.cli.drive import common
from potash.files import STREAM
from potash.sdk import Device
from potash.sdk.errors import PotashError
from potash.units import Parsed, human

_HEX = "hex:"


class Keys(NamedTuple):
    """Keys of a key value namespace."""

    nsid: Annotated[Count, "The namespace's identifier."]
    size: Annotated[Count, "Bytes that all keys and values together may have."]
    used: Annotated[Count, "Bytes that keys and values have."]
    max_value: Annotated[Count, "Bytes of the longest value."]
    keys: Annotated[Sequence[str], "Keys in the drive's order, as potash kv takes them."]


class Pairs(NamedTuple):
    """Values that were stored or written to a file."""

    nsid: Annotated[Count, "The namespace's identifier."]
    pairs: Annotated[Count, "Number of keys with their values."]


def parse_key(text: str) -> bytes:
    """A key from text, or from hex:BYTES. Raises ValueError."""
    try:
        key = bytes.fromhex(text[len(_HEX) :]) if text.startswith(_HEX) else text.encode()
    except ValueError:
        raise ValueError(f"{text!r} is not hex:BYTES, two digits for each byte") from None
    if not 1 <= len(key) <= LONGEST_KEY:
        raise ValueError(f"{text!r}: a key has 1 to {LONGEST_KEY} bytes")
    return key


def show_key(key: bytes) -> str:
    """A key as `parse_key` takes it: text if it is printable ASCII."""
    printable = key.isascii() and key.decode().isprintable() and not key.startswith(_HEX.encode())
    return key.decode() if printable else _HEX + key.hex()


KEY = Parsed("KEY", parse_key)
key_argument = click.argument("key", type=KEY)
namespace_option = common.namespace_option("the key value")
_values = common.opening(Device.kv_namespace)


@click.group()
def kv() -> None:
    """Store, retrieve and delete values of a drive's key value namespaces.

    DEVICE is /dev/nvme0 or /dev/ng0n1, vfio-user:SOCKET or the socket's path. A KEY is text of 1 to
    16 bytes, or hex:BYTES.
    """


@kv.command()
@click.argument("device")
@key_argument
@common.input_file
@namespace_option
@click.option("--must-exist", is_flag=True, help="Store only if the key exists.")
@click.option("--must-not-exist", is_flag=True, help="Store only if the key does not exist.")
def put(
    device: str, key: bytes, input: Path, nsid: int | None, must_exist: bool, must_not_exist: bool
) -> None:
    """Store a file as the value of a key.

    INPUT is the file (- for standard input).
    """
    value = common.read_input(input)
    with _values(device, nsid) as values, _present(key):
        values.store(key, value, must_exist=must_exist, must_not_exist=must_not_exist)
        values.flush()


@kv.command()
@click.argument("device")
@key_argument
@common.output_file
@namespace_option
def get(device: str, key: bytes, output: Path, nsid: int | None) -> None:
    """Write the value of a key into a file.

    OUTPUT is the file (- for standard output).
    """
    with _values(device, nsid) as values, _present(key):
        value = values[key]
    common.write_output(output, value)


@kv.command()
@click.argument("device")
@key_argument
@namespace_option
def delete(device: str, key: bytes, nsid: int | None) -> None:
    """Delete a key with its value."""
    with _values(device, nsid) as values, _present(key):
        del values[key]
        values.flush()


@kv.command(name="list")
@click.argument("device")
@namespace_option
@click.option("--from", "first", type=KEY, help="Begin with this key, or the one that follows.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of keys (default: all).")
@common.json_option(Keys)
def list_(device: str, nsid: int | None, first: bytes | None, limit: int | None) -> None:
    """Show the keys, in the drive's order."""
    with _values(device, nsid) as values:
        found = [show_key(key) for key in islice(values.keys_from(first or b""), limit)]
        report = Keys(values.nsid, values.size, values.used, values.max_value, found)
    common.say(report, found)


@kv.command()
@click.argument("device")
@common.input_file
@namespace_option
@common.json_option(Pairs)
def load(device: str, input: Path, nsid: int | None) -> None:
    """Store the values that "potash kv dump" has written.

    INPUT is the file (- for standard input): one JSON object for each line, with a "key" and, in
    base64, a "value". Other keys of the namespace keep their values.
    """
    with _values(device, nsid) as values:
        count = values.store_all(_pairs(common.read_input(input), input))
        values.flush()
        common.say(Pairs(values.nsid, count), [f"stored: {count} values"])


@kv.command()
@click.argument("device")
@common.output_file
@namespace_option
@common.json_option(Pairs)
def dump(device: str, output: Path, nsid: int | None) -> None:
    """Write all keys with their values into a file.

    OUTPUT is the file (- for standard output), which "potash kv load" reads.
    """
    lines, total = [], 0
    with _values(device, nsid) as values:
        for key, value in values.items():
            text = base64.b64encode(value).decode()
            lines.append(json.dumps({"key": show_key(key), "value": text}) + "\n")
            total += len(value)
        report = Pairs(values.nsid, len(lines))
    common.write_output(output, "".join(lines).encode())
    said = f"written: {len(lines)} values, {human(total)}"
    common.say(report, [said], aside=output == STREAM)


@contextlib.contextmanager
def _present(key: bytes) -> Iterator[None]:
    try:
        yield
    except KeyError:
        raise PotashError(f"key {show_key(key)} does not exist") from None


def _pairs(data: bytes, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Raises PotashError for a line that is no pair."""
    for number, line in enumerate(data.splitlines(), 1):
        try:
            pair = json.loads(line)
            yield parse_key(pair["key"]), base64.b64decode(pair["value"], validate=True)
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
            raise PotashError(
                f"{path}, line {number}: it is not an object with a key and a value in base64"
            ) from None
