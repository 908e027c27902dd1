"""A bundle and the name of a device (or none) -> an open runner on that device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from smelt.core.bundle import Bundle
from smelt.core.cache import cache_dir
from smelt.core.diag import SmeltError
from smelt.crash import explainer
from smelt.devicefarm.budget import Budget
from smelt.devicefarm.client import RunnerClient, open_session
from smelt.devicefarm.inventory import (
    DEFAULT_DEVICE,
    Device,
    NoDevice,
    find_device,
    open_transport,
)
from smelt.devicefarm.transport import Transport
from smelt.library import Held
from smelt.targets.platform import PLATFORMS, host_platform_name, parse_target
from smelt.targets.toolchain import build_shim_runner


def device_for(platform: str, name: str | None = None) -> Device:
    """The named device; without a name the default one of the platform. Raises NoDevice."""
    if name is not None:
        return find_device(name)
    if platform == host_platform_name():
        return find_device("local")
    default = DEFAULT_DEVICE.get(platform)
    if default is None:
        raise NoDevice(f"platform '{platform}' has no default device; name one with --device")
    return find_device(default)


class Unavailable(SmeltError):
    """The device is known, but this machine cannot reach or emulate it: exit code 4."""

    status = "no device"


def transport_for(bundle: Bundle, device: Device) -> Transport:
    """The way to a device that can run this bundle. Raises SmeltError when device and bundle do not fit."""
    platform = str(bundle.manifest["platform"])
    here = host_platform_name() if device.platform == "host" else device.platform
    if here != platform:
        raise NoDevice(f"device '{device.name}' is {here}, the bundle is for {platform}")
    shim = None
    if device.transport == "android" and PLATFORMS[platform].shim:
        spec = parse_target(bundle.target)
        shim = build_shim_runner(spec, cache_dir() / f"smelt_run.{platform}.shim")
    try:
        return open_transport(device, bundle=Path(bundle.path), shim_runner=shim)
    except SmeltError as e:
        if e.kind != "device":
            raise
        raise Unavailable(f"device '{device.name}': {e.message}", kind="device", hint=e.hint) from None


@contextmanager
def running(
    bundle: Bundle,
    device: str | None = None,
    *,
    threads: int = 0,
    budget: Budget | None = None,
    verify: bool | None = None,
) -> Iterator[RunnerClient]:
    """A runner on the device with the bundle loaded; it is closed at the end of the block.

    device: its name in the inventory, None for the default one of the platform. threads: 0 is the bundle's
    default. verify: as in `smelt.load`; the bundle's other files are always compared with their hashes. A
    bundle that stands for one of its entries (Bundle.entry) has the runner use that.

    Raises NoDevice, Unavailable, and SmeltError: 'device' where bundle and device do not fit, 'invalid' for a
    damaged bundle, 'infra' for a failed link.
    """
    with Held(bundle) as held:
        held.check(verify)
    transport = transport_for(bundle, device_for(str(bundle.manifest["platform"]), device))
    try:
        with open_session(
            transport, Path(bundle.path), threads=threads, budget=budget, entry=bundle.chosen,
            explain=explainer(bundle),
        ) as client:  # fmt: skip
            yield client
    finally:
        transport.close()
