"""Paths with rights in; the calling thread out, which the kernel confines to them and keeps off the network.

Landlock (from Linux 5.13 on) confines files and signals, a seccomp filter refuses sockets. Both hold for the
calling thread and for all that it starts afterwards, such as the linker, and cannot be lifted. Where the
system lacks one of them, or refuses it, that one is left out.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Mapping
from functools import cache

# linux/landlock.h. Rights that stand in no row below (devices, links, pipes, sockets) no path has.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << n for n in range(6))
MAKE_DIR, MAKE_FILE, REFER, TRUNCATE = 1 << 7, 1 << 8, 1 << 13, 1 << 14
READ = READ_FILE | READ_DIR
RUN = READ | EXECUTE
WRITE = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_FILE | REFER | TRUNCATE
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
"""The rights that a path which is no folder can have."""

RIGHTS_OF_VERSION = {1: 13, 2: 14, 3: 15, 4: 15}
"""Version of Landlock -> how many rights it knows; later ones know 16."""

IO_URING = 425
"""The number of io_uring_setup on all architectures: a ring could make sockets."""
REFUSED_CALLS = {
    0xC000003E: (41, IO_URING),  # x86_64; x32 has the same numbers and a bit
    0x40000003: (102, 359, IO_URING),  # i386: socketcall and socket
    0xC00000B7: (198, IO_URING),  # aarch64
    0x40000028: (281, IO_URING),  # arm
    0xC00000F3: (198, IO_URING),  # riscv64
    0x400000F3: (198, IO_URING),  # riscv32
}
"""linux/audit.h's number of an architecture -> the calls that are refused. No family of sockets is excepted:
AF_UNIX leads to daemons that start programs for others, such as D-Bus and docker. `socketpair` is let be."""
MACHINES = ("x86_64", "i386", "i686", "aarch64", "armv6l", "armv7l", "armv8l", "riscv64")
"""What `uname -m` says on these architectures."""


def enter(rules: Mapping[str, int]) -> None:
    """Confine the calling thread. rules: path -> its rights and those of all beneath it."""
    if sys.platform != "linux":
        return
    libc().prctl(38, *map(ctypes.c_ulong, (1, 0, 0, 0)))  # PR_SET_NO_NEW_PRIVS, which both ask for
    _confine_files(rules)
    _refuse_sockets()


@cache
def libc() -> ctypes.CDLL:
    """The C library of this process."""
    return ctypes.CDLL(None, use_errno=True)


def _syscall(number: int, *values: int | bytes) -> int:
    """The result of a system call by number; -1 where it fails."""
    call = libc().syscall
    call.restype = ctypes.c_long
    args = (ctypes.c_long(v) if isinstance(v, int) else v for v in values)
    return int(call(ctypes.c_long(number), *args))


def _landlock() -> int:
    """The version of Landlock that the kernel has; 0 where it has none."""
    return max(0, _syscall(444, 0, 0, 1))


def _confine_files(rules: Mapping[str, int]) -> bool:
    """Whether this thread has been confined to the paths, with their rights and to what is beneath them."""
    version = _landlock()
    handled = (1 << RIGHTS_OF_VERSION.get(version, 16)) - 1 if version else 0
    # rights of files; from 4 on TCP, from 6 on abstract sockets and signals to processes outside
    ruleset = struct.pack("=QQQ", handled, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    fd = _syscall(444, ruleset, len(ruleset), 0) if version else -1
    if fd < 0:
        return False
    try:
        for path, rights in rules.items():
            _allow(fd, path, rights & handled)
        return _syscall(446, fd, 0) == 0
    finally:
        os.close(fd)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Add a path to a set of rules, unless there is none."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights &= rights if stat.S_ISDIR(os.fstat(fd).st_mode) else OF_FILES
        _syscall(445, ruleset, 1, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)


def _refuse_sockets() -> bool:
    """Whether this thread has got a filter that refuses the REFUSED_CALLS."""
    if os.uname().machine not in MACHINES:
        return False
    text = ctypes.create_string_buffer(_filter())
    program = struct.pack("HP", (len(text) - 1) // 8, ctypes.addressof(text))
    # without the flag (SPEC_ALLOW) kernels before 5.16 slow a filtered process down
    number = {"x86_64": 317, "aarch64": 277, "riscv64": 277}.get(os.uname().machine)
    if number and sys.maxsize > 1 << 32 and _syscall(number, 1, 4, program) == 0:
        return True
    return int(libc().prctl(22, ctypes.c_ulong(2), program)) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def _filter() -> bytes:
    """The program of the filter, classic BPF. It looks at architecture and number alone, so that the kernel
    remembers its answers per call."""
    load, equal, mask, done = 0x20, 0x15, 0x54, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.EACCES
    text = [(load, 0, 0, 4)]
    for arch, calls in REFUSED_CALLS.items():
        tests = [row for c in calls for row in ((equal, 0, 1, c), (done, 0, 0, refuse))]
        text += [(equal, 0, len(tests) + 3, arch), (load, 0, 0, 0), (mask, 0, 0, 0xBFFFFFFF)]
        text += [*tests, (done, 0, 0, allow)]
    return b"".join(struct.pack("=HBBI", *row) for row in (*text, (done, 0, 0, refuse)))


def protections() -> tuple[tuple[str, str | None], ...]:
    """(what is protected, by what) on this machine; None where a compile goes on without."""
    if sys.platform != "linux":
        return (("files", None), ("network", None))
    version = _landlock()
    # without a program the kernel says EFAULT where it would take one, else EINVAL
    can = (
        os.uname().machine in MACHINES
        and libc().prctl(22, ctypes.c_ulong(2), None) != 0
        and ctypes.get_errno() == errno.EFAULT
    )
    return (
        ("files", f"Landlock, version {version}" if version else None),
        ("network", "seccomp" if can else None),
    )
