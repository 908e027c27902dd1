/* runner_model.c: the one part of the runner with two builds: SMELT_STATIC has the model linked in, the other opens it. */
#include "runner_model.h"

char library_name[NAME_SIZE], library_alias[NAME_SIZE];

#define STATUS_COUNT 7
static const char *const STATUS_NAMES[STATUS_COUNT] = {"ok", "invalid", "unsupported", "shape", "device", "infra", "internal"};
const char *status_name(smelt_status s) { return (unsigned)s < STATUS_COUNT ? STATUS_NAMES[s] : "internal"; }

/* In the order of smelt_policy_kind. */
#define POLICY_COUNT 4
static const char *const POLICY_NAMES[POLICY_COUNT] = {"static", "load", "thermal", "battery"};
const char *policy_name(uint32_t policy) { return policy < POLICY_COUNT ? POLICY_NAMES[policy] : "unknown"; }
int policy_of(const char *name) {
  for (int i = 0; i < POLICY_COUNT; i++)
    if (!strcmp(POLICY_NAMES[i], name)) return i;
  return -1;
}

/* Does it have code for a unit besides the CPU, and for another one? */
static int has_choice(const model_api *api, smelt_session *s) {
  size_t n = api->share_count(s), devices = 0;
  smelt_unit_share share;
  for (size_t i = 0; i < n; i++) devices += api->share(s, i, &share) == SMELT_OK && strcmp(share.unit, "cpu");
  return devices && n > 1;
}

int model_bind(const model_api *api, smelt_session *s, uint32_t policy, buffer *why) {
  smelt_policy_options how = {.struct_size = sizeof how, .policy = (int32_t)policy};
  if (policy >= POLICY_COUNT) {
    put_format(why, "policy %u is none; there are static, load, thermal and battery, from 0 on", U(policy));
    return -1;
  }
  if (policy && !has_choice(api, s)) {
    put_format(why, "policy '%s' has nothing to choose from: the bundle has code for one unit alone; compile it with --choose or --fallback",
               policy_name(policy));
    return -1;
  }
  if (api->policy(s, &how) == SMELT_OK) return 0;
  put_format(why, "%s", api->error(s));
  return -1;
}

#ifndef SMELT_STATIC
static void remember_alias(const char *path) {
  char target[256];
  long n = sys(NR_readlinkat, SYS_AT_FDCWD, (long)path, (long)target, sizeof target, 0, 0), start = n;
  while (start > 0 && target[start - 1] != '/') start--;
  if (n <= 0 || n - start >= (long)sizeof library_alias) return;
  memcpy(library_alias, target + start, (size_t)(n - start));
  library_alias[n - start] = 0;
}

/* Is it lib<prefix>.so, which has the functions <prefix>_open and so on? */
static int is_library(const char *name) {
  size_t n = strlen(name);
  return n > 6 && n < NAME_SIZE && !memcmp(name, "lib", 3) && !memcmp(name + n - 3, ".so", 3);
}

/* The name of the one library of a folder into library_name; how many it has, or -1 when it cannot be read. */
static int find_library(const char *folder) {
  static char entries[4096];
  int fd = sys_open(folder, SYS_O_RDONLY), found = 0;
  long n = fd < 0 ? fd : 0;
  library_name[0] = 0;
  while (fd >= 0 && (n = sys(NR_getdents64, fd, (long)entries, sizeof entries, 0, 0, 0)) > 0)
    for (long at = 0; at < n;) { /* the kernel's linux_dirent64: inode, offset, u16 length, u8 type, name */
      uint16_t length;
      memcpy(&length, entries + at + 16, sizeof length);
      const char *name = entries + at + 19;
      if (is_library(name) && ++found == 1) memcpy(library_name, name, strlen(name) + 1);
      at += length;
    }
  if (fd >= 0) sys_close(fd);
  return n < 0 ? -1 : found;
}
#endif

int model_load(model_api *api, const char *bundle, buffer *why) {
#ifdef SMELT_STATIC
  (void)bundle;
  (void)why;
#define X(name) api->name = smelt_##name;
  MODEL_API(X)
#undef X
  return 0;
#else
  static const struct { const char *name; size_t at; } symbols[] = {
#define X(name) {#name, offsetof(model_api, name)},
      MODEL_API(X)
#undef X
  };
  buffer path = {0}, symbol = {0};
  int found = find_library(bundle);
  if (found != 1) {
    put_format(why, "'%s' ", bundle);
    if (found < 0) put(why, "cannot be read; pass a bundle's folder");
    else if (!found) put(why, "has no library lib*.so; build the bundle again");
    else put_format(why, "has %i libraries lib*.so; pass a folder with one", I(found));
    return -1;
  }
  put_format(&path, "%s/%s", bundle, library_name);
  put_n(&path, "", 1);
  remember_alias((const char *)path.at);
  void *library = dlopen((const char *)path.at, RUNNER_RTLD_NOW);
  if (!library) {
    put_format(why, "the model's library cannot be loaded: %s", dlerror());
    return -1;
  }
  for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
    symbol.pos = symbol.len = 0; /* library_name is lib<prefix>.so */
    put_n(&symbol, library_name + 3, strlen(library_name) - 6);
    put_format(&symbol, "_%s", symbols[i].name);
    put_n(&symbol, "", 1);
    void *function = dlsym(library, (const char *)symbol.at);
    if (!function) {
      put_format(why, "'%s' has no symbol %s; build the bundle again", (const char *)path.at, (const char *)symbol.at);
      return -1;
    }
    memcpy((char *)api + symbols[i].at, &function, sizeof function);
  }
  return 0;
#endif
}
