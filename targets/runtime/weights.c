/* weights.c: bundle directory in, the model's weights in memory out, checked: length and sums always, SHA-256 on request.
 *
 * Weights of up to COPIED bytes are read into memory that the sessions of this library share: nothing that happens to the file
 * later reaches them. Larger ones are mapped, so that processes share them; of those, samples are summed at open, and a run
 * is refused once the file has changed. */
#include "rt.h"
#include "sha256.h"

/* ---- Fletcher's sum over 32-bit words; core/sums.py tells what it finds ---- */
typedef struct {
  uint64_t first, second, words;
} sums;

static void sums_add(sums *s, const uint8_t *data, uint64_t n) {
  uint64_t first = 0, second = 0, whole = n / 4;
  for (uint64_t i = 0; i < whole; i++) {
    uint32_t w;
    memcpy(&w, data + 4 * i, 4);
    first += w;
    second += (uint64_t)w * (uint32_t)(i + 1); /* a piece has fewer than 2^32 words */
  }
  if (n % 4) {
    uint32_t w = 0;
    memcpy(&w, data + 4 * whole, (size_t)(n % 4));
    first += w;
    second += w * ++whole;
  }
  s->second += second + s->words * first;
  s->first += first;
  s->words += whole;
}

/* ---- the file ---- */
enum { HASH_BYTES = 32, COPIED = 32 << 20, SAMPLES = 64, SAMPLE_BYTES = 4096, PIECE = 16384 };

static int32_t cut_short(smelt_rt *rt, const char *path) {
  return rt_error(rt, SMELT_INFRA, "%s: cannot be read to its end; is it being written", path);
}

static int32_t check_hash(smelt_rt *rt, const char *path, int fd) {
  uint8_t digest[32], piece[PIECE];
  const uint8_t *want = rt->model->weights_sha256;
  sha256_state state;
  sha256_start(&state);
  sm_seek(fd, 0, 0);
  for (uint64_t at = 0, n; at < rt->model->weights_bytes; at += n) {
    n = rt->model->weights_bytes - at < PIECE ? rt->model->weights_bytes - at : PIECE;
    if (!sm_read_all(fd, piece, (size_t)n)) return cut_short(rt, path);
    sha256_add(&state, piece, n);
  }
  sha256_end(&state, digest);
  if (memcmp(digest, want, sizeof digest) == 0) return SMELT_OK;
  return rt_error(rt, SMELT_INVALID, "%s: its SHA-256 is %02x%02x%02x%02x.., model '%s' was compiled with %02x%02x%02x%02x..; copy the bundle again",
                  path, digest[0], digest[1], digest[2], digest[3], rt->model->name, want[0], want[1], want[2], want[3]);
}

static int32_t check_sums(smelt_rt *rt, const char *path, const sums *got, int which) {
  const uint64_t *want = rt->model->weights_sums + 2 * which;
  if (got->first == want[0] && got->second == want[1]) return SMELT_OK;
  return rt_error(rt, SMELT_INVALID, "%s: does not hold the weights that model '%s' was compiled with (their sum differs); copy the bundle again",
                  path, rt->model->name);
}

/* The file ends with the hash that its weights had when it was written: those of another model, of whatever size, have another. */
static int32_t check_whose(smelt_rt *rt, const char *path, int fd) {
  uint8_t hash[HASH_BYTES];
  sm_seek(fd, (int64_t)rt->model->weights_bytes, 0);
  if (!sm_read_all(fd, hash, sizeof hash)) return cut_short(rt, path);
  if (memcmp(hash, rt->model->weights_sha256, HASH_BYTES) == 0) return SMELT_OK;
  return rt_error(rt, SMELT_INVALID, "%s: holds the weights of another model than '%s', or of another compile of it; copy the bundle again",
                  path, rt->model->name);
}

static int32_t check_samples(smelt_rt *rt, const char *path, int fd) {
  uint8_t block[SAMPLE_BYTES];
  uint64_t bytes = rt->model->weights_bytes, blocks = (bytes + SAMPLE_BYTES - 1) / SAMPLE_BYTES;
  sums got = {0, 0, 0};
  for (uint64_t i = 0; i < SAMPLES; i++) {
    uint64_t at = i * (blocks - 1) / (SAMPLES - 1) * SAMPLE_BYTES, n = bytes - at < SAMPLE_BYTES ? bytes - at : SAMPLE_BYTES;
    if (sm_seek(fd, (int64_t)at, 0) != (int64_t)at || !sm_read_all(fd, block, (size_t)n)) return cut_short(rt, path);
    sums_add(&got, block, n);
  }
  return check_sums(rt, path, &got, 1);
}

/* ---- the copy that the sessions of this library share ---- */
static struct {
  _Atomic int32_t owner; /* process that holds the lock; a fork leaves one that nobody will release */
  int32_t users;
  void *data;
} copy;

static void lock_copy(void) {
  int32_t me = sm_getpid(), free_ = 0;
  while (!atomic_compare_exchange_weak(&copy.owner, &free_, me)) {
    if (free_ != me && free_) atomic_compare_exchange_strong(&copy.owner, &free_, 0);
    free_ = 0;
    sm_pause();
  }
}

/* Read, sum, and share what is read; *tried is 0 when there is no memory for it. */
static int32_t copy_file(smelt_rt *rt, const char *path, int fd, int *tried) {
  size_t bytes = (size_t)rt->model->weights_bytes;
  sums got = {0, 0, 0};
  void *own = sm_mmap(bytes, SM_PROT_READ | SM_PROT_WRITE, SM_MAP_PRIVATE | SM_MAP_ANONYMOUS, -1), *spare = own;
  *tried = own != NULL;
  if (!own) return SMELT_OK;
  sm_madvise(own, bytes, SM_MADV_HUGEPAGE); /* 512 times fewer page faults, here and in the runs */
  sm_seek(fd, 0, 0);
  int32_t status = sm_read_all(fd, own, bytes) ? SMELT_OK : cut_short(rt, path);
  if (!status) {
    sums_add(&got, own, bytes);
    status = check_sums(rt, path, &got, 0);
  }
  if (!status) {
    lock_copy();
    if (!copy.users) copy.data = own, spare = NULL;
    copy.users++;
    rt->session->weights = copy.data;
    rt->session->weights_shared = 1;
    atomic_store(&copy.owner, 0);
  }
  if (spare) sm_munmap(spare, bytes);
  return status;
}

static int32_t map_file(smelt_rt *rt, const char *path, int fd) {
  uint64_t want = rt->model->weights_bytes;
  int32_t status = check_samples(rt, path, fd);
  if (status) return status;
  rt->session->weights = sm_mmap((size_t)want, SM_PROT_READ, SM_MAP_SHARED, fd);
  if (!rt->session->weights)
    return rt_error(rt, SMELT_INFRA, "%s: mapping %llu bytes failed; is there address space left", path, (unsigned long long)want);
  sm_madvise((void *)(uintptr_t)rt->session->weights, (size_t)want, SM_MADV_WILLNEED);
  rt->session->weights_fd = fd;
  return SMELT_OK;
}

static int32_t load_file(smelt_rt *rt, const char *path, int fd, int verify) {
  uint64_t want = rt->model->weights_bytes + HASH_BYTES;
  int64_t got = sm_file_size(fd);
  if (got != (int64_t)want)
    return rt_error(rt, SMELT_INVALID, "%s: has %lld bytes, model '%s' wants %llu; copy the bundle again", path, (long long)got,
                    rt->model->name, (unsigned long long)want);
  if (!sm_file_time(fd, rt->session->weights_mtime)) rt->session->weights_mtime[1] = -1;
  int32_t status = check_whose(rt, path, fd);
  int copied = 0;
  if (!status && verify) status = check_hash(rt, path, fd);
  if (!status && rt->model->weights_bytes <= COPIED) status = copy_file(rt, path, fd, &copied);
  if (!status && !copied) status = map_file(rt, path, fd);
  return status;
}

int32_t rt_weights_check(smelt_rt *rt) {
  int64_t now[2];
  int changed = sm_file_size(rt->session->weights_fd) != (int64_t)(rt->model->weights_bytes + HASH_BYTES);
  if (!changed && rt->session->weights_mtime[1] >= 0 && sm_file_time(rt->session->weights_fd, now))
    changed = now[0] != rt->session->weights_mtime[0] || now[1] != rt->session->weights_mtime[1];
  return !changed ? SMELT_OK
                  : rt_error(rt, SMELT_INFRA, "model '%s': the file of its weights was written to after it was opened; copy the bundle again and open it anew",
                             rt->model->name);
}

/* The directory of the library that this code is in; NULL in a static program. */
static const char *own_directory(char *path, size_t size) {
  sm_dlinfo info = {0};
  if (!dladdr((const void *)(uintptr_t)&rt_weights_open, &info) || !info.file) return NULL;
  const char *slash = strrchr(info.file, '/');
  int n = slash ? snprintf(path, size, "%.*s", (int)(slash - info.file), info.file) : snprintf(path, size, ".");
  if (n == 0) n = snprintf(path, size, "/");
  return (size_t)n < size ? path : NULL;
}

int32_t rt_weights_open(smelt_rt *rt, const char *bundle_dir, int verify) {
  if (!rt->model->weights_bytes) return SMELT_OK;
  enum { LONGEST = 4096 };
  char own[LONGEST], path[LONGEST];
  if (!bundle_dir) bundle_dir = own_directory(own, sizeof own);
  if (!bundle_dir)
    return rt_error(rt, SMELT_INVALID, "bundle_dir is NULL and a static program has no library to look beside; pass the bundle's directory");
  if ((size_t)snprintf(path, sizeof path, "%s/%s.weights", bundle_dir, rt->model->prefix) >= sizeof path)
    return rt_error(rt, SMELT_INVALID, "bundle_dir is too long for a path of %d characters: '%.64s...'", LONGEST - 1, bundle_dir);
  int fd = sm_open(path);
  if (fd < 0) return rt_error(rt, SMELT_INFRA, "%s: cannot be opened (errno %d); the bundle needs its weights beside the library", path, -fd);
  int32_t status = load_file(rt, path, fd, verify);
  if (rt->session->weights_fd != fd) sm_close(fd);
  return status;
}

/* A forked session's: the same copy, or a mapping of its own of the same file. */
int32_t rt_weights_share(smelt_rt *rt, const smelt_rt *from) {
  uint64_t bytes = rt->model->weights_bytes;
  if (!bytes) return SMELT_OK;
  if (from->session->weights_shared) {
    lock_copy();
    copy.users++;
    atomic_store(&copy.owner, 0);
    rt->session->weights = from->session->weights;
    rt->session->weights_shared = 1;
    return SMELT_OK;
  }
  memcpy(rt->session->weights_mtime, from->session->weights_mtime, sizeof rt->session->weights_mtime);
  rt->session->weights_fd = sm_duplicate(from->session->weights_fd);
  rt->session->weights = rt->session->weights_fd < 0 ? NULL : sm_mmap((size_t)bytes, SM_PROT_READ, SM_MAP_SHARED, rt->session->weights_fd);
  if (rt->session->weights) return SMELT_OK;
  return rt_error(rt, SMELT_INFRA, "smelt_fork: mapping %llu bytes of weights failed; are there files and address space left", (unsigned long long)bytes);
}

void rt_weights_close(smelt_rt *rt) {
  void *data = (void *)(uintptr_t)rt->session->weights;
  if (rt->session->hung) data = NULL; /* a device may be reading them */
  else if (rt->session->weights_shared) {
    lock_copy();
    if (--copy.users) data = NULL;
    atomic_store(&copy.owner, 0);
  }
  if (data) sm_munmap(data, (size_t)rt->model->weights_bytes);
  if (rt->session->weights_fd >= 0) sm_close(rt->session->weights_fd);
  rt->session->weights = NULL;
  rt->session->weights_fd = -1;
}
