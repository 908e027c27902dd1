"""The transport to processes of this machine: native, or behind a command prefix such as an emulator."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from smelt.core.bundle import RUNNER, is_bundle, read_bundle
from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, infra
from smelt.devicefarm.channel import Channel, PipeChannel
from smelt.devicefarm.local_files import LocalFiles
from smelt.devicefarm.room import StoreRules
from smelt.devicefarm.store import Content, DeviceStore
from smelt.devicefarm.transport import Completed

PRINTED_LIMIT = 64 * 1024


@dataclass
class LocalTransport:
    """Processes of this machine.

    store: where bundles are copied by content; None runs them where they lie. prefix: what stands
    before the runner (an emulator and its arguments). env: added to this process's environment.
    runner: another runner than the bundle's own. rules: of the store.
    """

    name: str = "local"
    emulated: bool = False
    store: Path | None = None
    prefix: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    runner: Path | None = None
    rules: StoreRules | None = None
    _open: DeviceStore | None = field(default=None, init=False, repr=False)

    def deploy(self, bundle: Path, budget: Budget) -> str:
        opened = self._opened()
        if opened is not None:
            return opened.deploy(bundle, budget)
        if not bundle.is_dir():
            raise SmeltError(f"bundle '{bundle}' is not a directory", kind="invalid")
        return str(bundle.resolve())

    def damaged(self, bundle: Path, budget: Budget) -> tuple[str, ...]:
        """Without a store, the files that are not what the bundle's manifest says; nobody has them to mend
        them."""
        opened = self._opened()
        if opened is not None:
            return opened.damaged(bundle, budget)
        expected = _by_manifest(bundle)
        files = LocalFiles(self.name, bundle)
        return tuple(sorted(files.differing(expected, budget)))

    def _opened(self) -> DeviceStore | None:
        if self._open is None and self.store is not None:
            self._open = DeviceStore(LocalFiles(self.name, self.store.resolve()), rules=self.rules)
        return self._open

    def open_runner(self, remote: str, budget: Budget) -> Channel:
        runner = self.runner or Path(remote) / RUNNER
        if not runner.exists():
            raise infra(
                f"device '{self.name}' has no runner at '{runner}'",
                hint="compile the bundle again; it carries the runner of its platform",
            )
        return PipeChannel(
            [*self.prefix, str(runner), "--serve"],
            env={**os.environ, **self.env},
            close_limit=budget.limits.close,
            emulated=bool(self.prefix),
        )

    def execute(self, argv: list[str], budget: Budget) -> Completed:
        """Run a command natively, for an emulated device too: its shell and disk are this machine's."""
        limit = budget.left(budget.deadline(budget.limits.command), "a command")
        try:
            done = subprocess.run(argv, capture_output=True, timeout=limit, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise infra(f"'{argv[0]}' failed on device '{self.name}': {error}") from error
        out, err = (b[:PRINTED_LIMIT].decode("utf-8", "replace") for b in (done.stdout, done.stderr))
        return Completed(done.returncode, out, err)

    def free_bytes(self, budget: Budget) -> int | None:
        place = self.store or Path.cwd()
        while not place.exists():
            place = place.parent
        return shutil.disk_usage(place).free

    def system_log(self, seconds: float, pid: int) -> str:
        return ""

    def close(self) -> None:
        if self._open is not None:
            self._open.close(Budget())
            self._open = None


def _by_manifest(bundle: Path) -> dict[str, Content]:
    """What the files of a compiled bundle should hold; nothing for a folder without a readable manifest."""
    try:
        found = read_bundle(bundle) if is_bundle(bundle) else None
    except SmeltError as error:
        raise infra(f"the bundle was damaged while it ran: {error.message}", hint=error.hint) from error
    if found is None:
        return {}
    files = {**found.manifest["files"]}
    sizes = {n: (bundle / n).stat().st_size if (bundle / n).exists() else 0 for n in files}
    return {n: Content(str(digest), sizes[n]) for n, digest in files.items()}
