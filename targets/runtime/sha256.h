/* sha256.h: SHA-256 (FIPS 180-4): bytes, piece by piece, in; 32 bytes out. */
#ifndef SMELT_SHA256_H
#define SMELT_SHA256_H
#include "smelt_libc.h"

static const uint32_t sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static inline uint32_t sha256_rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static inline void sha256_block(uint32_t h[8], const uint8_t *p) {
  uint32_t w[64], v[8];
  for (int i = 0; i < 16; i++)
    w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
  for (int i = 16; i < 64; i++) {
    uint32_t a = sha256_rotate(w[i - 15], 7) ^ sha256_rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
    uint32_t b = sha256_rotate(w[i - 2], 17) ^ sha256_rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  memcpy(v, h, sizeof v);
  for (int i = 0; i < 64; i++) {
    uint32_t s1 = sha256_rotate(v[4], 6) ^ sha256_rotate(v[4], 11) ^ sha256_rotate(v[4], 25);
    uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + sha256_k[i] + w[i];
    uint32_t s0 = sha256_rotate(v[0], 2) ^ sha256_rotate(v[0], 13) ^ sha256_rotate(v[0], 22);
    uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
    memmove(v + 1, v, 7 * sizeof *v);
    v[4] += t1;
    v[0] = t1 + t2;
  }
  for (int i = 0; i < 8; i++) h[i] += v[i];
}

typedef struct {
  uint32_t h[8];
  uint64_t bytes;
  uint8_t rest[64]; /* bytes % 64 of them wait for a whole block */
} sha256_state;

static inline void sha256_start(sha256_state *s) {
  static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(s->h, first, sizeof first);
  s->bytes = 0;
}

static inline void sha256_add(sha256_state *s, const uint8_t *data, uint64_t n) {
  while (n) {
    size_t have = (size_t)(s->bytes % 64), take = n < 64 - have ? (size_t)n : 64 - have;
    if (have || take < 64) {
      memcpy(s->rest + have, data, take);
      if (have + take == 64) sha256_block(s->h, s->rest);
    } else {
      sha256_block(s->h, data);
    }
    s->bytes += take, data += take, n -= take;
  }
}

static inline void sha256_end(sha256_state *s, uint8_t digest[32]) {
  static const uint8_t padding[64] = {0x80};
  uint64_t bits = s->bytes * 8, rest = s->bytes % 64;
  uint8_t length[8];
  for (int i = 0; i < 8; i++) length[7 - i] = (uint8_t)(bits >> 8 * i);
  sha256_add(s, padding, rest < 56 ? 56 - rest : 120 - rest);
  sha256_add(s, length, sizeof length);
  for (int i = 0; i < 32; i++) digest[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}
#endif
