/* runner_condition.c: what may slow the device down now, from sysfs and procfs. */
#include "runner_condition.h"

const int64_t NONE = INT64_MIN;

static char *path_of(buffer *b) { /* the text that was put; the buffer keeps its memory */
  put_n(b, "", 1);
  b->len = 0;
  return (char *)b->at;
}

static int64_t to_signed(const char *text) {
  int64_t value = 0;
  const char *p = text + (*text == '-');
  if (*p < '0' || *p > '9') return NONE;
  for (int digits = 0; *p >= '0' && *p <= '9' && digits < 18; p++, digits++) value = value * 10 + (*p - '0');
  return *text == '-' ? -value : value;
}

static int64_t number_at(buffer *path) {
  char value[64];
  return read_small(path_of(path), value, sizeof value) ? to_signed(value) : NONE;
}

size_t list_numbers(const char *folder, const char *prefix, uint32_t *numbers, size_t most) {
  char entries[4096];
  size_t n = 0, head = strlen(prefix);
  int fd = sys_open(folder, SYS_O_RDONLY);
  for (long got; fd >= 0 && (got = sys(NR_getdents64, fd, (long)entries, sizeof entries, 0, 0, 0)) > 0;)
    for (long at = 0; at < got;) { /* the kernel's linux_dirent64: inode, offset, u16 length, u8 type, name */
      uint16_t length;
      memcpy(&length, entries + at + 16, sizeof length);
      const char *name = entries + at + 19, *end = name + head;
      int64_t number = strlen(name) > head && !memcmp(name, prefix, head) ? to_signed(end) : NONE;
      while (number >= 0 && *end >= '0' && *end <= '9') end++;
      if (number >= 0 && number <= INT32_MAX && !*end && n < most) {
        size_t i = n++;
        for (; i && numbers[i - 1] > (uint32_t)number; i--) numbers[i] = numbers[i - 1];
        numbers[i] = (uint32_t)number;
      }
      at += length;
    }
  if (fd >= 0) sys_close(fd);
  return n;
}

/* Fans are cooling devices, too; these are the ones that slow processors down. */
static int slows_down(const char *type) {
  static const char *const kinds[] = {"cpufreq", "thermal-cpufreq", "devfreq", "thermal-devfreq", "Processor"};
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
    if (strlen(type) >= strlen(kinds[i]) && !memcmp(type, kinds[i], strlen(kinds[i]))) return 1;
  return 0;
}

void hardware_list(hardware *h, const char *sysfs) {
  static buffer p;
  uint32_t coolers[PARTS_MAX];
  char type[64];
  memset(h, 0, sizeof *h);
  h->sysfs = sysfs;
  put_format(&p, "%s/class/thermal", sysfs);
  const char *thermal = path_of(&p);
  h->n_zones = list_numbers(thermal, "thermal_zone", h->zones, PARTS_MAX);
  size_t n = list_numbers(thermal, "cooling_device", coolers, PARTS_MAX);
  for (size_t i = 0; i < n; i++) {
    put_format(&p, "%s/class/thermal/cooling_device%u/type", sysfs, U(coolers[i]));
    if (read_small(path_of(&p), type, sizeof type) && slows_down(type)) h->coolers[h->n_coolers++] = coolers[i];
  }
  put_format(&p, "%s/devices/system/cpu/cpufreq", sysfs);
  h->n_policies = list_numbers(path_of(&p), "policy", h->policies, PARTS_MAX);
  if (h->n_policies) return;
  put_format(&p, "%s/devices/system/cpu", sysfs);
  n = list_numbers(path_of(&p), "cpu", h->policies, PARTS_MAX);
  for (size_t i = 0; i < n; i++) {
    put_format(&p, "%s/devices/system/cpu/cpu%u/cpufreq/scaling_max_freq", sysfs, U(h->policies[i]));
    if (number_at(&p) != NONE) h->policies[h->n_policies++] = h->policies[i];
  }
  h->by_cpu = 1;
}

static buffer *policy_file(const hardware *h, size_t i, const char *file) {
  static buffer p;
  const char *form = h->by_cpu ? "%s/devices/system/cpu/cpu%u/cpufreq/%s" : "%s/devices/system/cpu/cpufreq/policy%u/%s";
  put_format(&p, form, h->sysfs, U(h->policies[i]), file);
  return &p;
}

static buffer *thermal_file(const hardware *h, const char *kind, uint32_t number, const char *file) {
  static buffer p;
  put_format(&p, "%s/class/thermal/%s%u/%s", h->sysfs, kind, U(number), file);
  return &p;
}

void look(const hardware *h, uint32_t cpu, glance *g) {
  static buffer p;
  *g = (glance){NONE, NONE, NONE, NONE};
  for (size_t i = 0; i < h->n_zones; i++) {
    int64_t milli = number_at(thermal_file(h, "thermal_zone", h->zones[i], "temp"));
    if (milli > g->millidegrees && milli < 150000) g->millidegrees = milli; /* a sensor that is absent tells absurd heat */
  }
  for (size_t i = 0; i < h->n_policies; i++) {
    int64_t limit = number_at(policy_file(h, i, "scaling_max_freq"));
    if (limit >= 0) g->limits_khz = (g->limits_khz == NONE ? 0 : g->limits_khz) + limit;
  }
  for (size_t i = 0; i < h->n_coolers; i++) {
    int64_t level = number_at(thermal_file(h, "cooling_device", h->coolers[i], "cur_state"));
    if (level >= 0) g->cooling = (g->cooling == NONE ? 0 : g->cooling) + level;
  }
  if (!h->n_policies) return;
  put_format(&p, "%s/devices/system/cpu/cpu%u/cpufreq/scaling_cur_freq", h->sysfs, U(cpu));
  g->khz = number_at(&p);
}

void read_ticks(cpu_ticks *t) {
  static char text[32768];
  read_small("/proc/stat", text, sizeof text);
  t->n = 0;
  for (const char *p = text; *p && t->n < CPUS_MAX; p++) {
    uint64_t field[8] = {0}; /* user nice system idle iowait irq softirq steal */
    int is_cpu = p[0] == 'c' && p[1] == 'p' && p[2] == 'u' && p[3] >= '0' && p[3] <= '9';
    while (is_cpu && *p && *p != ' ') p++;
    for (size_t i = 0; is_cpu && i < 8; i++) {
      while (*p == ' ') p++;
      for (; *p >= '0' && *p <= '9'; p++) field[i] = field[i] * 10 + (uint64_t)(*p - '0');
    }
    if (is_cpu) {
      t->busy[t->n] = field[0] + field[1] + field[2] + field[5] + field[6];
      t->stolen[t->n++] = field[7];
    }
    while (*p && *p != '\n') p++;
    if (!*p) break;
  }
}

static void put_text_of(buffer *b, const char *key, buffer *path) {
  char value[128];
  read_small(path_of(path), value, sizeof value);
  put_format(b, "%q:%q", key, value);
}

void put_condition(buffer *b, const char *sysfs) {
  static const char *const figures[3][2] = {
      {"khz", "scaling_cur_freq"}, {"limit_khz", "scaling_max_freq"}, {"most_khz", "cpuinfo_max_freq"}};
  static buffer p;
  hardware h;
  char load[64];
  hardware_list(&h, sysfs);
  put(b, "{\"zones\":[");
  for (size_t i = 0; i < h.n_zones; i++) {
    put_format(b, "%s{\"zone\":%u,", i ? "," : "", U(h.zones[i]));
    put_text_of(b, "type", thermal_file(&h, "thermal_zone", h.zones[i], "type"));
    put_format(b, ",\"millidegrees\":%i}", number_at(thermal_file(&h, "thermal_zone", h.zones[i], "temp")));
  }
  put(b, "],\"policies\":[");
  for (size_t i = 0; i < h.n_policies; i++) {
    put_format(b, "%s{\"policy\":%u,", i ? "," : "", U(h.policies[i]));
    put_text_of(b, "cpus", policy_file(&h, i, "related_cpus"));
    put(b, ",");
    put_text_of(b, "governor", policy_file(&h, i, "scaling_governor"));
    for (size_t k = 0; k < 3; k++) put_format(b, ",%q:%i", figures[k][0], number_at(policy_file(&h, i, figures[k][1])));
    put(b, "}");
  }
  put(b, "],\"cooling\":[");
  for (size_t i = 0; i < h.n_coolers; i++) {
    put(b, i ? ",{" : "{");
    put_text_of(b, "type", thermal_file(&h, "cooling_device", h.coolers[i], "type"));
    put_format(b, ",\"level\":%i}", number_at(thermal_file(&h, "cooling_device", h.coolers[i], "cur_state")));
  }
  put(b, "],");
  put_format(&p, "%s/devices/platform/soc/soc:firmware/get_throttled", sysfs);
  put_text_of(b, "firmware", &p);
  read_small("/proc/loadavg", load, sizeof load);
  for (char *c = load; *c; c++)
    if (*c == ' ') *c = 0;
  put_format(b, ",\"load\":%q}", load);
}
