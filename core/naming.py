"""What a model is called -> the prefix of its C functions, names of its bundle's files; names of entries."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Container
from dataclasses import dataclass

from smelt.core.diag import SmeltError, printable

LONGEST_PREFIX = 40
FUNCTIONS = (
    "as_stage", "ask_stage", "cancel", "close", "end_stream", "entry", "entry_count", "entry_name", "error",
    "fallback", "finish_stream", "fork", "input_count", "input_name", "input_rank", "input_type",
    "input_unit", "kernel_count", "kernel_device_stats", "kernel_form", "kernel_stats", "memory_stats",
    "open", "output_count", "output_name", "output_rank", "output_type", "output_unit", "peek", "policy",
    "policy_note", "pop", "probe", "profile", "push", "reset", "run", "share", "share_count", "start_stream",
    "state_count", "state_get", "state_name", "state_rank", "state_set", "state_type", "tensor",
    "tensor_copy", "tensor_export", "tensor_free", "tensor_import", "trim", "variant",
)  # fmt: skip
"""What every model can do: model `det` has det_open and so on; smelt.h says what each does."""

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
ALLOWED = (
    f"allowed are up to {LONGEST_PREFIX} of a to z, 0 to 9 and single '_' between them, "
    "the first one a letter"
)

# A model of such a name would have a file that is found instead of the system's, or a function of libc's.
_LANGUAGE = """
    alignas alignof and and_eq arm asm atomic auto bitand bitor bool break case catch char class co_await
    co_return co_yield compl complex concept const const_cast consteval constexpr constinit continue
    decltype default delete do double dynamic_cast else enum explicit export extern false final float for
    friend goto i386 if imaginary import inline int linux long main mips module mutable namespace new
    noexcept noreturn not not_eq nullptr operator or or_eq override private protected public register
    reinterpret_cast requires restrict return short signed sizeof smelt sparc static static_assert
    static_cast stderr stdin stdout struct sun switch template this thread_local throw true try typedef
    typeid typename typeof typeof_unqual union unix unsigned using virtual void volatile wchar_t while xor
    xor_eq
"""
# lib*.so of glibc, musl, Android's NDK, compilers, and what most systems have in /usr/lib
_LIBRARIES = """
    aaudio amidi android anl asan atomic binder binder_ndk bz2 c c_malloc_debug camera2ndk crypt crypto
    curl cutils dl drm egl elf expat ffi form gcc gcc_s gfortran gl gles gmp gomp hwasan icu icudata icuuc
    itm jack jnigraphics jpeg log lsan lzma m magic mediandk memusage menu mvec nativehelper nativewindow
    ncurses neuralnetworks nsl nss_compat nss_dns nss_files opencl openmaxal opensles panel pcprofile png
    pq pthread python quadmath readline resolv rt sqlite sqlite3 ssl ssp stdc stdcpp svml sync tcl
    thread_db tic tinfo tk tsan ubsan udev unwind usb util utils uuid vulkan xml2 xnet xslt yaml z z3 zstd
"""
# *.h of C, C++, POSIX, glibc, musl and compilers: told -Iout, a compiler would find the model's instead
_HEADERS = """
    aio aliases alloca altivec ar argp argz arm_acle arm_neon assert backtrace builtins byteswap cet
    complex cpio cpuid crypt ctype curses dirent dlfcn elf endian envz err errno error eti execinfo fcntl
    features fenv float fmtmsg fnmatch fpregdef fpu_control fstab fts ftw gconv gcov getopt glob grp
    gshadow iconv ieee754 ifaddrs inttypes iso646 langinfo lastlog libgen libintl limits link locale
    malloc math mcheck memory mm_malloc mntent monetary mqueue netdb nl_types nss obstack omp openacc
    paths poll printf proc_service pthread pty pwd re_comp regdef regex regexp resolv sched search
    semaphore setjmp sgidefs sgtty shadow signal spawn stab stdalign stdarg stdatomic stdbit stdbool
    stdckdint stdcountof stddef stdfix stdint stdio stdio_ext stdlib stdnoreturn string strings stropts
    syscall sysexits syslimits syslog tar term termcap termio termios tgmath thread_db threads time ttyent
    uchar ucontext ulimit unctrl unistd unwind utime utmp utmpx values varargs wait wchar wctype wordexp
    zlib
"""
# sem_open, malloc_trim and so on are libc's (or those of a library with a like name)
_PREFIXES = "aio argp dbm fts fts64 gai iconv magic malloc mq pidfd pthread sem shm svc"

RESERVED = frozenset(f"{_LANGUAGE} {_LIBRARIES} {_HEADERS} {_PREFIXES}".split())


@dataclass(frozen=True, slots=True)
class Names:
    """The names that come of a prefix such as 'det'. identity: a piece of a hash, by which the linker tells
    two models of one prefix apart; '' where that is not known."""

    prefix: str
    identity: str = ""

    @property
    def library(self) -> str:
        """The shared library, which is also its SONAME."""
        return f"lib{self.prefix}.so"

    @property
    def archive(self) -> str:
        """The static library."""
        return f"lib{self.prefix}.a"

    @property
    def object(self) -> str:
        """The model's own object file, without the runtime."""
        return f"{self.prefix}.o"

    @property
    def header(self) -> str:
        """The C header that declares the model's functions."""
        return f"{self.prefix}.h"

    @property
    def weights(self) -> str:
        """The weights: two models that lie in one folder have a file each."""
        return f"{self.prefix}.weights"

    @property
    def functions(self) -> tuple[str, ...]:
        """What the model can do."""
        return tuple(f"{self.prefix}_{f}" for f in FUNCTIONS)

    @property
    def opener(self) -> str:
        """What the model's header means by det_open: a name that another model called det does not have."""
        return f"{self.prefix}_open_{self.identity}"


def is_name(text: str) -> bool:
    """Whether a model can be called so."""
    return len(text) <= LONGEST_PREFIX and text not in RESERVED and _NAME.fullmatch(text) is not None


def check_name(text: str) -> str:
    """The name that a user chose. Raises SmeltError(kind='invalid') that says what is allowed."""
    if is_name(text):
        return text
    taken = "it is a word of C, or that of a library, header or function of the system"
    why = taken if text in RESERVED else ALLOWED
    shown = printable(text if len(text) <= 2 * LONGEST_PREFIX else text[: 2 * LONGEST_PREFIX] + "...")
    hint = f"try the name '{name_from(text)}'"
    raise SmeltError(f"'{shown}' cannot be a model's name: {why}", kind="invalid", hint=hint)


def is_entry(text: str) -> bool:
    """Whether an entry can be called so; it needs no name of its own in C."""
    return len(text) <= LONGEST_PREFIX and _NAME.fullmatch(text) is not None


def entry_part(text: str, entries: Container[str]) -> tuple[str | None, str]:
    """(entry, rest) of 'entry/rest'; (None, text) where no entry is called so."""
    entry, slash, rest = text.partition("/")
    return (entry, rest) if slash and entry in entries else (None, text)


def name_from(text: str) -> str:
    """Any text, such as a file name without its suffix, as a name that check_name takes.

    Case, accents and signs are lost; where letters are lost too, or the text is too long, a piece of its hash
    keeps two texts apart.
    """
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    kept = [_plain_character(c) for c in plain]
    base = re.sub("_+", "_", "".join(c or "" for c in kept)).strip("_")
    composed = unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")
    name = base or "model"
    if name[0].isdigit():
        name = f"m_{name}"
    if (text and not base) or None in kept or len(name) > LONGEST_PREFIX:
        name = f"{name[: LONGEST_PREFIX - 9].rstrip('_')}_{hashlib.sha256(composed).hexdigest()[:8]}"
    return f"{name}_model" if name in RESERVED else name


def _plain_character(c: str) -> str | None:
    """What a character of a folded text becomes; None when a letter is lost."""
    if c.isascii():
        return c if c.isalnum() else "_"
    kind = unicodedata.category(c)
    return "" if kind[0] == "M" else "_" if kind[0] in "PZSC" and kind != "Cs" else None
