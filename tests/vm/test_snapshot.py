"""Whether KVM is of use: asked of a guest once, then remembered for this host."""

from __future__ import annotations

import socket
from pathlib import Path
from unittest import mock

import pytest

from potash.sdk.progress import silent
from potash.vm import snapshot
from potash.vm.cache import Cache
from potash.vm.errors import GuestError
from potash.vm.images import GuestImages
from potash.vm.machine import Machine
from potash.vm.qemu import Accelerator, Qemu, Shape
from potash.vm.snapshot import Frozen, frozen, kvm_verdict

SHAPE = Shape(512, 1)


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GuestImages:
    """Images that nothing can boot, on a host that has a /dev/kvm."""
    device = tmp_path / "kvm"
    device.touch()
    monkeypatch.setattr(snapshot, "KVM", device)
    return GuestImages(Qemu(("false",), "version 1"), Path("/k"), Path("/i"), Cache(tmp_path / "c"))


class Boots:
    """In the place of booting: writes down what was tried, and fails for one accelerator."""

    def __init__(self, dead: Accelerator | None) -> None:
        self.dead = dead
        self.tried: list[tuple[Accelerator, float]] = []

    def __call__(
        self,
        images: GuestImages,
        shape: Shape,
        accelerator: Accelerator,
        limit: float,
        progress: object,
    ) -> Frozen:
        self.tried.append((accelerator, limit))
        if accelerator is self.dead:
            raise GuestError("the guest showed no life")
        return Frozen((accelerator.name,), Path("/nowhere"))


@pytest.mark.parametrize("useful", [True, False])
def test_the_first_guest_decides_and_the_next_believes_it(
    images: GuestImages, monkeypatch: pytest.MonkeyPatch, useful: bool
) -> None:
    boots = Boots(None if useful else Accelerator.KVM)
    monkeypatch.setattr(snapshot, "_freeze", boots)
    assert kvm_verdict(images) is None
    winner = Accelerator.KVM if useful else Accelerator.TCG
    assert frozen(images, SHAPE, silent).arguments == (winner.name,)
    assert boots.tried[0] == (Accelerator.KVM, snapshot.KVM_LIMIT)
    assert kvm_verdict(images) is useful
    boots.tried.clear()
    frozen(images, SHAPE, silent)
    assert boots.tried == [(winner, snapshot.BOOT_LIMIT)]


def test_an_interrupted_trial_decides_nothing(
    images: GuestImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object) -> Frozen:
        raise KeyboardInterrupt

    monkeypatch.setattr(snapshot, "_freeze", interrupted)
    with pytest.raises(KeyboardInterrupt):
        frozen(images, SHAPE, silent)
    assert kvm_verdict(images) is None


def test_another_qemu_or_a_damaged_note_is_no_verdict(
    images: GuestImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_freeze", Boots(None))
    frozen(images, SHAPE, silent)
    other = GuestImages(Qemu(("false",), "version 2"), images.kernel, images.initrd, images.cache)
    assert kvm_verdict(other) is None
    for damaged in ("", "[]", '{"useful": true}'):
        (images.cache.root / "kvm.json").write_text(damaged)
        assert kvm_verdict(images) is None


def test_the_boot_of_one_size_holds_up_nobody_who_needs_none(
    images: GuestImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(label: str, fraction: float | None) -> None:
        raise AssertionError(label)

    def freeze(*_arguments: object) -> Frozen:
        with images.cache.locked(told):
            return Frozen((), Path("/nowhere"))

    monkeypatch.setattr(snapshot, "_freeze", freeze)
    frozen(images, SHAPE, silent)


def test_a_host_without_kvm_does_not_try(
    images: GuestImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "KVM", Path("/nowhere/kvm"))
    boots = Boots(None)
    monkeypatch.setattr(snapshot, "_freeze", boots)
    assert frozen(images, SHAPE, silent).arguments == ("TCG",)
    assert len(boots.tried) == 1


@pytest.mark.parametrize(
    ("instruction", "said"), [("EIP=000ea462", "no kernel was started"), ("RIP=0", "no life")]
)
def test_firmware_that_starts_no_kernel_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, instruction: str, said: str
) -> None:
    """Nested in a software hypervisor, SeaBIOS takes longer than a whole boot otherwise."""
    monkeypatch.setattr(snapshot, "KERNEL_LIMIT", 0.01)
    machine = Machine(Qemu((), ""), [])
    machine.control, agent = socket.socketpair()
    with machine.control, agent, mock.patch.object(machine, "qmp", create=True) as monitor:
        monitor.execute.return_value = f"\r\nCPU#0\r\n{instruction} EFL=00000046\r\n"
        monkeypatch.setattr(machine, "failure", GuestError)  # there is no console
        with pytest.raises(GuestError, match=said):
            snapshot._await_response(machine, Accelerator.KVM, 0.02)


def test_another_shape_image_or_accelerator_is_another_state(images: GuestImages) -> None:
    entry = snapshot._entry
    other = GuestImages(images.qemu, images.kernel, Path("/other"), images.cache)
    newer = GuestImages(Qemu(("false",), "version 2"), images.kernel, images.initrd, images.cache)
    states = {
        entry(images, SHAPE, Accelerator.TCG).state,
        entry(images, SHAPE, Accelerator.KVM).state,
        entry(images, Shape(1024, 1), Accelerator.TCG).state,
        entry(images, Shape(512, 2), Accelerator.TCG).state,
        entry(other, SHAPE, Accelerator.TCG).state,
        entry(newer, SHAPE, Accelerator.TCG).state,
    }
    assert len(states) == 6
    assert entry(images, SHAPE, Accelerator.TCG).state in states
