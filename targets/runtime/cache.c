/* cache.c: what a driver has made of a unit's code, kept in a file for the next process; no failure here is anybody's error.
 *
 * A file of $SMELT_CACHE/kernels (else $XDG_CACHE_HOME/smelt or ~/.cache/smelt) is called by the SHA-256 of all that its contents
 * depend on, and starts with a word, its length and its own SHA-256: what is damaged, or cut short, is made again. It comes to its
 * place by a rename, so of two processes that make one at once each finds a whole one. */
#include "driver.h"
#include "rt.h"
#include "sha256.h"

enum { PATH = RT_PATH_BYTES, HASH = 32 };
static const int64_t MOST = (int64_t)1 << 30; /* bytes of a file */

typedef struct {
  char word[8];
  uint64_t bytes;
  uint8_t hash[HASH];
} head;
static const char WORD[8] = {'s', 'm', 'e', 'l', 't', 'b', 'i', 'n'};

int rt_cache_folder(const char *of, char path[RT_PATH_BYTES]) {
  const char *own = getenv("SMELT_CACHE"), *shared = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  int n = own && *own         ? snprintf(path, PATH, "%s/%s", own, of)
          : shared && *shared ? snprintf(path, PATH, "%s/smelt/%s", shared, of)
          : home && *home     ? snprintf(path, PATH, "%s/.cache/smelt/%s", home, of)
                              : 0;
  return n > 0 && n < PATH - 200;
}

static void add_text(sha256_state *s, const char *text) { sha256_add(s, (const uint8_t *)text, strlen(text) + 1); }

/* Where the binary of a unit's code and of this key is; 0: nowhere. */
static int path_of(const smelt_rt *rt, uint32_t unit, const char *key, char path[PATH]) {
  const smelt_unit_desc *desc = &rt->model->units[unit - 1];
  sha256_state s;
  uint8_t digest[HASH];
  if (!rt_cache_folder("kernels", path)) return 0;
  sha256_start(&s);
  add_text(&s, desc->driver->name);
  add_text(&s, key);
  sha256_add(&s, desc->code, desc->code_bytes);
  sha256_end(&s, digest);
  char *at = path + strlen(path);
  *at++ = '/';
  for (int i = 0; i < HASH; i++) at += snprintf(at, 3, "%02x", digest[i]);
  return 1;
}

static void digest_of(const void *bytes, size_t n, uint8_t digest[HASH]) {
  sha256_state s;
  sha256_start(&s);
  sha256_add(&s, bytes, n);
  sha256_end(&s, digest);
}

/* The contents of an open file that is whole; NULL otherwise. */
static void *contents(int fd, size_t *bytes) {
  head h;
  uint8_t digest[HASH];
  int64_t all = sm_file_size(fd);
  if (all < (int64_t)sizeof h || all > MOST || sm_seek(fd, 0, 0) || !sm_read_all(fd, &h, sizeof h)) return NULL;
  if (memcmp(h.word, WORD, sizeof WORD) || h.bytes != (uint64_t)all - sizeof h) return NULL;
  char *data = malloc((size_t)h.bytes + 1);
  if (!data) return NULL;
  int whole = sm_read_all(fd, data, (size_t)h.bytes);
  if (whole) digest_of(data, (size_t)h.bytes, digest);
  if (!whole || memcmp(digest, h.hash, HASH)) return free(data), NULL;
  *bytes = (size_t)h.bytes;
  return data;
}

void *smelt_rt_cached(smelt_rt *rt, uint32_t unit, const char *key, size_t *bytes) {
  char path[PATH];
  int fd = path_of(rt, unit, key, path) ? sm_open(path) : -1;
  void *found = fd < 0 ? NULL : contents(fd, bytes);
  if (fd >= 0) sm_close(fd);
  rt->session->traffic.cache_hits += found != NULL;
  rt->session->traffic.cache_misses += found == NULL;
  return found;
}

void smelt_rt_useless(smelt_rt *rt) {
  rt->session->traffic.cache_hits--;
  rt->session->traffic.cache_misses++;
}

void rt_make_folders(char *path) {
  for (char *at = path + 1; *at; at++)
    if (*at == '/') {
      *at = 0;
      sm_make_folder(path);
      *at = '/';
    }
}

void smelt_rt_cache(smelt_rt *rt, uint32_t unit, const char *key, const void *bytes, size_t n) {
  char path[PATH], beside[PATH + 40];
  head h = {.bytes = n};
  uint64_t draw = 0;
  if (!n || n > (size_t)MOST || !path_of(rt, unit, key, path)) return;
  memcpy(h.word, WORD, sizeof WORD);
  digest_of(bytes, n, h.hash);
  rt_make_folders(path);
  if (!sm_random(&draw, sizeof draw)) draw = sm_now();
  snprintf(beside, sizeof beside, "%s.%d.%llx", path, sm_getpid(), (unsigned long long)draw);
  int fd = sm_create(beside);
  if (fd < 0) return;
  int whole = sm_write_all(fd, &h, sizeof h) && sm_write_all(fd, bytes, n);
  sm_close(fd);
  if (!whole || !sm_rename(beside, path)) sm_remove(beside);
}
