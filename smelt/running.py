"""A bundle and the name of a device (or none) -> an open runner on that device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from smelt.core.bundle import Bundle
from smelt.core.cache import cache_dir
from smelt.core.diag import SmeltError
from smelt.core.policies import STATIC
from smelt.crash import explainer
from smelt.devicefarm.budget import Budget
from smelt.devicefarm.client import RunnerClient, open_runner, open_session
from smelt.devicefarm.condition import Condition
from smelt.devicefarm.inventory import (
    DEFAULT_DEVICE,
    Device,
    NoDevice,
    find_device,
    open_transport,
)
from smelt.devicefarm.profiles import AS_SHIPPED, UNCHANGED, Conditions, Profile
from smelt.devicefarm.transport import Transport
from smelt.leasing import Where, name_of, right_to
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
    device: Where = None,
    *,
    threads: int = 0,
    budget: Budget | None = None,
    verify: bool | None = None,
) -> Iterator[RunnerClient]:
    """A runner on the device with the bundle loaded; it is closed at the end of the block.

    device: its name in the inventory, a Wish or a HeldDevice of smelt.leasing, None for the default one of
    the platform. A lease is taken for a name or a wish, and given back at the end of the block. threads: 0 is
    the bundle's default. verify: as in `smelt.load`; the bundle's other files are always compared with their
    hashes. A bundle that stands for one of its entries (Bundle.entry) has the runner use that.

    Raises NoDevice, Unavailable, LeaseLost, and SmeltError: 'device' where bundle and device do not fit,
    'invalid' for a damaged bundle, 'infra' for a failed link.
    """
    with Held(bundle) as held:
        held.check(verify)
    chosen = device_for(str(bundle.manifest["platform"]), name_of(device))
    transport = transport_for(bundle, chosen)
    try:
        with right_to(device, chosen, transport, Path(bundle.path)) as right, open_session(
            transport, Path(bundle.path), threads=threads, budget=budget, entry=bundle.chosen,
            claim=right.claim, explain=explainer(bundle),
        ) as client:  # fmt: skip
            right.on_open(client)
            yield client
    finally:
        transport.close()


@dataclass(frozen=True)
class Loading:
    """A runner that has no model yet. remote: the bundle's folder on the device; entry: '' for the first."""

    client: RunnerClient
    remote: str
    entry: str

    @contextmanager
    def loaded(self, threads: int = 0, policy: str = STATIC) -> Iterator[RunnerClient]:
        """The runner with the bundle loaded by a fresh process, which ends with the block. policy: what binds
        its runs to units."""
        self.client.load(self.remote, threads=threads, policy=policy)
        if self.entry:
            self.client.use_entry(self.entry)
        yield self.client
        self.client.reset()


def conditioned(
    found: Sequence[Loading], choose: Callable[[Condition], Profile]
) -> tuple[Conditions, ...]:
    """Bring the device into the conditions that are chosen for it, before anything is loaded; what could be
    set, per runner. The first one changes the device, the others only take its processors. An emulated
    device stays."""
    under: list[Conditions] = []
    for runner in found:
        profile = choose(runner.client.hello().condition)
        if under:
            profile = replace(profile, governor="", khz=0)
        if profile == AS_SHIPPED:
            under.append(UNCHANGED)
        elif runner.client.emulated:
            under.append(Conditions(profile, refused={"all": (profile.name, "an emulated device")}))
        else:
            under.append(runner.client.control(profile))
    return tuple(under)


@contextmanager
def runners(
    bundles: Sequence[Bundle], device: Where = None, *, budget: Budget | None = None
) -> Iterator[tuple[Loading, ...]]:
    """A runner for each of several bundles of one platform, all on one device, under one lease and over one
    connection, to be used in turns. Arguments and errors are those of `running`."""
    for bundle in bundles:
        with Held(bundle) as held:
            held.check(None)
    first = bundles[0]
    chosen = device_for(str(first.manifest["platform"]), name_of(device))
    transport = transport_for(first, chosen)
    with ExitStack() as stack:
        stack.callback(transport.close)
        right = stack.enter_context(right_to(device, chosen, transport, Path(first.path)))
        found = []
        for bundle in bundles:
            opened = open_runner(
                transport, Path(bundle.path), budget=budget, claim=right.claim, explain=explainer(bundle)
            )
            client, remote = stack.enter_context(opened)
            right.on_open(client)
            found.append(Loading(client, remote, bundle.chosen))
        yield tuple(found)
