"""Debian's drivers of GPU APIs for arm64 -> a device of this machine: bundles with units run there, emulated.

The packages are PoCL (OpenCL) and Mesa's driver for processors (Vulkan), unpacked in smelt's cache. Programs
see them as their own system: the runner starts in a mount namespace whose root they are, with this machine's
folders of files beside them, so that bundles and stores lie where they do outside. PoCL starts its linker,
so the kernel has to know what runs arm64 programs: where the system has not told it, the namespace does.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from smelt.core.diag import SmeltError
from smelt.devicefarm.debian import EMULATED_DRIVERS, unpacked
from smelt.devicefarm.local import LocalTransport
from smelt.devicefarm.qemu_user import find_emulator
from smelt.devicefarm.room import StoreRules

PROCESSOR = "cortex-a76"
"""qemu's own choice has pointer authentication, whose emulation takes ten times as long as all else."""
ENVIRONMENT = {
    "VK_DRIVER_FILES": "/usr/share/vulkan/icd.d/lvp_icd.aarch64.json",
    "VK_ICD_FILENAMES": "/usr/share/vulkan/icd.d/lvp_icd.aarch64.json",
    "VK_INSTANCE_LAYERS": "",
    "OCL_ICD_VENDORS": "/etc/OpenCL/vendors",
}
"""What may name drivers of this machine, by paths that are others there."""

_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")

# Arguments: the tree, the emulator, then the program. The magic is that of ELF for AArch64. Folders that
# programs are made of are the tree's, all others this machine's.
_ENTER = r"""
set -e
tree=$1; emulator=$2; shift 2
table=/proc/sys/fs/binfmt_misc
if [ ! -e $table/qemu-aarch64 ]; then
    mount -t binfmt_misc none $table
    magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    printf '%s' ":qemu-aarch64:M::$magic:$mask:$emulator:F" > $table/register
fi
for folder in /*; do
    case $folder in
    /bin|/etc|/lib*|/sbin|/usr|/var) ;;
    *) if [ -d "$folder" ]; then mkdir -p "$tree$folder"; mount --rbind "$folder" "$tree$folder"; fi ;;
    esac
done
exec chroot "$tree" "$@"
"""


def userland(
    name: str, *, cpu: str | None = None, store: Path | None = None, rules: StoreRules | None = None
) -> LocalTransport:
    """The device. Its packages are fetched at the first call. Raises SmeltError: 'device' where qemu or
    namespaces are missing, or the system is no Debian; 'infra' where the packages cannot be fetched."""
    emulator = find_emulator("qemu-aarch64")
    if shutil.which("unshare") is None:
        raise SmeltError("unshare is not installed", kind="device", hint="apt-get install util-linux")
    tried = subprocess.run([*_NAMESPACE, "true"], capture_output=True, text=True)
    if tried.returncode:
        why = tried.stderr.strip() or f"exit code {tried.returncode}"
        raise SmeltError(
            f"a namespace for its programs cannot be made here ({why})",
            kind="device",
            hint="allow user namespaces; inside a chroot the kernel makes none",
        )
    enter = ("sh", "-c", _ENTER, "enter", str(unpacked(EMULATED_DRIVERS)), emulator)
    return LocalTransport(
        name=name,
        emulated=True,
        store=store,
        rules=rules,
        prefix=(*_NAMESPACE, *enter),
        env={**ENVIRONMENT, "QEMU_CPU": cpu or PROCESSOR},
    )
