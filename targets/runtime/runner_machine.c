/* runner_machine.c: procfs, sysfs, device tree and cpuid -> what the board is. */
#include "runner_machine.h"

#include "runner_facts.h"

enum { PATH_CAP = 320, VALUE_CAP = 160, MOST_CPUS = 4096, MOST_CACHES = 8 };

const char *find_text(const char *in, const char *word) {
  for (; *in; in++) {
    size_t n = 0;
    while (word[n] && in[n] == word[n]) n++;
    if (!word[n]) return in;
  }
  return NULL;
}

/* The file "<sysfs>/<folder><number>/<leaf>"; 0 where it cannot be read. */
static size_t read_numbered(const char *sysfs, const char *folder, uint64_t number, const char *leaf, char *to, size_t cap) {
  char path[PATH_CAP];
  buffer p = {(uint8_t *)path, 0, 0, sizeof path};
  to[0] = 0;
  if (strlen(sysfs) + strlen(folder) + strlen(leaf) + 24 > sizeof path) return 0;
  put_format(&p, "%s/%s%u/%s", sysfs, folder, number, leaf);
  path[p.len] = 0;
  return read_small(path, to, cap);
}

static size_t read_under(const char *root, const char *leaf, char *to, size_t cap) {
  char path[PATH_CAP];
  buffer p = {(uint8_t *)path, 0, 0, sizeof path};
  to[0] = 0;
  if (strlen(root) + strlen(leaf) + 2 > sizeof path) return 0;
  put_format(&p, "%s/%s", root, leaf);
  path[p.len] = 0;
  return read_small(path, to, cap);
}

static int64_t number_or_unknown(size_t read, const char *text) { return read ? I(number_after(text, "")) : I(-1); }

/* ---- emulation ---- */

static long link_target(const char *path, char *to, size_t cap) {
  long n = sys(NR_readlinkat, SYS_AT_FDCWD, (long)path, (long)to, (long)cap - 1, 0, 0);
  to[n > 0 ? n : 0] = 0;
  return n;
}

static int exists(const char *path) {
  int fd = sys_open(path, 010000000 /* O_PATH */);
  if (fd >= 0) sys_close(fd);
  return fd >= 0;
}

/* A user-mode emulator rewrites /proc/self, but not what leads to the same entry by another name. */
static int by_interpreter(buffer *b) {
  char own[VALUE_CAP], real[VALUE_CAP];
  long n = link_target("/proc/self/exe", own, sizeof own), m = link_target("/proc/thread-self/exe", real, sizeof real);
  if (n <= 0 || m <= 0 || !strcmp(own, real)) return 0;
  const char *name = real;
  for (const char *p = real; *p; p++)
    if (*p == '/') name = p + 1;
  put_format(b, "the program runs under %s", name);
  return 1;
}

#if defined(__x86_64__)
static const char *const KERNELS[] = {"x86_64", NULL};
#elif defined(__aarch64__)
static const char *const KERNELS[] = {"aarch64", NULL};
#elif defined(__riscv)
static const char *const KERNELS[] = {"riscv", NULL};
#else
static const char *const KERNELS[] = {"arm", "aarch64", NULL};
#endif

static int by_kernel(buffer *b) {
  char arch[VALUE_CAP];
  if (!read_small("/proc/sys/kernel/arch", arch, sizeof arch)) return 0; /* Linux 6.1 and newer have it */
  for (const char *const *k = KERNELS; *k; k++)
    if (find_text(arch, *k) == arch) return 0;
  put_format(b, "the kernel is one for %s, the program one for " RUNNER_ARCH, arch);
  return 1;
}

#if defined(__x86_64__)
static void cpuid(uint32_t leaf, uint32_t out[4]) {
  __asm__ volatile("cpuid" : "=a"(out[0]), "=b"(out[1]), "=c"(out[2]), "=d"(out[3]) : "a"(leaf), "c"(0));
}

/* The hypervisor's own name for itself, such as KVMKVMKVM; "" without one. */
static void hypervisor_name(char name[16], const char *sysfs) {
  uint32_t r[4];
  (void)sysfs;
  memset(name, 0, 16);
  cpuid(1, r);
  if (!(r[2] >> 31)) return;
  cpuid(0x40000000, r);
  memcpy(name, r + 1, 12);
}
#else
static void hypervisor_name(char name[16], const char *sysfs) {
  char text[VALUE_CAP];
  size_t n = read_under(sysfs, "hypervisor/type", text, sizeof text);
  memset(name, 0, 16);
  if (n) memcpy(name, text, n < 15 ? n : 15);
  else if (read_under(sysfs, "class/dmi/id/product_name", text, sizeof text) && find_text(text, "KVM")) memcpy(name, "KVM", 3);
}
#endif

/* Words of a board's name that only boards made of software have. "virt" boards of qemu look the same under a hypervisor of the
 * same architecture, which no program can tell apart: such a board counts as emulated. */
static const char *const SOFTWARE_BOARDS[] = {"dummy-virt", "riscv-virtio", "qemu", "QEMU", "FVP", "fvp", "foundation-v8",
                                              "goldfish", "ranchu", "Goldfish", "gem5", NULL};

static int by_board(buffer *b, const char *text, const char *where) {
  for (const char *const *word = SOFTWARE_BOARDS; *word; word++)
    if (find_text(text, *word)) {
      put_format(b, "%s says '%s'", where, text);
      return 1;
    }
  return 0;
}

static void find_emulation(buffer *b, const char *sysfs, const char *cpuinfo, const char *hypervisor) {
  char text[VALUE_CAP];
  if (by_interpreter(b) || by_kernel(b)) return;
  if (find_text(hypervisor, "TCG")) return put(b, "the processor is qemu's (TCG)");
  read_small("/proc/device-tree/compatible", text, sizeof text);
  if (by_board(b, text, "the device tree")) return;
  read_small("/proc/device-tree/model", text, sizeof text);
  if (by_board(b, text, "the board's model")) return;
  if (exists("/dev/goldfish_pipe") || exists("/dev/qemu_pipe")) return put(b, "it has the devices of the Android emulator");
#if defined(__x86_64__) /* the name QEMU is also that of a machine whose processor is real, under KVM */
  (void)cpuinfo;
  (void)sysfs;
#else
  if (find_text(cpuinfo, "vendor_id")) return put(b, "/proc/cpuinfo is that of another architecture");
  if (find_text(cpuinfo, "CPU implementer\t: 0x00")) return put(b, "the processor's maker is 0x00, which is software");
  static const char *const names[] = {"sys_vendor", "product_name"};
  for (int i = 0; i < 2; i++) {
    char path[32];
    buffer p = {(uint8_t *)path, 0, 0, sizeof path};
    put_format(&p, "class/dmi/id/%s", names[i]);
    path[p.len] = 0;
    if (!read_under(sysfs, path, text, sizeof text)) continue;
    if (!find_text(hypervisor, "KVM") && by_board(b, text, "the firmware")) return;
  }
  if (find_text(cpuinfo, "QEMU") || find_text(cpuinfo, "Goldfish") || find_text(cpuinfo, "ranchu"))
    put(b, "/proc/cpuinfo names an emulator");
#endif
}

void put_emulation(buffer *b, const char *sysfs, const char *cpuinfo) {
  char hypervisor[16];
  uint8_t room[PATH_CAP + VALUE_CAP];
  buffer why = {room, 0, 0, sizeof room};
  hypervisor_name(hypervisor, sysfs);
  find_emulation(&why, sysfs, cpuinfo, hypervisor);
  put(b, "\"emulation\":");
  put_quoted_n(b, (const char *)why.at, why.len);
  put_format(b, ",\"hypervisor\":%q", hypervisor);
}

/* ---- processors ---- */

static uint64_t cpus_possible(const char *sysfs) {
  char text[VALUE_CAP];
  uint64_t last = 0, value = 0;
  if (!read_under(sysfs, "devices/system/cpu/possible", text, sizeof text)) return 1;
  for (const char *p = text; *p; p++) { /* "0-3,8-11": the last number is the highest */
    value = *p >= '0' && *p <= '9' ? value * 10 + (uint64_t)(*p - '0') : 0;
    if (value > last) last = value;
  }
  return last < MOST_CPUS ? last + 1 : MOST_CPUS;
}

static const char CPU[] = "devices/system/cpu/cpu";

static void put_caches(buffer *b, const char *sysfs, uint64_t cpu) {
  static const char *const fields[] = {"level", "coherency_line_size", "size", "type", "shared_cpu_list"};
  char text[VALUE_CAP], leaf[64];
  put(b, "[");
  for (uint64_t index = 0; index < MOST_CACHES; index++)
    for (int i = 0; i < 5; i++) {
      buffer p = {(uint8_t *)leaf, 0, 0, sizeof leaf};
      put_format(&p, "cache/index%u/%s", index, fields[i]);
      leaf[p.len] = 0;
      size_t n = read_numbered(sysfs, CPU, cpu, leaf, text, sizeof text);
      if (i == 0 && !n) return put(b, "]");
      if (i == 0) put_format(b, "%s{\"level\":%u", index ? "," : "", number_after(text, ""));
      if (i == 1) put_format(b, ",\"line\":%u", number_after(text, ""));
      if (i == 2) put_format(b, ",\"kb\":%u", number_after(text, "") * (find_text(text, "M") ? 1024 : 1));
      if (i == 3) put_format(b, ",\"type\":%q", text);
      if (i == 4) put_format(b, ",\"shared\":%q}", text);
    }
  put(b, "]");
}

/* What makes two processors different, as JSON members; 0 where this number has no processor. */
static int put_kind(buffer *b, const char *sysfs, uint64_t cpu) {
  char text[VALUE_CAP];
  size_t known = 0;
#ifndef __x86_64__ /* there a cluster is what shares a cache, which the caches say */
  known = read_numbered(sysfs, CPU, cpu, "topology/cluster_cpus_list", text, sizeof text);
#endif
  if (!known) known = read_numbered(sysfs, CPU, cpu, "topology/core_siblings_list", text, sizeof text);
  put_format(b, "\"siblings\":%q", text);
  size_t n = read_numbered(sysfs, CPU, cpu, "regs/identification/midr_el1", text, sizeof text);
  put_format(b, ",\"midr\":%q", text);
  known += n;
  n = read_numbered(sysfs, CPU, cpu, "cpu_capacity", text, sizeof text);
  put_format(b, ",\"capacity\":%i", number_or_unknown(n, text));
  known += n;
  n = read_numbered(sysfs, CPU, cpu, "cpufreq/cpuinfo_max_freq", text, sizeof text);
  put_format(b, ",\"most_khz\":%i", number_or_unknown(n, text));
  return known + n > 0;
}

void put_clusters(buffer *b, const char *sysfs) {
  uint8_t kinds[2][16 * VALUE_CAP];
  uint64_t first = 0, most = cpus_possible(sysfs), groups = 0;
  buffer last = {kinds[0], 0, 0, sizeof kinds[0]};
  put(b, "\"clusters\":[");
  for (uint64_t cpu = 0; cpu <= most; cpu++) {
    buffer kind = {last.at == kinds[0] ? kinds[1] : kinds[0], 0, 0, sizeof kinds[0]};
    int there = cpu < most && put_kind(&kind, sysfs, cpu);
    if (!there) kind.len = 0;
    if (kind.len == last.len && !memcmp(kind.at, last.at, kind.len)) continue;
    if (last.len) {
      put_format(b, "%s{\"first\":%u,\"count\":%u,", groups++ ? "," : "", first, cpu - first);
      put_n(b, (const char *)last.at, last.len);
      put(b, ",\"caches\":");
      put_caches(b, sysfs, first);
      put(b, "}");
    }
    first = cpu;
    last = kind;
  }
  put(b, "]");
}
