/* weights.c: bundle directory in, the model's weights mapped read-only and shared out; that they are this model's is checked
 * by the hash after them, their length always, and what they hold on request. */
#include "rt.h"

/* ---- SHA-256 (FIPS 180-4) ---- */
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void sha256_block(uint32_t h[8], const uint8_t *p) {
  uint32_t w[64], v[8];
  for (int i = 0; i < 16; i++)
    w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
  for (int i = 16; i < 64; i++) {
    uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
    uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  memcpy(v, h, sizeof v);
  for (int i = 0; i < 64; i++) {
    uint32_t s1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
    uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + K[i] + w[i];
    uint32_t s0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
    uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
    memmove(v + 1, v, 7 * sizeof *v);
    v[4] += t1;
    v[0] = t1 + t2;
  }
  for (int i = 0; i < 8; i++) h[i] += v[i];
}

static void sha256(const uint8_t *data, uint64_t n, uint8_t digest[32]) {
  uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t tail[128] = {0};
  uint64_t whole = n / 64 * 64, rest = n - whole, length = rest < 56 ? 64 : 128;
  for (uint64_t i = 0; i < whole; i += 64) sha256_block(h, data + i);
  if (rest) memcpy(tail, data + whole, (size_t)rest);
  tail[rest] = 0x80;
  for (int i = 0; i < 8; i++) tail[length - 1 - (uint64_t)i] = (uint8_t)(n * 8 >> 8 * i);
  for (uint64_t i = 0; i < length; i += 64) sha256_block(h, tail + i);
  for (int i = 0; i < 32; i++) digest[i] = (uint8_t)(h[i / 4] >> (24 - 8 * (i % 4)));
}

/* ---- the file ---- */
enum { HASH_BYTES = 32 };

static int32_t check_hash(smelt_rt *rt, const char *path) {
  uint8_t digest[HASH_BYTES];
  sha256(rt->weights, rt->model->weights_bytes, digest);
  if (memcmp(digest, rt->model->weights_sha256, sizeof digest) == 0) return SMELT_OK;
  return rt_error(rt, SMELT_INVALID, "%s: its SHA-256 is %02x%02x%02x%02x.., model '%s' was compiled with %02x%02x%02x%02x..; copy the bundle again",
                  path, digest[0], digest[1], digest[2], digest[3], rt->model->name, rt->model->weights_sha256[0],
                  rt->model->weights_sha256[1], rt->model->weights_sha256[2], rt->model->weights_sha256[3]);
}

/* The file ends with the hash that its weights had when it was written: those of another model, of whatever size, have another. */
static int32_t check_whose(smelt_rt *rt, const char *path) {
  if (memcmp(rt->weights + rt->model->weights_bytes, rt->model->weights_sha256, HASH_BYTES) == 0) return SMELT_OK;
  return rt_error(rt, SMELT_INVALID, "%s: holds the weights of another model than '%s', or of another compile of it; copy the bundle again",
                  path, rt->model->name);
}

static int32_t map_file(smelt_rt *rt, const char *path) {
  uint64_t want = rt->model->weights_bytes + HASH_BYTES;
  int fd = sm_open(path);
  if (fd < 0) return rt_error(rt, SMELT_INFRA, "%s: cannot be opened (errno %d); the bundle needs its weights beside the library", path, -fd);
  int64_t got = sm_file_size(fd);
  if (got != (int64_t)want) {
    sm_close(fd);
    return rt_error(rt, SMELT_INVALID, "%s: has %lld bytes, model '%s' wants %llu; copy the bundle again", path, (long long)got,
                    rt->model->name, (unsigned long long)want);
  }
  rt->weights = sm_mmap((size_t)want, SM_PROT_READ, SM_MAP_SHARED, fd);
  sm_close(fd);
  if (!rt->weights)
    return rt_error(rt, SMELT_INFRA, "%s: mapping %llu bytes failed; is there address space left", path, (unsigned long long)want);
  sm_madvise((void *)(uintptr_t)rt->weights, (size_t)want, SM_MADV_WILLNEED);
  return SMELT_OK;
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
  int32_t status = map_file(rt, path);
  if (!status) status = check_whose(rt, path);
  return status || !verify ? status : check_hash(rt, path);
}

void rt_weights_close(smelt_rt *rt) {
  if (rt->weights) sm_munmap((void *)(uintptr_t)rt->weights, (size_t)rt->model->weights_bytes + HASH_BYTES);
  rt->weights = NULL;
}
