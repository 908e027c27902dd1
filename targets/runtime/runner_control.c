/* runner_control.c: governors, frequencies and processors as a request wants them; a record of how they were. */
#include "runner_control.h"

#include "runner_condition.h"
#include "runner_facts.h"

enum { VALUE_SIZE = 64, O_CREATE = 0100, O_TRUNCATE = 01000, LOCK_EXCLUSIVE = 2 | 4 /* and without waiting */ };
static const char *const FILES[] = {"scaling_governor", "scaling_min_freq", "scaling_max_freq"};
enum { GOVERNOR, LEAST, MOST, FILE_KINDS };

static struct {
  hardware parts;
  const char *record_path;
  int record; /* open and locked while something is changed; 0: nothing is */
  uint8_t cpus[CONTROL_CPUS / 8];
  int pinned;
} state;

static char *path_of_policy(size_t policy, size_t file) {
  static buffer p;
  p.len = 0;
  const char *form = state.parts.by_cpu ? "%s/devices/system/cpu/cpu%u/cpufreq/%s" : "%s/devices/system/cpu/cpufreq/policy%u/%s";
  put_format(&p, form, state.parts.sysfs, U(policy), FILES[file]);
  put_n(&p, "", 1);
  return (char *)p.at;
}

static int write_value(const char *path, const char *value) {
  int fd = sys_open(path, SYS_O_WRONLY | O_TRUNCATE); /* as a shell's redirection; sysfs does not mind */
  if (fd < 0) return -1;
  int failed = write_all(fd, value, strlen(value));
  sys_close(fd);
  return failed;
}

/* ---- the record: a line "POLICY FILE VALUE" for each file that is changed ---- */

/* Of the system's sysfs in a folder that only root can write and a reboot empties: who may change sysfs may write there. */
static const char *record_path(const char *sysfs, int try) {
  static const char *const places[] = {"/run/smelt-control", "/dev/smelt-control"};
  static buffer p;
  if (!strcmp(sysfs, "/sys")) return try < 2 ? places[try] : NULL;
  p.len = 0;
  put_format(&p, "%s/smelt-control", sysfs);
  put_n(&p, "", 1);
  return try ? NULL : (const char *)p.at;
}

/* The record, locked, into state; 0, or -1 where it cannot be made, or does not exist, or is another runner's. */
static int record_open(const char *sysfs, int flags) {
  const char *path;
  for (int i = 0; (path = record_path(sysfs, i)); i++) {
    int fd = (int)sys(NR_openat, SYS_AT_FDCWD, (long)path, SYS_O_RDWR | SYS_O_CLOEXEC | flags, 0600, 0, 0);
    if (fd < 0) continue;
    if (sys(NR_flock, fd, LOCK_EXCLUSIVE, 0, 0, 0, 0) < 0) {
      sys_close(fd);
      return -1;
    }
    state.record = fd;
    state.record_path = path;
    return 0;
  }
  return -1;
}

static void record_close(int gone) {
  if (state.record && gone) sys(NR_unlinkat, SYS_AT_FDCWD, (long)state.record_path, 0, 0, 0, 0);
  if (state.record) sys_close(state.record);
  state.record = 0;
}

/* Set back every line; twice, since a limit may have to wait for the other one. Lines that are none are left out. */
static void set_back(char *text) {
  for (int round = 0; round < 2; round++)
    for (char *p = text; *p;) {
      uint64_t number[2] = {0, 0};
      int good = 1;
      for (int i = 0; i < 2; i++) {
        good &= *p >= '0' && *p <= '9';
        for (; *p >= '0' && *p <= '9'; p++) number[i] = number[i] * 10 + (uint64_t)(*p - '0');
        good &= *p == ' ';
        if (*p == ' ') p++;
      }
      char *value = p;
      while (*p && *p != '\n') p++;
      char end = *p;
      *p = 0;
      if (good && end && number[0] < INT32_MAX && number[1] < FILE_KINDS) write_value(path_of_policy(number[0], number[1]), value);
      *p = end;
      if (end) p++;
    }
}

void control_restore(void) {
  static char text[65536];
  if (!state.record) return;
  long n = sys(NR_pread64, state.record, (long)text, sizeof text - 1, 0, 0, 0);
  text[n > 0 ? n : 0] = 0;
  set_back(text);
  record_close(1);
  state.pinned = 0;
}

void control_recover(const char *sysfs) {
  if (record_open(sysfs, 0)) return;
  hardware_list(&state.parts, sysfs);
  control_restore();
}

/* ---- changing ---- */
static void tell(buffer *b, int *any, const char *file, const char *first, const char *a, const char *second, const char *value) {
  put_format(b, "%s{\"file\":%q,%q:%q,%q:%q}", (*any)++ ? "," : "", file, first, a, second, value);
}

typedef struct {
  buffer set, refused; /* rows of JSON */
  int n_set, n_refused;
} outcome;

static void change(outcome *o, size_t i, size_t file, const char *value) {
  char old[VALUE_SIZE], found[VALUE_SIZE];
  const char *path = path_of_policy(state.parts.policies[i], file), *shown = path + strlen(state.parts.sysfs) + 1;
  if (!read_small(path, old, sizeof old)) return tell(&o->refused, &o->n_refused, shown, "wanted", value, "found", "");
  if (!strcmp(old, value)) return;
  buffer line = {0};
  put_format(&line, "%u %u %s\n", U(state.parts.policies[i]), U(file), old);
  int kept = !write_all(state.record, line.at, line.len); /* before the change: the next runner sets back what this one may not */
  sys_unmap(line.at, line.cap);
  if (kept) write_value(path, value);
  read_small(path, found, sizeof found);
  if (!strcmp(found, value)) tell(&o->set, &o->n_set, shown, "old", old, "new", found);
  else tell(&o->refused, &o->n_refused, shown, "wanted", value, "found", found);
}

static void fix_frequency(outcome *o, size_t i, uint64_t khz) {
  char value[VALUE_SIZE], now[VALUE_SIZE];
  buffer text = {0};
  put_format(&text, "%u", khz);
  put_n(&text, "", 1);
  memcpy(value, text.at, text.len < sizeof value ? text.len : sizeof value - 1);
  sys_unmap(text.at, text.cap);
  /* the kernel refuses a least above the most, so the one that moves away goes first */
  read_small(path_of_policy(state.parts.policies[i], MOST), now, sizeof now);
  int up = khz > number_after(now, "");
  change(o, i, up ? MOST : LEAST, value);
  change(o, i, up ? LEAST : MOST, value);
}

static void pin(outcome *o, const control_request *r) {
  uint8_t allowed[CONTROL_CPUS / 8] = {0};
  int wanted = 0, some = 0;
  sys(NR_sched_getaffinity, 0, sizeof allowed, (long)allowed, 0, 0, 0);
  for (size_t i = 0; i < sizeof allowed; i++) {
    wanted |= r->cpus[i];
    state.cpus[i] = r->cpus[i] & allowed[i];
    some |= state.cpus[i];
  }
  state.pinned = some != 0;
  if (wanted && !some) tell(&o->refused, &o->n_refused, "processors", "wanted", "those named", "found", "none that may be used");
}

void control_apply(const char *sysfs, const control_request *r, const char *governor, size_t length, buffer *told) {
  static outcome o;
  char name[VALUE_SIZE] = {0};
  o.set.len = o.refused.len = 0, o.n_set = o.n_refused = 0;
  memcpy(name, governor, length < sizeof name ? length : sizeof name - 1);
  control_restore();
  hardware_list(&state.parts, sysfs);
  pin(&o, r);
  int wants = name[0] || r->khz;
  if (wants && !state.parts.n_policies) tell(&o.refused, &o.n_refused, "cpufreq", "wanted", "a governor or a frequency", "found", "no policy");
  else if (wants && record_open(sysfs, O_CREATE))
    tell(&o.refused, &o.n_refused, "cpufreq", "wanted", "a record of what is changed", "found", "it cannot be written, or another runner has it");
  else
    for (size_t i = 0; i < state.parts.n_policies && wants; i++) {
      if (name[0]) change(&o, i, GOVERNOR, name);
      if (r->khz) fix_frequency(&o, i, r->khz);
    }
  if (state.record && !o.n_set) record_close(1);
  put(told, "{\"kind\":\"control\",\"set\":[");
  put_n(told, (const char *)o.set.at, o.set.len);
  put(told, "],\"refused\":[");
  put_n(told, (const char *)o.refused.at, o.refused.len);
  put(told, "]}");
}

void control_enter_worker(void) {
  if (state.pinned) sys(NR_sched_setaffinity, 0, sizeof state.cpus, (long)state.cpus, 0, 0, 0);
  record_close(0);
}
