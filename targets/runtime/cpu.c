/* cpu.c: the names of processor features that code uses in, those that are missing out.
 *
 * Names are LLVM's. A feature without a row here, or that this system cannot be asked about, counts as present: only a model
 * that certainly cannot run is refused. targets/cpu_features.py says which names are asked for. Those that SMELT_CPU_WITHOUT lists
 * count as missing, so that what a lesser processor runs can be tried on this one. */
#include "rt.h"

typedef struct {
  const char *name;
  uint32_t at[4]; /* x86: leaf, subleaf, register (a, b, c, d), bit | state << 8; else: auxiliary vector's type, bit */
} feature;

#if defined(__x86_64__)
enum { A, B, C, D };
enum { YMM = 0x6 << 8, ZMM = 0xe6 << 8 }; /* what the system must save (XCR0) before the registers may be used */
static const feature FEATURES[] = {
    {"sse3", {1, 0, C, 0}}, {"ssse3", {1, 0, C, 9}}, {"sse4.1", {1, 0, C, 19}}, {"sse4.2", {1, 0, C, 20}},
    {"movbe", {1, 0, C, 22}}, {"popcnt", {1, 0, C, 23}}, {"avx", {1, 0, C, 28 | YMM}}, {"fma", {1, 0, C, 12 | YMM}},
    {"f16c", {1, 0, C, 29 | YMM}}, {"bmi", {7, 0, B, 3}}, {"avx2", {7, 0, B, 5 | YMM}}, {"bmi2", {7, 0, B, 8}},
    {"adx", {7, 0, B, 19}}, {"avx512f", {7, 0, B, 16 | ZMM}}, {"avx512dq", {7, 0, B, 17 | ZMM}},
    {"avx512ifma", {7, 0, B, 21 | ZMM}}, {"avx512cd", {7, 0, B, 28 | ZMM}}, {"avx512bw", {7, 0, B, 30 | ZMM}},
    {"avx512vl", {7, 0, B, 31 | ZMM}}, {"avx512vbmi", {7, 0, C, 1 | ZMM}}, {"avx512vbmi2", {7, 0, C, 6 | ZMM}},
    {"gfni", {7, 0, C, 8}}, {"vaes", {7, 0, C, 9 | YMM}}, {"vpclmulqdq", {7, 0, C, 10 | YMM}},
    {"avx512vnni", {7, 0, C, 11 | ZMM}}, {"avx512bitalg", {7, 0, C, 12 | ZMM}},
    {"avx512vpopcntdq", {7, 0, C, 14 | ZMM}}, {"avx512fp16", {7, 0, D, 23 | ZMM}},
    {"avxvnni", {7, 1, A, 4 | YMM}}, {"avx512bf16", {7, 1, A, 5 | ZMM}}, {"avxifma", {7, 1, A, 23 | YMM}},
    {"avxvnniint8", {7, 1, D, 4 | YMM}}, {"avxneconvert", {7, 1, D, 5 | YMM}}, {"avxvnniint16", {7, 1, D, 10 | YMM}},
    {"lzcnt", {0x80000001, 0, C, 5}}, {"sse4a", {0x80000001, 0, C, 6}}, {"xop", {0x80000001, 0, C, 11 | YMM}},
    {"fma4", {0x80000001, 0, C, 16 | YMM}}, {"tbm", {0x80000001, 0, C, 21}},
};

static void cpuid(uint32_t leaf, uint32_t subleaf, uint32_t r[4]) {
  __asm__ volatile("cpuid" : "=a"(r[A]), "=b"(r[B]), "=c"(r[C]), "=d"(r[D]) : "a"(leaf), "c"(subleaf));
}

/* What the system saves of each thread's registers; 0 when it does not say (OSXSAVE). */
static uint32_t saved_state(void) {
  uint32_t r[4], low, high;
  cpuid(1, 0, r);
  if (!(r[C] >> 27 & 1)) return 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  (void)high;
  return low;
}

static int has(const feature *f) {
  uint32_t r[4], leaf = f->at[0], state = f->at[3] >> 8;
  cpuid(leaf & 0x80000000u, 0, r); /* the last leaf of its range */
  if (r[A] < leaf) return 0;
  if (f->at[1]) {
    cpuid(leaf, 0, r); /* the last subleaf */
    if (r[A] < f->at[1]) return 0;
  }
  cpuid(leaf, f->at[1], r);
  return (r[f->at[2]] >> (f->at[3] & 31) & 1) && (saved_state() & state) == state;
}
#else
unsigned long getauxval(unsigned long);
enum { HWCAP = 16, HWCAP2 = 26, PROBE = -1 };
#if defined(__aarch64__)
static const feature FEATURES[] = {
    {"neon", {HWCAP, 1}}, {"lse", {HWCAP, 8}}, {"fullfp16", {HWCAP, 10}}, {"rdm", {HWCAP, 12}}, {"jsconv", {HWCAP, 13}},
    {"complxnum", {HWCAP, 14}}, {"rcpc", {HWCAP, 15}}, {"dotprod", {HWCAP, 20}}, {"sve", {HWCAP, 22}},
    {"fp16fml", {HWCAP, 23}}, {"rcpc-immo", {HWCAP, 26}}, {"flagm", {HWCAP, 27}}, {"sve2", {HWCAP2, 1}},
    {"altnzcv", {HWCAP2, 7}}, {"fptoint", {HWCAP2, 8}}, {"i8mm", {HWCAP2, 13}}, {"bf16", {HWCAP2, 14}},
};
#elif defined(__arm__)
static const feature FEATURES[] = {
    {"neon", {HWCAP, 12}}, {"vfp3", {HWCAP, 13}}, {"vfp4", {HWCAP, 16}}, {"hwdiv-arm", {HWCAP, 17}}, {"hwdiv", {HWCAP, 18}},
    {"d32", {HWCAP, 19}}, {"fullfp16", {HWCAP, 23}}, {"dotprod", {HWCAP, 24}},
};
#else /* riscv64: letters in HWCAP, the others by riscv_hwprobe, which systems before Linux 6.4 do not have */
static const feature FEATURES[] = {
    {"m", {HWCAP, 'm' - 'a'}}, {"a", {HWCAP, 0}}, {"f", {HWCAP, 'f' - 'a'}}, {"d", {HWCAP, 'd' - 'a'}},
    {"c", {HWCAP, 'c' - 'a'}}, {"v", {HWCAP, 'v' - 'a'}}, {"zba", {(uint32_t)PROBE, 3}}, {"zbb", {(uint32_t)PROBE, 4}},
    {"zbs", {(uint32_t)PROBE, 5}}, {"zicond", {(uint32_t)PROBE, 35}},
};
static int probed(uint32_t bit) {
  struct { int64_t key; uint64_t value; } pair = {4 /* IMA_EXT_0 */, 0};
  long r = sm_syscall(258 /* riscv_hwprobe */, (long)&pair, 1, 0, 0, 0, 0);
  return r || pair.key < 0 || (pair.value >> bit & 1);
}
#define PROBED(f) if ((f)->at[0] == (uint32_t)PROBE) return probed((f)->at[1])
#endif
#ifndef PROBED
#define PROBED(f) (void)0
#endif

static int has(const feature *f) {
  PROBED(f);
  if (!getauxval(HWCAP)) return 1; /* the system does not say */
  return (int)(getauxval(f->at[0]) >> f->at[1] & 1);
}
#endif

/* Is a word of a list, of n characters, surely missing? */
static int lacks(const char *word, size_t n) {
  for (size_t i = 0; i < sizeof FEATURES / sizeof *FEATURES; i++)
    if (strlen(FEATURES[i].name) == n && !strncmp(FEATURES[i].name, word, n)) return !has(&FEATURES[i]);
  return 0;
}

/* Is a word of n characters in a list with ',' between its words? */
static int listed(const char *list, const char *word, size_t n) {
  for (const char *at = list; at && *at;) {
    const char *comma = strchr(at, ',');
    size_t own = comma ? (size_t)(comma - at) : strlen(at);
    if (own == n && !strncmp(at, word, n)) return 1;
    at = comma ? comma + 1 : NULL;
  }
  return 0;
}

int rt_cpu_lacks(const char *features, char *missing, size_t room) {
  const char *word = features, *without = getenv("SMELT_CPU_WITHOUT");
  size_t used = 0;
  int found = 0;
  while (word && *word) {
    const char *comma = strchr(word, ',');
    size_t n = comma ? (size_t)(comma - word) : strlen(word);
    if (lacks(word, n) || listed(without, word, n)) {
      found = 1;
      if (used + n + 3 < room) used += (size_t)snprintf(missing + used, room - used, "%s%.*s", used ? ", " : "", (int)n, word);
    }
    word = comma ? comma + 1 : NULL;
  }
  return found;
}
