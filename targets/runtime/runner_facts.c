/* runner_facts.c: procfs, sysfs and the auxiliary vector -> JSON. */
#include "runner_facts.h"

#include "runner_condition.h"
#include "runner_machine.h"
#include "runner_model.h"
#include "runner_units.h"

#define RUNNER_VERSION "1"

typedef struct { uint8_t word, bit; const char *name; } feature; /* word 0: AT_HWCAP, 1: AT_HWCAP2 */
static const feature FEATURES[] = {
#if defined(__aarch64__)
    {0, 1, "neon"}, {0, 3, "aes"}, {0, 8, "atomics"}, {0, 9, "fphp"}, {0, 10, "fp16"}, {0, 20, "dotprod"}, {0, 22, "sve"},
    {0, 23, "fp16fml"}, {1, 1, "sve2"}, {1, 9, "svei8mm"}, {1, 12, "svebf16"}, {1, 13, "i8mm"}, {1, 14, "bf16"},
    {1, 17, "bti"}, {1, 23, "sme"},
#elif defined(__arm__)
    {0, 6, "vfp"}, {0, 12, "neon"}, {0, 13, "vfp3"}, {0, 16, "vfp4"}, {0, 17, "idiva"}, {0, 24, "dotprod"},
#elif defined(__riscv)
    {0, 0, "a"}, {0, 2, "c"}, {0, 3, "d"}, {0, 5, "f"}, {0, 8, "i"}, {0, 12, "m"}, {0, 21, "v"},
#endif
    {0, 255, NULL}};

uint64_t number_after(const char *text, const char *key) {
  const char *p = find_text(text, key);
  uint64_t value = 0;
  if (!p) return 0;
  for (p += strlen(key); *p && *p != '\n' && (*p < '0' || *p > '9'); p++) {}
  for (; *p >= '0' && *p <= '9'; p++) value = value * 10 + (uint64_t)(*p - '0');
  return value;
}

static void put_line_after(buffer *b, const char *text, const char *key) { /* rest of "key : value" as a JSON string */
  const char *p = find_text(text, key);
  size_t n = 0;
  if (p)
    for (p += strlen(key); *p == ' ' || *p == '\t' || *p == ':'; p++) {}
  while (p && p[n] && p[n] != '\n') n++;
  put_quoted_n(b, p ? p : "", n);
}

uint64_t auxiliary(unsigned long key) {
  unsigned long pairs[128];
  int fd = sys_open("/proc/self/auxv", SYS_O_RDONLY);
  long n = fd < 0 ? 0 : sys_read(fd, pairs, sizeof pairs);
  if (fd >= 0) sys_close(fd);
  for (size_t i = 0; n > 0 && i + 1 < (size_t)n / sizeof pairs[0]; i += 2)
    if (pairs[i] == key) return pairs[i + 1];
  return 0;
}

#if defined(__x86_64__)
/* x86 tells by cpuinfo's flags; these are the ones that code generation asks about. */
static const char *const X86_FLAGS[] = {"sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl",
                                        "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", NULL};

static int has_word(const char *line, const char *word) {
  size_t n = strlen(word);
  while (*line && *line != '\n') {
    while (*line == ' ' || *line == '\t') line++;
    size_t m = 0;
    while (line[m] && line[m] != ' ' && line[m] != '\n') m++;
    if (m == n && !memcmp(line, word, n)) return 1;
    line += m;
    if (!m) break;
  }
  return 0;
}
#endif

static void put_features(buffer *b, const char *cpuinfo) {
  uint64_t caps[2] = {auxiliary(16), auxiliary(26)};
  const char *sep = "";
  put(b, "[");
  for (const feature *f = FEATURES; f->name; f++)
    if (caps[f->word] >> f->bit & 1) {
      put_format(b, "%s%q", sep, f->name);
      sep = ",";
    }
#if defined(__x86_64__)
  const char *flags = find_text(cpuinfo, "flags");
  while (flags && *flags && *flags != ':') flags++;
  for (const char *const *name = X86_FLAGS; flags && *flags && *name; name++)
    if (has_word(flags + 1, *name)) {
      put_format(b, "%s%q", sep, *name);
      sep = ",";
    }
#else
  (void)cpuinfo;
#endif
  put(b, "]");
}

static uint64_t cpus_allowed(void) {
  uint8_t mask[1024];
  uint64_t count = 0;
  long n = sys(NR_sched_getaffinity, 0, sizeof mask, (long)mask, 0, 0, 0);
  for (long i = 0; i < n; i++) count += (uint64_t)__builtin_popcount(mask[i]);
  return count ? count : 1;
}

void put_facts(buffer *b, const char *sysfs, int probe_units) {
  static char cpuinfo[16384], memory[4096];
  char boot[64], board[128];
  sys_utsname name;
  memset(&name, 0, sizeof name);
  sys(NR_uname, (long)&name, 0, 0, 0, 0, 0);
  read_small("/proc/cpuinfo", cpuinfo, sizeof cpuinfo);
  read_small("/proc/meminfo", memory, sizeof memory);
  read_small("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
  read_small("/proc/device-tree/model", board, sizeof board);
  put_format(b, "{\"protocol\":%u,\"runner\":%q,\"arch\":%q,\"pointer_bits\":%u,\"kernel\":%q,\"machine\":%q",
             U(FRAME_VERSION), RUNNER_VERSION, RUNNER_ARCH, U(8 * sizeof(void *)), name.release, name.machine);
  put_format(b, ",\"page_size\":%u,\"cores\":%u,\"memory_kb\":%u,\"available_kb\":%u,\"boot_id\":%q,\"board\":%q,\"pid\":%u",
             auxiliary(6), cpus_allowed(), number_after(memory, "MemTotal:"), number_after(memory, "MemAvailable:"), boot,
             board, U(sys_getpid()));
  put(b, ",\"libc\":");
  put_libc(b);
  put(b, ",\"cpu\":");
  put_line_after(b, cpuinfo, "model name");
  put(b, ",\"features\":");
  put_features(b, cpuinfo);
  put(b, ",");
  put_emulation(b, sysfs, cpuinfo);
  put(b, ",");
  put_clusters(b, sysfs);
  put(b, ",\"units\":");
  if (probe_units) put_units(b);
  else put(b, "[]");
  put_format(b, ",\"units_probed\":%s,\"condition\":", probe_units ? "true" : "false");
  put_condition(b, sysfs);
  put(b, "}");
}
