"""A pytest plug-in: tests that ask for `farm_device` run on each device that the command line selects.

    pytest --farm-require tag=emulated            every device with this tag
    pytest --farm-device pi5 --farm-device rock5  these devices
    pytest                                        this machine

A lost link, or a device that is absent, is an error of the set-up and not a failure of the test: JUnit calls
the one <error>, the other <failure>.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from smelt.core.diag import SmeltError

if TYPE_CHECKING:
    from smelt.core.bundle import Bundle
    from smelt.devicefarm.client import RunnerClient
    from smelt.devicefarm.inventory import Device

NOT_THE_MODEL = frozenset({"infra", "no device", "cancelled", "invalid", "unstable"})
"""Verdicts that say nothing about what is tested."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that select devices."""
    group = parser.getgroup("farm", "smelt's device farm")
    group.addoption(
        "--farm-device", action="append", default=[], metavar="NAME",
        help="run tests of farm_device on this device; repeat for several (default: local)",
    )  # fmt: skip
    group.addoption(
        "--farm-require", action="append", default=[], metavar="tag=T|platform=P|transport=T|name=N",
        help="run them on every device that has all of these",
    )  # fmt: skip
    group.addoption(
        "--farm-skip-missing", action="store_true",
        help="skip where no device fits, which is an error otherwise",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Refuse requirements that cannot be read before any test runs."""
    requirements(config.getoption("--farm-require"))


def requirements(texts: Sequence[str]) -> list[tuple[str, str]]:
    """(field, wanted) of each. Raises pytest.UsageError."""
    found = []
    for text in texts:
        name, equals, wanted = text.partition("=")
        if name not in ("tag", "platform", "transport", "name") or not equals or not wanted:
            raise pytest.UsageError(
                f"--farm-require {text!r}: write tag=T, platform=P, transport=T or name=N"
            )
        found.append((name, wanted))
    return found


def selected(config: pytest.Config) -> list[str]:
    """The names of the devices that the command line selects; none fits: []. Raises pytest.UsageError."""
    from smelt.devicefarm.inventory import read_inventory

    try:
        known = read_inventory()
    except SmeltError as e:
        raise pytest.UsageError(str(e)) from None
    named: list[str] = config.getoption("--farm-device")
    wanted = requirements(config.getoption("--farm-require"))
    for name in named:
        if name not in known:
            raise pytest.UsageError(f"--farm-device {name}: there are {', '.join(sorted(known))}")
    if not named and not wanted:
        return ["local"]
    return [n for n in (named or sorted(known)) if all(_has(known[n], *one) for one in wanted)]


def _has(device: Device, what: str, wanted: str) -> bool:
    return wanted in device.tags if what == "tag" else getattr(device, what) == wanted


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per device."""
    if "farm_device" not in metafunc.fixturenames:
        return
    names = selected(metafunc.config)
    if names:
        metafunc.parametrize("farm_device", names, indirect=True, ids=names, scope="session")
        return
    said = " and ".join(metafunc.config.getoption("--farm-require"))
    marks = [pytest.mark.skip(reason=f"no device has {said}")]
    skip = metafunc.config.getoption("--farm-skip-missing")
    missing = pytest.param(Missing(said), marks=marks if skip else (), id="no-device")
    metafunc.parametrize("farm_device", [missing], indirect=True, scope="session")


@dataclass(frozen=True)
class Missing:
    """In the place of a device that is not there. wanted: what it should have."""

    wanted: str


@dataclass
class FarmDevice:
    """A device under test. folder: where bundles are put that a test compiles for it. facts: what was learnt
    of it, which JUnit gets as properties of the test."""

    device: Device
    folder: Path
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name in the inventory."""
        return self.device.name

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags in the inventory."""
        return self.device.tags

    @property
    def target(self) -> str:
        """The target to compile for."""
        return self.device.platform

    def compile(self, model: Any, **options: Any) -> Bundle:
        """Compile for the device's platform: smelt.compile with another folder for each call."""
        from smelt import compile

        out = self.folder / f"out{len([*self.folder.iterdir()])}"
        return compile(model, options.pop("target", self.target), output=out, **options)

    @contextmanager
    def session(self, bundle: Bundle, **options: Any) -> Iterator[RunnerClient]:
        """A runner on the device with the bundle loaded, as smelt.running.running has it."""
        from smelt.running import running

        with running(bundle, self.name, **options) as client:
            facts = client.facts
            if facts is not None:
                self.facts |= {"farm_arch": facts.arch, "farm_cpu": facts.cpu, "farm_kernel": facts.kernel}
            self.facts["farm_emulated"] = str(client.emulated).lower()
            yield client

    def check(self, bundle: Bundle, model: Path | str, *, count: int = 2, **options: Any) -> None:
        """Compare with ONNX Runtime at `count` shapes, or at `cases=[...]`; options as for compare.validate.

        Raises AssertionError for a mismatch, a crash or a time-out, with all that is known of it.
        """
        from smelt.compare import validate
        from smelt.devicefarm.verdict import Verdict
        from smelt.shapes import cases

        wanted = options.pop("cases", None)
        found = validate(
            bundle, Path(model), cases(bundle, []) if wanted is None else wanted, device=self.name,
            enough=count if wanted is None else None, **options,
        )  # fmt: skip
        self.facts |= {"farm_emulated": str(found.emulated).lower(), "farm_reference": found.reference}
        if found.verdict is not Verdict.PASS:
            bad = [c for c in found.cases if c.status not in ("pass", "skipped")]
            told = [f"{c.label}: {c.status}: {c.why}" for c in bad] or ["nothing was compared"]
            raise AssertionError(f"on device '{self.name}': " + "\n".join(told))


@pytest.fixture(scope="session")
def farm_device(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> FarmDevice:
    """The device that the test runs on."""
    from smelt.devicefarm.inventory import NoDevice, find_device

    if isinstance(request.param, Missing):
        raise NoDevice(f"no device has {request.param.wanted}")
    return FarmDevice(find_device(request.param), tmp_path_factory.mktemp(f"farm-{request.param}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell errors of the infrastructure from failures, and note what was learnt of the device."""
    report = yield
    device = getattr(item, "funcargs", {}).get("farm_device")
    if isinstance(device, FarmDevice) and report.when == "call":
        told: Mapping[str, str] = {"farm_device": device.name, **device.facts}
        item.user_properties += [pair for pair in told.items() if pair not in item.user_properties]
    error = call.excinfo.value if call.excinfo is not None else None
    if isinstance(error, SmeltError) and report.when == "call":
        from smelt.devicefarm.verdict import verdict_of_error

        verdict = verdict_of_error(error)
        if verdict.value in NOT_THE_MODEL:
            report.when = "setup"  # what fails before the test's own part is an <error>
            item.user_properties.append(("farm_verdict", verdict.value))
    return report
