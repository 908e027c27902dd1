"""The transport to processes of this machine: native, or behind a command prefix such as an emulator."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from smelt.core.bundle import RUNNER, hash_file
from smelt.core.diag import SmeltError
from smelt.devicefarm.budget import Budget, infra
from smelt.devicefarm.channel import Channel, PipeChannel
from smelt.devicefarm.transport import Completed, deploy_files

PRINTED_LIMIT = 64 * 1024


@dataclass(frozen=True)
class LocalFiles:
    """Files of a store on this machine's disk."""

    root: Path

    def exists(self, path: str, budget: Budget) -> bool:
        return (self.root / path).exists()

    def make_dirs(self, path: str, budget: Budget) -> None:
        with _as_infra("creating", path):
            (self.root / path).mkdir(parents=True, exist_ok=True)

    def put(self, source: Path, path: str, budget: Budget) -> None:
        with (
            _as_infra("writing", path),
            source.open("rb") as reader,
            (self.root / path).open("wb") as writer,
        ):
            shutil.copyfileobj(reader, writer, 1 << 20)
            writer.flush()
            os.fsync(writer.fileno())

    def sha256(self, path: str, budget: Budget) -> str:
        with _as_infra("reading", path):
            return hash_file(self.root / path)

    def rename(self, old: str, new: str, budget: Budget) -> None:
        with _as_infra("renaming", old):
            (self.root / old).rename(self.root / new)

    def link(self, target: str, path: str, budget: Budget) -> None:
        with _as_infra("linking", path):
            (self.root / path).symlink_to(target)

    def set_executable(self, path: str, budget: Budget) -> None:
        with _as_infra("marking executable", path):
            (self.root / path).chmod(0o755)

    def remove(self, path: str, budget: Budget) -> None:
        with _as_infra("removing", path):
            (self.root / path).unlink(missing_ok=True)

    def full_path(self, path: str) -> str:
        return str(self.root / path)


class _as_infra:
    """Turn OSError into SmeltError(kind='infra') that says what was done to which path."""

    def __init__(self, doing: str, path: str) -> None:
        self.what = f"{doing} '{path}' failed"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise infra(f"{self.what}: {error.strerror}") from error


@dataclass(frozen=True)
class LocalTransport:
    """Processes of this machine.

    store: where bundles are copied by content; None runs them where they lie. prefix: what stands
    before the runner (an emulator and its arguments). env: added to this process's environment.
    runner: another runner than the bundle's own.
    """

    name: str = "local"
    emulated: bool = False
    store: Path | None = None
    prefix: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    runner: Path | None = None

    def deploy(self, bundle: Path, budget: Budget) -> str:
        if self.store is not None:
            return deploy_files(LocalFiles(self.store.resolve()), bundle, budget)
        if not bundle.is_dir():
            raise SmeltError(f"bundle '{bundle}' is not a directory", kind="invalid")
        return str(bundle.resolve())

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

    def close(self) -> None:
        return None
