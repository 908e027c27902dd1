/* runner_frames.c: the functions of runner_frames.h: checksums, buffers, JSON text and frames. */
#include "runner_frames.h"

/* ---- crc32, eight bytes a step: 40 MB tensors pass through it twice ---- */
static uint32_t crc_table[8][256];

void crc_start(void) {
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; bit++) c = c & 1 ? 0xedb88320u ^ (c >> 1) : c >> 1;
    crc_table[0][i] = c;
  }
  for (int row = 1; row < 8; row++)
    for (uint32_t i = 0; i < 256; i++)
      crc_table[row][i] = crc_table[0][crc_table[row - 1][i] & 255] ^ (crc_table[row - 1][i] >> 8);
}

uint32_t crc32_of(uint32_t crc, const uint8_t *at, size_t n) {
  crc = ~crc;
  for (; n >= 8; n -= 8, at += 8) {
    uint32_t lo, hi;
    memcpy(&lo, at, 4);
    memcpy(&hi, at + 4, 4);
    lo ^= crc;
    crc = crc_table[7][lo & 255] ^ crc_table[6][lo >> 8 & 255] ^ crc_table[5][lo >> 16 & 255] ^ crc_table[4][lo >> 24] ^
          crc_table[3][hi & 255] ^ crc_table[2][hi >> 8 & 255] ^ crc_table[1][hi >> 16 & 255] ^ crc_table[0][hi >> 24];
  }
  while (n--) crc = crc_table[0][(crc ^ *at++) & 255] ^ (crc >> 8);
  return ~crc;
}

/* ---- a growing byte buffer ---- */
enum { FIRST_BYTES = 65536 }; /* one with fewer lies in an array of its user */
int buffer_reserve(buffer *b, size_t more) {
  if (b->pos && b->pos == b->len) b->pos = b->len = 0;
  if (more <= b->cap - b->len) {
    if (b->cap >= FIRST_BYTES) sys_border(b->at, b->len + more, b->cap);
    return 0;
  }
  if (b->pos) { /* a queue that is never quite empty must not grow for ever */
    memmove(b->at, b->at + b->pos, b->len - b->pos);
    b->len -= b->pos;
    b->pos = 0;
    return buffer_reserve(b, more);
  }
  if (more > SIZE_MAX / 4 || b->len > SIZE_MAX / 4) return -1;
  size_t cap = b->cap ? b->cap : FIRST_BYTES;
  while (cap < b->len + more) cap *= 2;
  uint8_t *at = sys_map(cap);
  if (!at) return -1;
  if (b->len) memcpy(at, b->at, b->len);
  if (b->cap) sys_unmap(b->at, b->cap);
  b->at = at;
  b->cap = cap;
  sys_border(at, b->len + more, cap);
  return 0;
}

int buffer_add(buffer *b, const void *from, size_t n) {
  if (buffer_reserve(b, n)) return -1;
  if (n) memcpy(b->at + b->len, from, n);
  b->len += n;
  return 0;
}

/* ---- text ---- */
void put_n(buffer *b, const char *s, size_t n) { buffer_add(b, s, n); }
void put(buffer *b, const char *s) { put_n(b, s, strlen(s)); }

static void put_number(buffer *b, uint64_t value, uint32_t base) {
  char digits[24];
  int at = sizeof digits;
  do {
    digits[--at] = "0123456789abcdef"[value % base];
    value /= base;
  } while (value);
  put_n(b, digits + at, sizeof digits - (size_t)at);
}

static void put_signed(buffer *b, int64_t value) {
  if (value < 0) put(b, "-");
  put_number(b, value < 0 ? 0 - (uint64_t)value : (uint64_t)value, 10);
}

void put_quoted_n(buffer *b, const char *s, size_t n) {
  put(b, "\"");
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)s[i];
    char escaped[6] = {'\\', 'u', '0', '0', "0123456789abcdef"[c >> 4], "0123456789abcdef"[c & 15]};
    if (c == '"' || c == '\\') {
      put_n(b, "\\", 1);
      put_n(b, s + i, 1);
    } else if (c < 32) {
      put_n(b, escaped, 6);
    } else {
      put_n(b, s + i, 1);
    }
  }
  put(b, "\"");
}
static void put_quoted(buffer *b, const char *s) { put_quoted_n(b, s ? s : "", s ? strlen(s) : 0); }

void put_format(buffer *b, const char *format, ...) {
  __builtin_va_list args;
  __builtin_va_start(args, format);
  for (const char *p = format; *p; p++) {
    if (*p != '%') {
      put_n(b, p, 1);
      continue;
    }
    switch (*++p) {
      case 's': put(b, __builtin_va_arg(args, const char *)); break;
      case 'q': put_quoted(b, __builtin_va_arg(args, const char *)); break;
      case 'u': put_number(b, __builtin_va_arg(args, uint64_t), 10); break;
      case 'x': put_number(b, __builtin_va_arg(args, uint64_t), 16); break;
      case 'i': put_signed(b, __builtin_va_arg(args, int64_t)); break;
      default: put_n(b, p, 1);
    }
  }
  __builtin_va_end(args);
}

/* ---- frames ---- */
static void header_write(uint8_t *h, const frame *f) {
  uint32_t magic = FRAME_MAGIC, crc;
  memset(h, 0, FRAME_HEADER);
  memcpy(h, &magic, 4);
  h[4] = FRAME_VERSION;
  h[5] = f->type;
  memcpy(h + 8, &f->job, 8);
  memcpy(h + 16, &f->fence, 8);
  memcpy(h + 24, &f->len, 4);
  crc = crc32_of(0, h, 28);
  memcpy(h + 28, &crc, 4);
}

const char *header_read(const uint8_t *h, frame *f) {
  uint32_t magic, crc;
  memcpy(&magic, h, 4);
  memcpy(&crc, h + 28, 4);
  if (magic != FRAME_MAGIC) return "no frame magic in the stream";
  if (crc != crc32_of(0, h, 28)) return "frame header checksum differs";
  if (h[4] != FRAME_VERSION) return "the frame is of another version of the protocol";
  f->type = h[5];
  memcpy(&f->job, h + 8, 8);
  memcpy(&f->fence, h + 16, 8);
  memcpy(&f->len, h + 24, 4);
  if (f->type == 0 || f->type >= FRAME_KINDS) return "frame type is unknown";
  if (f->len > FRAME_MAX) return "frame is longer than 16 MiB";
  return NULL;
}

int frame_add(buffer *b, uint8_t type, uint64_t job, uint64_t fence, const void *payload, size_t len) {
  frame f = {type, job, fence, (uint32_t)len};
  uint32_t crc = crc32_of(0, payload, len);
  if (buffer_reserve(b, FRAME_HEADER + len + 4)) return -1;
  header_write(b->at + b->len, &f);
  b->len += FRAME_HEADER;
  buffer_add(b, payload, len);
  return buffer_add(b, &crc, 4);
}

void end_text(buffer *b, const char *status, uint8_t request, const char *text, uint64_t bytes, uint32_t crc) {
  put_format(b, "{\"status\":%q,\"request\":%u,\"text\":%q,\"bytes\":%u,\"crc32\":%u}", status, U(request), text, bytes, U(crc));
}

long read_all(int fd, void *to, size_t n) {
  size_t got = 0;
  while (got < n) {
    long r = sys_read(fd, (uint8_t *)to + got, n - got);
    if (r == -SYS_EINTR) continue;
    if (r <= 0) return r < 0 || got ? -1 : 0;
    got += (size_t)r;
  }
  return (long)got;
}

int write_all(int fd, const void *from, size_t n) {
  for (size_t done = 0; done < n;) {
    long r = sys_write(fd, (const uint8_t *)from + done, n - done);
    if (r == -SYS_EINTR) continue;
    if (r <= 0) return -1;
    done += (size_t)r;
  }
  return 0;
}

size_t read_small(const char *path, char *to, size_t cap) {
  int fd = sys_open(path, SYS_O_RDONLY);
  size_t got = 0;
  to[0] = 0;
  if (fd < 0) return 0;
  while (got + 1 < cap) {
    long r = sys_read(fd, to + got, cap - 1 - got);
    if (r == -SYS_EINTR) continue;
    if (r <= 0) break;
    got += (size_t)r;
  }
  sys_close(fd);
  while (got && (to[got - 1] == '\n' || to[got - 1] == 0)) got--;
  to[got] = 0;
  return got;
}
