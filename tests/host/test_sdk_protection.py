"""The SDK and the command line on namespaces with metadata."""

from pathlib import Path

import pytest

import potash.sdk
from nvme_spec.commands import ReadWrite
from nvme_spec.opcodes import IoOpcode
from potash.namespace_sections import NamespaceSection
from potash.sdk import InvalidRequest
from potash.sdk.commands import encoded
from potash.vm.drive import device_process
from potash_device.media.shapes import Metadata

CHECK_ALL = 7


def test_protection_information_is_the_drives_affair(tmp_path: Path) -> None:
    options = ("--namespace", "16M:4096+8:1", "--namespace", "16M:512+16:1")
    with (
        device_process(tmp_path / "s", *options),
        potash.sdk.open(f"vfio-user:{tmp_path / 's'}", timeout=10.0) as device,
    ):
        content = bytes(range(256)) * 16 * 300
        device.write(17, content)
        assert device.read(17, 300) == content
        fields = encoded(ReadWrite(17, 299, prinfo=CHECK_ALL))
        fields["cdw14"] = 17
        device.namespace().submit(IoOpcode.VERIFY, **fields).result()
        with pytest.raises(InvalidRequest, match="16 bytes of metadata"):
            device.namespace(2).read(0, 1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1M:4096+9", "8, 16, 64 bytes of metadata"),
        ("1M:4096:1", "metadata may have protection information of type 1, 2 or 3"),
        ("1M:4096+8:4", "metadata may have protection information of type 1, 2 or 3"),
        ("1M:+8", "blocks have 512 or 4096 bytes"),
    ],
)
def test_a_namespace_that_cannot_be(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        NamespaceSection.parse(text)


@pytest.mark.parametrize(
    ("text", "metadata"),
    [
        ("1048576:512", Metadata()),
        ("1048576:512+16", Metadata(16)),
        ("1048576:4096+8:3", Metadata(8, protection=3)),
    ],
)
def test_the_metadata_of_a_namespace_in_an_option(text: str, metadata: Metadata) -> None:
    assert NamespaceSection.parse(text).shape.metadata == metadata
