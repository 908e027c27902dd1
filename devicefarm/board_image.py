"""Debian packages of arm64 -> kernel and initial file system of an emulated board, made once and kept.

The board has busybox, dropbear, an sftp server, and the modules that its network card needs. Whoever starts
it adds the keys (`keys_archive`): the kernel unpacks archives one after the other.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from smelt.core.bundle import replace_file
from smelt.core.cache import cache_dir
from smelt.core.diag import SmeltError
from smelt.devicefarm.debian import BOARD, unpacked

MODULES = ("virtio_mmio", "virtio_net")
_PROGRAMS = ("bin/busybox", "usr/sbin/dropbear", "usr/lib/openssh/sftp-server")
LIBRARIES = re.compile(r"(ld-linux-aarch64|libc|libcrypt|libtomcrypt|libtommath|libgmp|libz)\.so\.[0-9]+")
LINKS = {"usr/lib/sftp-server": "openssh/sftp-server", "bin/sh": "busybox"}
"""dropbear has the path of its sftp server built in."""
FORM = "3"
"""Changes with what is made here, so that an older image is made anew."""

INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin:/usr/sbin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /run /tmp; mount -t devpts devpts /dev/pts
# the root file system tells no free space
mount -t tmpfs -o mode=700,size=80% home /root; mount -t tmpfs tmp /tmp
mkdir -p /root/.ssh; cp /keys/authorized_keys /root/.ssh/; chmod 600 /root/.ssh/authorized_keys
for m in $(cat /modules/order); do insmod /modules/$m; done
echo 1 >/proc/sys/kernel/sysrq
hostname board; ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0
echo "board: up after $(cut -d' ' -f1 /proc/uptime) s"
while :; do dropbear -F -E -s -r /keys/host_key -p 22; sleep 1; done
"""


@dataclass(frozen=True, slots=True)
class BoardImage:
    """The files that the emulator is given."""

    kernel: Path
    initrd: Path


def board_image() -> BoardImage:
    """The image, made at the first call. Raises SmeltError as `unpacked` does, and 'device' for packages that
    lack what is needed."""
    tree = unpacked(BOARD)
    kernel = _only(tree, "boot/vmlinuz-*")
    key = hashlib.sha256(f"{FORM} {tree.name} {kernel.name} {INIT}".encode()).hexdigest()[:16]
    initrd = cache_dir() / "board" / f"initrd-{key}.gz"
    if not initrd.exists():
        initrd.parent.mkdir(parents=True, exist_ok=True)
        replace_file(initrd, gzip.compress(archive(_files(tree)), 6, mtime=0))
    return BoardImage(kernel, initrd)


def keys_archive(host_key: bytes, authorized: str) -> bytes:
    """The archive that goes after the image. host_key: in dropbear's form; authorized: lines of public
    keys."""
    return gzip.compress(
        archive([
            ("keys", stat.S_IFDIR | 0o700, b""),
            ("keys/host_key", stat.S_IFREG | 0o600, host_key),
            ("keys/authorized_keys", stat.S_IFREG | 0o600, authorized.encode()),
        ]),
        mtime=0,
    )  # fmt: skip


def dropbear_key(seed: bytes, public: bytes) -> bytes:
    """An Ed25519 key in dropbear's form: the name, then seed and public half as one string."""
    name, both = b"ssh-ed25519", seed + public
    return len(name).to_bytes(4, "big") + name + len(both).to_bytes(4, "big") + both


def openssh_line(public: bytes) -> str:
    """The public half as OpenSSH writes it."""
    name = b"ssh-ed25519"
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (name, public))
    return f"ssh-ed25519 {base64.b64encode(blob).decode()}"


Member = tuple[str, int, bytes]
"""Path, mode with the kind of file, content (of a link: where it leads)."""


def archive(members: Iterable[Member]) -> bytes:
    """A cpio archive in the kernel's form ('newc'), everything owned by root."""
    made = bytearray()
    for number, (path, mode, data) in enumerate((*members, ("TRAILER!!!", 0, b"")), 1):
        name = path.encode() + b"\0"
        links = 2 if stat.S_ISDIR(mode) else 1
        numbers = (number, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name), 0)
        made += b"070701" + "".join(f"{n:08X}" for n in numbers).encode() + name
        made += bytes(-len(made) % 4)
        made += data
        made += bytes(-len(made) % 4)
    return bytes(made)


def _files(tree: Path) -> Iterator[Member]:
    files: dict[str, tuple[int, bytes]] = {"init": (stat.S_IFREG | 0o755, INIT.encode())}
    for path in _PROGRAMS:
        files[path] = (stat.S_IFREG | 0o755, (tree / path).read_bytes())
    for library in sorted((*tree.glob("lib/aarch64-linux-gnu/*"), *tree.glob("usr/lib/aarch64-linux-gnu/*"))):
        if LIBRARIES.fullmatch(library.name):
            files[f"lib/aarch64-linux-gnu/{library.name}"] = (stat.S_IFREG | 0o755, library.read_bytes())
    loader = "ld-linux-aarch64.so.1"
    files |= {p: (stat.S_IFLNK | 0o777, to.encode()) for p, to in LINKS.items()}
    files[f"lib/{loader}"] = (stat.S_IFLNK | 0o777, f"aarch64-linux-gnu/{loader}".encode())
    files["etc/passwd"] = (stat.S_IFREG | 0o644, b"root:*:0:0:root:/root:/bin/sh\n")
    files["etc/shells"] = (stat.S_IFREG | 0o644, b"/bin/sh\n")
    modules = list(_modules(tree, MODULES))
    for module in modules:
        files[f"modules/{module.name}"] = (stat.S_IFREG | 0o644, module.read_bytes())
    files["modules/order"] = (stat.S_IFREG | 0o644, "\n".join(m.name for m in modules).encode())
    folders = {os.path.dirname(p) for p in files} | {"proc", "sys", "dev", "root", "tmp", "run", "usr/bin"}
    parents = {str(p) for f in folders if f for p in (Path(f), *Path(f).parents)} - {"."}
    for folder in sorted(parents):
        yield folder, stat.S_IFDIR | 0o755, b""
    for path, (mode, data) in sorted(files.items()):
        yield path, mode, data


def _modules(tree: Path, names: Iterable[str], seen: set[str] | None = None) -> Iterator[Path]:
    """The modules with those that they need, in the order of loading, without what is part of the kernel."""
    seen = set() if seen is None else seen
    builtin = _only(tree, "lib/modules/*/modules.builtin").read_text()
    for name in names:
        if name in seen or re.search(rf"/{name.replace('_', '[-_]')}\.ko$", builtin, re.MULTILINE):
            continue
        seen.add(name)
        module = next(
            (m for m in tree.glob("lib/modules/*/kernel/**/*.ko") if m.stem.replace("-", "_") == name), None
        )
        if module is None:
            raise SmeltError(f"the board's kernel has no module {name}", kind="device")
        found = re.search(rb"\0depends=([^\0]*)\0", module.read_bytes())
        yield from _modules(tree, [n for n in (found[1].decode() if found else "").split(",") if n], seen)
        yield module


def _only(tree: Path, pattern: str) -> Path:
    found = sorted(tree.glob(pattern))
    if not found:
        raise SmeltError(f"'{tree}' has no {pattern}", kind="device", hint=f"remove '{tree}' and try again")
    return found[-1]
