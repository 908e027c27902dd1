"""A platform in, zig's command lines for a small static libc out: what stubs promise, and no more.

zig links a static program with all of musl, 1,057 C files, each compiled by a process of its own: 77 s of
processor time (benchmarks/results/compile_time.md). What a runner and the code of a model may call is in a
seventh of them. The flags are those by which zig compiles musl (`zig build-exe -lc --verbose-cc`, 0.17.0).
"""

from __future__ import annotations

from pathlib import Path

from smelt.targets.platform import Platform

# Folders of musl's src, and the files of each that define what `stubs.libraries` lists, or what those need.
# Where a file is missing here, or in a version of zig, a link misses a symbol, and all of musl is built.
MUSL_FILES = {
    "conf": "sysconf",
    "env": "__environ __init_tls __libc_start_main getenv",
    "errno": "__errno_location strerror",
    "exit": "_Exit abort abort_lock atexit exit",
    "fcntl": "open",
    "fenv": "fenv fenv-hf",
    "internal": "defsysinfo libc syscall_ret vdso",
    "ldso": "__dlsym dladdr dlclose dlerror dlopen dlsym",
    "linux": "sysinfo",
    "locale": "__lctrans",
    "math": (
        "__cos __cosdf __expo2 __expo2f __fpclassify __fpclassifyl __math_invalid __math_invalidf "
        "__math_oflow __math_oflowf __math_uflow __math_uflowf __math_xflow __math_xflowf __signbit "
        "__signbitl __sin __sindf acosh asinf asinh asinhf atan2 atan2f atanh atanhf erf erff exp2f_data "
        "exp_data expm1 expm1f fma fmaf ilogb ilogbf ldexp ldexpf lgamma lgamma_r lgammaf lgammaf_r llrint "
        "llrintf llround llroundf logb logbf nearbyint nearbyintf nextafter nextafterf pow pow_data powf "
        "powf_data remainder remainderf remquo remquof scalbln scalblnf scalbn scalbnf signgam sinh sinhf "
        "tgamma tgammaf"
    ),
    "misc": "getauxval getrlimit syscall",
    "mman": "mmap mremap munmap",
    "multibyte": "wcrtomb wctomb",
    "process": "_Fork fork",
    "sched": "affinity sched_yield",
    "signal": "block raise",
    "stdio": (
        "__lockfile __overflow __stdio_close __stdio_exit __stdio_seek __stdio_write __stdout_write "
        "__towrite fflush fprintf fputs fwrite ofl printf putchar puts snprintf stdout vfprintf vsnprintf"
    ),
    "thread": (
        "__lock __set_thread_area __syscall_cp __timedwait __unmapself __wait clone default_attr lock_ptc "
        "pthread_attr_destroy pthread_attr_init pthread_attr_setstacksize pthread_create pthread_join "
        "pthread_rwlock_rdlock pthread_rwlock_timedrdlock pthread_rwlock_timedwrlock "
        "pthread_rwlock_tryrdlock pthread_rwlock_trywrlock pthread_rwlock_unlock pthread_rwlock_wrlock "
        "pthread_setcancelstate pthread_testcancel vmlock"
    ),
    "time": "clock_gettime clock_nanosleep nanosleep",
    "unistd": "lseek read write",
}
MUSL_FLAGS = (
    "-std=c99", "-Os", "-g0", "-w", "-fno-PIC", "-fno-PIE", "-fno-sanitize=all", "-fno-stack-protector",
    "-fno-builtin", "-ffunction-sections", "-fdata-sections", "-fasynchronous-unwind-tables",
    "-ffreestanding", "-fexcess-precision=standard", "-frounding-math", "-ffp-contract=off",
    "-fno-strict-aliasing", "-Wa,--noexecstack", "-D_XOPEN_SOURCE=700", "-DNDEBUG", "-nostdinc",
)  # fmt: skip


def commands(platform: Platform, lib: Path) -> list[list[str]]:
    """What zig is to be called with in one folder, which then has crt1.o, libc.o and zigc.o, the part of
    libc that zig has in its own language; all three want compiler-rt beside them. lib: zig's folder lib."""
    target = str(platform.static_zig)
    architecture = target.split("-")[0]
    source, headers = lib / "libc" / "musl", lib / "libc" / "include"
    folders = [source / f for f in (f"arch/{architecture}", "arch/generic", "src/include", "src/internal")]
    folders += [source / "include", headers / target, headers / "generic-musl"]
    flags = ["-target", target, *platform.zig_flags, *MUSL_FLAGS, f"-isystem{lib / 'include'}"]
    flags += [f"-I{folder}" for folder in folders]
    files = [str(file) for file in _sources(source / "src", architecture)]
    own = [flag for flag in platform.zig_flags if flag.startswith("-mcpu=")]
    own += ["-target", target, "-O", "ReleaseFast", "-fno-PIC", "-fstrip", "-ffunction-sections", "-lc"]
    return [
        ["cc", "-c", *flags, "-DCRT", str(source / "crt" / "crt1.c"), "-o", "crt1.o"],
        ["cc", "-c", *flags, *files, "-o", "libc.o"],
        ["build-obj", *own, "--name", "zigc", str(lib / "c.zig")],
    ]


def _sources(source: Path, architecture: str) -> list[Path]:
    """The architecture's own forms of the files, else the general ones: those that this musl has."""
    found = []
    for folder, names in MUSL_FILES.items():
        for name in names.split():
            forms = [source / folder / architecture / f"{name}{end}" for end in (".c", ".s", ".S")]
            found += [path for path in (*forms, source / folder / f"{name}.c") if path.is_file()][:1]
    return found
