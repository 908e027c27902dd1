"""A platform in, stub libraries in place of its libc out: a link only asks which library defines a name.

So no sysroot, NDK or libc build is needed to link for a platform. Symbols have no versions: a loader then
binds the oldest version of each, which every libc of the last twenty years has.
"""

from __future__ import annotations

import itertools

from smelt.targets.platform import Libc, Platform


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_MEMORY = _words(
    "malloc calloc realloc free posix_memalign memcpy memmove memset memcmp memchr bcmp strlen strcmp "
    "strncmp strchr strrchr strstr"
)
_PROCESS = _words(
    "abort exit _exit atexit fork getenv sysconf getauxval clock_gettime nanosleep sched_yield syscall "
    "printf fprintf snprintf vsnprintf puts putchar fputs fflush atoi strtol strtoll qsort "
    "open close read write lseek mmap munmap"
)
_THREADS = _words(
    "pthread_create pthread_join pthread_attr_init pthread_attr_destroy pthread_attr_setstacksize"
)
_LOADER = _words("dlopen dlsym dlclose dlerror dladdr")
# C99's functions, each also for float
_MATH = tuple(
    name + suffix
    for name, suffix in itertools.product(
        _words(
            "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 "
            "fabs fdim floor fma fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 "
            "log1p log2 logb lrint lround modf nan nearbyint nextafter pow remainder remquo rint round "
            "scalbln scalbn sin sinh sqrt tan tanh tgamma trunc"
        ),
        ("", "f"),
    )
)
# The Arm run-time ABI's memory functions, which LLVM calls on 32-bit Arm; libc has them.
_ARM_MEMORY = tuple(
    f"__aeabi_mem{verb}{align}"
    for verb, align in itertools.product(("cpy", "move", "set", "clr"), ("", "4", "8"))
)

_LIBRARIES: dict[Libc, dict[str, tuple[str, ...]]] = {
    # the four are one file from glibc 2.34 on; older ones need all four names
    "glibc": {
        "libc.so.6": _MEMORY + _PROCESS + ("__libc_start_main", "__errno_location"),
        "libm.so.6": _MATH,
        "libdl.so.2": _LOADER,
        "libpthread.so.0": _THREADS,
    },
    "bionic": {
        "libc.so": _MEMORY + _PROCESS + _THREADS + ("__libc_init", "__errno"),
        "libm.so": _MATH,
        "libdl.so": _LOADER,
    },
}


def libraries(platform: Platform) -> dict[str, tuple[str, ...]]:
    """File name of each library -> the functions that it is known to have."""
    rows = dict(_LIBRARIES[platform.libc])
    if platform.arch == "arm":
        first = next(iter(rows))
        rows[first] += _ARM_MEMORY
    return rows


def stub_ir(platform: Platform, names: tuple[str, ...]) -> str:
    """LLVM IR that defines each name as an empty function."""
    # nounwind: else 32-bit Arm asks for an unwinder
    lines = (f"define void @{name}() nounwind {{ ret void }}" for name in sorted(names))
    return f'target triple = "{platform.triple}"\n' + "\n".join(lines) + "\n"
