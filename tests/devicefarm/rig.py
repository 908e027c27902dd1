"""Builds the fake model's bundles and starts the counterparts (sshd, emulators) that farm tests
run against.
"""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pytest
from installed import preload_path, program_path, system_folder
from made_once import made_once, program_and_age

from smelt.core.diag import SmeltError
from smelt.devicefarm.qemu_board import BoardMachine
from smelt.devicefarm.ssh import SshAddress
from smelt.targets.platform import parse_target, zig_directory
from smelt.targets.toolchain import build_runner

HERE = Path(__file__).parent
RUNTIME = HERE.parents[1] / "targets" / "runtime"
RUNNER = [str(path) for path in sorted(RUNTIME.glob("runner*.c"))]
SYSROOT = system_folder("/usr/aarch64-linux-gnu")


def run(argv: list[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run a build command; the test fails with its stderr."""
    done = subprocess.run(argv, capture_output=True, text=True, cwd=cwd, env=env, check=False)
    assert done.returncode == 0, f"{argv}: {done.stderr}"


def need(condition: object, what: str) -> None:
    """Skip with a message that says what to install."""
    if not condition:
        pytest.skip(what)


def _copied(build: Callable[[Path], object], out: Path, *words: str) -> Path:
    """A bundle at `out`, copied from one that is built once for all processes."""
    makers = (program_and_age(program_path("gcc")), str(zig_directory()), str(SYSROOT))
    made = made_once(
        lambda folder: build(folder / "bundle"), *words, *makers, Path(__file__), HERE, RUNTIME
    )
    shutil.copytree(made / "bundle", out, dirs_exist_ok=True)
    return out


def build_native(out: Path, *, static: bool = False) -> Path:
    """A bundle for this machine: gcc's dynamic runner and libmodel.so, or one static program."""
    need(program_path("gcc"), "needs a C compiler: apt-get install gcc libc6-dev")
    return _copied(partial(_native, static=static), out, "static" if static else "native")


def _native(out: Path, static: bool) -> None:
    out.mkdir()
    cc = ["gcc", "-std=c11", "-O1", "-g0", "-Wall", "-Wextra", "-Werror", f"-I{RUNTIME}"]
    model = str(HERE / "fake_model.c")
    quiet = ["-Wno-unused-result", "-Wno-builtin-declaration-mismatch", "-Wno-infinite-recursion"]
    if static:
        both = ["-DSMELT_STATIC", "-DSMELT_PREFIX=model", *RUNNER, model]
        run([*cc, *quiet, "-static", *both, "-o", str(out / "smelt_run")])
        return
    run([*cc, *quiet, "-shared", "-fPIC", model, "-o", str(out / "libmodel.so")])
    run([*cc, *RUNNER, "-o", str(out / "smelt_run")])


def zig() -> list[str]:
    """The zig compiler of the ziglang package."""
    return [sys.executable, "-m", "ziglang"]


def zig_env() -> dict[str, str]:
    """Environment with a cache that outlives the test run: a cold one costs seconds for every target."""
    cache = str(Path(os.environ.get("SMELT_CACHE") or Path.home() / ".cache" / "smelt") / "zig")
    return {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}


def build_arm64(
    out: Path, *, target: str = "aarch64-linux-gnu", library_names: str = "glibc"
) -> Path:
    """An aarch64 bundle that runs under qemu-aarch64 with Debian's cross glibc as sysroot.

    library_names 'android': libmodel.so asks for libc.so and libdl.so by bionic's names, as an
    Android build does.
    """
    found = (SYSROOT / "lib" / "libc.so.6").exists()
    need(found, "needs an arm64 libc: apt-get install libc6-dev-arm64-cross")
    build = partial(_arm64, target=target, library_names=library_names)
    return _copied(build, out, "arm64", target, library_names)


def _arm64(out: Path, target: str, library_names: str) -> None:
    lib = SYSROOT / "lib"
    out.mkdir()
    flags = [
        "-c",
        "-O1",
        "-std=c11",
        "-fPIC",
        "-fno-sanitize=all",
        "-fno-stack-protector",
        f"-I{RUNTIME}",
    ]

    def compile_to(source: str | Path, triple: str) -> str:
        made = out.parent / f"{Path(source).stem}.{triple}.o"
        run([*zig(), "cc", "-target", triple, *flags, str(source), "-o", str(made)], env=zig_env())
        return str(made)

    runner = [compile_to(part, "aarch64-linux-gnu") for part in RUNNER]
    model = compile_to(HERE / "fake_model.c", target)
    libc = [str(lib / "libc.so.6"), str(lib / "ld-linux-aarch64.so.1")]
    start = [str(lib / "Scrt1.o"), str(lib / "crti.o")]
    link = [*zig(), "ld.lld", "-z", "noexecstack"]
    run([*link, "-pie", "-dynamic-linker", "/lib/ld-linux-aarch64.so.1", "-o", str(out / "smelt_run"),
         *start, *runner, *libc, str(lib / "crtn.o")])  # fmt: skip
    (out / "smelt_run").chmod(0o755)
    needed = libc if library_names == "glibc" else [android_stub(out.parent)]
    run(
        [*link, "-shared", "-soname", "libmodel.so", "-o", str(out / "libmodel.so"), model, *needed]
    )


def build_bionic(out: Path) -> Path:
    """A bundle for Android: the library as for the glibc shim, and the runner that bionic's linker starts."""
    build_arm64(out, target="aarch64-linux-android", library_names="android")
    (out / "smelt_run").unlink()
    build_runner(parse_target("android"), b"", out)
    return out


def android_stub(folder: Path) -> str:
    """A stub libc.so whose only use is its soname and unversioned symbols, as the NDK's stubs."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    names = ["malloc", "realloc", "free", "memset", "printf", "fflush", "abort", "exit", "fork", "write",
             "usleep", "strlen", "setsid", "getpid"]  # fmt: skip
    text = 'target triple="aarch64-linux-android"\n' + "\n".join(
        f"define void @{n}() nounwind {{ ret void }}" for n in names
    )
    machine = llvm.Target.from_triple("aarch64-linux-android").create_target_machine(reloc="pic")
    stubs = folder / "stubs"
    stubs.mkdir(exist_ok=True)
    (stubs / "libc.o").write_bytes(machine.emit_object(llvm.parse_assembly(text)))
    link = [*zig(), "ld.lld", "-shared", "-soname", "libc.so"]
    run([*link, "-o", str(stubs / "libc.so"), str(stubs / "libc.o")])
    return str(stubs / "libc.so")


@dataclass(frozen=True)
class Sshd:
    """A real ssh server on loopback with its own configuration and keys. pid: of the process that listens."""

    address: SshAddress
    home: Path
    pid: int


SSHD_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {home}/host_key
PidFile none
AuthorizedKeysFile {home}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
LogLevel ERROR
Subsystem sftp internal-sftp
"""


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        return int(s.getsockname()[1])


def make_key(path: Path) -> str:
    """An ed25519 key pair at path; its public half."""
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)])
    return path.with_suffix(".pub").read_text().strip()


MAPPED = {"mount": ["--map-current-user", "--keep-caps"], "net": ["--map-root-user"]}
"""Namespace -> who an ordinary user is in it: sshd must find its own user there, adbd must be root."""


@cache
def own(kind: str) -> tuple[str, ...] | None:
    """The beginning of a command that runs in a namespace of its own of this kind (mount, net); None where
    there is none, as mounts in a plain chroot."""
    mapped = ["--user", *MAPPED[kind]] if os.getuid() else []
    argv = (str(program_path("unshare")), f"--{kind}", *mapped)
    may = program_path("unshare") and subprocess.run([*argv, "true"], capture_output=True).returncode == 0
    return argv if may else None


@contextmanager
def disk(folder: Path, options: str) -> Iterator[list[str]]:
    """A small file system on the folder: the beginning of a command that sees it. In a namespace of its own,
    or where there is none and this is root, for all until the block ends."""
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    if there := own("mount"):
        yield [*there, "sh", "-c", f'{shlex.join(mount)} && exec "$@"', "sh"]
        return
    mounted = os.getuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    need(mounted, "needs to mount a file system: run as root, or let users make namespaces")
    try:
        yield []
    finally:
        run(["umount", "-l", str(folder)])


def with_users(passwd: Path) -> list[str]:
    """The beginning of a command that takes the machine's users from this file. It needs no namespace and no
    right, unlike a file that is mounted over the system's."""
    library = preload_path("nss_wrapper")
    need(library, "needs libnss_wrapper: apt-get install libnss-wrapper")
    return ["env", f"LD_PRELOAD={library}", f"NSS_WRAPPER_PASSWD={passwd}", "NSS_WRAPPER_GROUP=/etc/group"]


def plain_shell(home: Path) -> Path:
    """A file of users for with_users: this one's shell is sh, which reads nobody's start-up files."""
    rows = [row.split(":") for row in Path("/etc").joinpath("passwd").read_text().splitlines()]
    user, passwd = getpass.getuser(), home / "passwd"
    lines = [":".join([*row[:-1], "/bin/sh"] if row[0] == user else row) for row in rows]
    passwd.write_text("\n".join(lines) + "\n")
    return passwd


def sshd_command(home: Path) -> list[str]:
    """What starts the sshd whose files are in this folder."""
    passwd = plain_shell(home)
    return [*with_users(passwd), str(program_path("sshd")), "-D", "-e", "-f", str(home / "config")]


@contextmanager
def start_sshd(home: Path, there: Sequence[str] = ()) -> Iterator[Sshd]:
    """sshd in the foreground as this user, ended with its children when the block ends. there: see disk."""
    daemon = program_path("sshd")
    need(
        daemon and program_path("ssh-keygen"),
        "needs sshd: apt-get install openssh-server",
    )
    home.mkdir(parents=True, exist_ok=True)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd as root wants its separation directory
    host_key = make_key(home / "host_key")
    (home / "authorized_keys").write_text(make_key(home / "user_key") + "\n")
    port = free_port()
    (home / "config").write_text(SSHD_CONFIG.format(port=port, home=home))
    with _listening([*there, *sshd_command(home)], home, port) as server:
        address = SshAddress("127.0.0.1", port, getpass.getuser(), host_key, home / "user_key")
        yield Sshd(address, home, server.pid)


@contextmanager
def start_dropbear(home: Path) -> Iterator[Sshd]:
    """dropbear, likewise. It looks for keys in the home folder that the system names, so it gets its users
    from a file where that is `home`."""
    daemon = program_path("dropbear")
    need(daemon and program_path("dropbearkey"), "needs dropbear: apt-get install dropbear-bin")
    keys = home / ".ssh"
    keys.mkdir(parents=True)
    for folder in (home, keys):
        folder.chmod(0o700)
    (keys / "authorized_keys").write_text(make_key(home / "user_key") + "\n")
    (keys / "authorized_keys").chmod(0o600)
    made = [str(program_path("dropbearkey")), "-t", "ed25519", "-f", str(home / "host_key")]
    run(made)
    shown = subprocess.run([*made[:1], "-y", "-f", made[-1]], capture_output=True, text=True, check=True)
    host_key = next(line for line in shown.stdout.splitlines() if line.startswith("ssh-ed25519"))
    user, uid, gid, port = getpass.getuser(), os.getuid(), os.getgid(), free_port()
    passwd = home / "passwd"
    passwd.write_text(f"{user}:x:{uid}:{gid}::{home}:/bin/sh\n")
    with _listening(dropbear_command(home, port), home, port) as process:
        address = SshAddress("127.0.0.1", port, user, " ".join(host_key.split()[:2]), home / "user_key")
        yield Sshd(address, home, process.pid)


def dropbear_command(home: Path, port: int) -> list[str]:
    """What starts the dropbear whose files are in this folder."""
    keys, pid = str(home / "host_key"), str(home / "pid")
    words = ["-F", "-E", "-s", "-p", f"127.0.0.1:{port}", "-r", keys, "-P", pid]
    return [*with_users(home / "passwd"), str(program_path("dropbear")), *words]


@contextmanager
def _listening(argv: list[str], home: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The server, once it listens; it and its sessions end with the block."""
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(argv, stderr=log, start_new_session=True)
    try:
        for _ in range(200):
            if server.poll() is not None:
                pytest.skip(f"{argv[0]} does not start here: {(home / 'log').read_text()[-300:]}")
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield server
    finally:
        server.kill()
        server.wait()


@contextmanager
def start_board(folder: Path) -> Iterator[BoardMachine]:
    """A whole emulated arm64 machine, up to its ssh; it ends with the block."""
    need(program_path("qemu-system-aarch64"), "needs qemu-system-aarch64: apt-get install qemu-system-arm")
    machine = BoardMachine("board", folder=folder)
    try:
        machine.start()
    except SmeltError as error:
        if error.kind != "infra" or "cannot be fetched" not in error.message:
            raise
        pytest.skip(f"needs Debian's packages of arm64: {error}")
    try:
        yield machine
    finally:
        machine.release()
        end = time.monotonic() + 20
        while machine.power.is_on() and time.monotonic() < end:
            time.sleep(0.1)
