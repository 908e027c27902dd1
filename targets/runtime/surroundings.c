/* surroundings.c: the files of sysfs in; how hot units are, whether a battery feeds them, and what energy they took, out.
 *
 * The tree's root is /sys, or what SMELT_SYSFS names, so that tests, and systems that hide theirs, can have another. What a file does not
 * tell is unknown here, never a guess. */
#include "policy.h"

enum { PATH_BYTES = RT_COUNTER_BYTES, TEXT_BYTES = 128, LIST_BYTES = 4096, TRIPS = 16 };

static const char *root(void) {
  const char *own = getenv("SMELT_SYSFS");
  return own && *own ? own : "/sys";
}

/* The first line of the file folder/name; 0: it cannot be read, or is empty. */
static int read_line(const char *folder, const char *name, char text[TEXT_BYTES]) {
  char path[PATH_BYTES];
  if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path) return 0;
  int fd = sm_open(path);
  long n = fd < 0 ? fd : sm_syscall(SM_read, fd, (long)text, TEXT_BYTES - 1, 0, 0, 0);
  if (fd >= 0) sm_close(fd);
  if (n <= 0) return 0;
  text[n] = 0;
  for (char *at = text; *at; at++)
    if (*at == '\n') *at = 0;
  return *text != 0;
}

static int read_number(const char *folder, const char *name, int64_t *number) {
  char text[TEXT_BYTES];
  if (!read_line(folder, name, text)) return 0;
  const char *at = text + (*text == '-');
  int64_t n = 0;
  if (*at < '0' || *at > '9') return 0;
  for (int digits = 0; *at >= '0' && *at <= '9' && digits < 18; digits++) n = n * 10 + (*at++ - '0');
  *number = *text == '-' ? -n : n;
  return 1;
}

/* Call fn for each folder of a class until it returns 1; whether it did. */
static int any_of(const char *class, int (*fn)(const char *folder, void *context), void *context) {
  char entries[LIST_BYTES], path[PATH_BYTES], folder[PATH_BYTES];
  int found = 0, fd;
  if ((size_t)snprintf(path, sizeof path, "%s/class/%s", root(), class) >= sizeof path || (fd = sm_open(path)) < 0) return 0;
  for (long n; !found && (n = sm_syscall(SM_getdents64, fd, (long)entries, sizeof entries, 0, 0, 0)) > 0;)
    for (long at = 0; at < n && !found;) { /* the kernel's linux_dirent64: inode, offset, u16 length, u8 type, name */
      uint16_t length;
      memcpy(&length, entries + at + 16, sizeof length);
      const char *name = entries + at + 19;
      if (*name != '.' && (size_t)snprintf(folder, sizeof folder, "%s/%s", path, name) < sizeof folder) found = fn(folder, context);
      at += length;
    }
  sm_close(fd);
  return found;
}

/* ---- texts ---- */
static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

/* Does `text` begin with the n characters at `prefix`? `whole`: and end with them? In whatever case. */
static int begins(const char *text, const char *prefix, size_t n, int whole) {
  for (size_t i = 0; i < n; i++)
    if (lower(text[i]) != lower(prefix[i]) || !text[i]) return 0;
  return !whole || !text[n];
}

/* Up to one of two characters, or the end. */
static size_t piece(const char *at, char a, char b) {
  size_t n = 0;
  while (at[n] && at[n] != a && at[n] != b) n++;
  return n;
}

/* The prefixes of a unit in "cpu=cpu,soc;*=gpu", which end with ';' or the text; "": there are none. */
static const char *prefixes_of(const char *zones, const char *unit) {
  const char *others = "";
  for (const char *at = zones; *at;) {
    size_t n = piece(at, '=', ';');
    const char *own = at[n] == '=' ? at + n + 1 : at + n;
    if (n == 1 && *at == '*') others = own;
    else if (begins(unit, at, n, 1)) return own;
    at = own + piece(own, ';', ';');
    at += *at == ';';
  }
  return others;
}

/* ---- heat ---- */
typedef struct {
  const char *prefixes;
  int32_t limit, otherwise;
  rt_heat found;
} heat_search;

static int is_of(const char *type, const char *prefixes) {
  for (const char *at = prefixes; *at && *at != ';';) {
    size_t n = piece(at, ',', ';');
    if (n && begins(type, at, n, 0)) return 1;
    at += n + (at[n] == ',');
  }
  return 0;
}

/* Where the system begins to slow a zone down; `otherwise`: it does not say. */
static int32_t passive_trip(const char *zone, int32_t otherwise) {
  char name[TEXT_BYTES], type[TEXT_BYTES];
  int64_t at, least = INT64_MAX;
  for (int i = 0; i < TRIPS; i++) {
    snprintf(name, sizeof name, "trip_point_%d_type", i);
    if (!read_line(zone, name, type)) break;
    snprintf(name, sizeof name, "trip_point_%d_temp", i);
    if (!strcmp(type, "passive") && read_number(zone, name, &at) && at > 0 && at < least) least = at;
  }
  return least < INT32_MAX ? (int32_t)least : otherwise;
}

static int look_at_zone(const char *folder, void *search_) {
  enum { ABSURD = 150000 }; /* a sensor that is absent tells more */
  heat_search *s = search_;
  char type[TEXT_BYTES];
  int64_t now;
  if (!read_line(folder, "type", type) || !is_of(type, s->prefixes) || !read_number(folder, "temp", &now) || now >= ABSURD || now <= -ABSURD) return 0;
  int32_t above = (int32_t)now - (s->limit ? s->limit : passive_trip(folder, s->otherwise));
  if (s->found.millidegrees == RT_NO_HEAT || above > s->found.above) s->found = (rt_heat){(int32_t)now, above};
  return 0;
}

rt_heat rt_heat_of(const char *zones, const char *unit, int32_t limit, int32_t otherwise) {
  heat_search s = {prefixes_of(zones, unit), limit, otherwise, {RT_NO_HEAT, 0}};
  if (*s.prefixes) any_of("thermal", look_at_zone, &s);
  return s.found;
}

/* ---- power ---- */
typedef struct {
  int batteries, discharging, full, mains, unplugged;
} supplies;

static int look_at_supply(const char *folder, void *found_) {
  supplies *found = found_;
  char type[TEXT_BYTES], text[TEXT_BYTES];
  int64_t online;
  if (!read_line(folder, "type", type)) return 0;
  if (read_line(folder, "scope", text) && !strcmp(text, "Device")) return 0; /* a mouse's */
  if (!strcmp(type, "Battery")) {
    found->batteries = 1;
    if (!read_line(folder, "status", text)) return 0;
    found->discharging |= !strcmp(text, "Discharging");
    found->full |= !strcmp(text, "Charging") || !strcmp(text, "Full") || !strcmp(text, "Not charging");
  } else if (read_number(folder, "online", &online)) {
    found->mains |= online != 0;
    found->unplugged |= online == 0;
  }
  return 0;
}

/* A battery that is emptied counts also where a weak charger is plugged in; a machine without a battery is not fed by one. */
rt_power rt_power_now(void) {
  supplies found = {0};
  any_of("power_supply", look_at_supply, &found);
  if (found.discharging) return RT_POWER_BATTERY;
  if (found.mains || found.full) return RT_POWER_MAINS;
  return found.batteries && found.unplugged ? RT_POWER_BATTERY : RT_POWER_UNKNOWN;
}

/* ---- energy ---- */
typedef struct {
  const char *prefix;
  char *folder;
} counter_search;

static int look_at_counter(const char *folder, void *search_) {
  counter_search *s = search_;
  char name[TEXT_BYTES];
  uint64_t now;
  if (!read_line(folder, "name", name) || !begins(name, s->prefix, strlen(s->prefix), 0) || !rt_energy_read(folder, "energy_uj", &now)) return 0;
  snprintf(s->folder, RT_COUNTER_BYTES, "%s", folder);
  return 1;
}

int rt_energy_find(const char *prefix, char folder[RT_COUNTER_BYTES]) {
  counter_search s = {prefix, folder};
  return any_of("powercap", look_at_counter, &s);
}

int rt_energy_read(const char *folder, const char *figure, uint64_t *microjoules) {
  int64_t number;
  if (!read_number(folder, figure, &number) || number < 0) return 0;
  *microjoules = (uint64_t)number;
  return 1;
}
