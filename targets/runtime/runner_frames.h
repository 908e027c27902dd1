/* runner_frames.h: bytes <-> frames of the runner's protocol, and the growing buffers and JSON text that fill them.
 *
 *   frame   = header, payload, crc32(payload) u32
 *   header  = magic 'SMLT' u32 | version u8 | type u8 | flags u16 | job u64 | fence u64 | len u32 | crc32(first 28 bytes) u32
 *
 * All little endian; crc32 is the IEEE polynomial (zlib's). Every request is answered by any number of frames and then by
 * exactly one END, whose JSON tells the truth about success. The version changes with what a frame or a record must have: 3 has what
 * each sample was refused, telemetry, CONTROL and signs of life, and tells of a crash whether the system killed the model. The payloads:
 *
 *   HELLO   host: deadline_ms u32, idle_ms u32, silence_ms u32, units u32, path    runner: JSON, the device's facts
 *           The runner ends when no request comes for the idle time, or when no byte passes for the silence. 0: 15 minutes, or never.
 *           units: not 0: the facts have the devices of OpenCL, Vulkan and CUDA, whose drivers are loaded for that.
 *           The path is that of the device's fence file (runner_fence.h); with one, every later request needs a token as new as any
 *           that the device has seen
 *   PING    nothing: a sign of life, no request; answered with PING while a request is under way
 *   LOAD    host: load_request below, then the bundle's path            runner: STAGE, STATS (kind "model")
 *   SETIN   host: deadline_ms u32, index u32, code u8, bits u8, lanes u16, rank u32, bytes u64, dims i64[rank]; then DATA
 *   DATA    offset u64, then bytes
 *   RUN     host: run_request below                                     runner: STAGE, SAMPLES, STATS (kinds "run", "profile")
 *   SAMPLES inner u32, kind u32 (0 timed, 1 warm-up), then samples (see runner_gauge.h): each of `inner` runs
 *           The loaded model keeps its state from one RUN to the next. Where runs are timed or profiled, each begins at the start
 *   STATE   host: deadline_ms u32, zero u32: the state is back at its start
 *   ENTRY   host: deadline_ms u32, zero u32, then an entry's name        runner: STATS (kind "model", of that entry)
 *           Later requests are about this entry of the loaded model, with inputs to be set anew; after LOAD it is the first.
 *           The state is that of all entries
 *   CONTROL host: control_request of runner_control.h, a governor       runner: STATS (kind "control")
 *   GETOUT  host: deadline_ms u32, index u32                            runner: OUT, DATA
 *   PROBE   host: deadline_ms u32, count u32, then probe_wish below for each: one run that keeps neither its outputs nor the state.
 *           Without wishes DATA has a record for each launch: site u32, n_dims u32, dims i64[n_dims]. Else each wish is answered
 *           by its bytes, one after the other in DATA, in order, and the run ends after the last.  runner: STATS (kind "probe")
 *   OUT     index u32, code u8, bits u8, lanes u16, rank u32, zero u32, bytes u64, dims i64[rank]
 *   STAGE   text: what the worker does now    LOG  text: what the model wrote to stdout or stderr
 *   CRASH   JSON: how the worker died         CANCEL, RESET, QUIT: host, deadline_ms u32
 */
#ifndef RUNNER_FRAMES_H
#define RUNNER_FRAMES_H
#include "runner_sys.h"

enum { FRAME_HELLO = 1, FRAME_LOAD, FRAME_SETIN, FRAME_DATA, FRAME_RUN, FRAME_SAMPLES, FRAME_GETOUT, FRAME_OUT, FRAME_STAGE,
       FRAME_LOG, FRAME_CRASH, FRAME_STATS, FRAME_END, FRAME_CANCEL, FRAME_RESET, FRAME_QUIT, FRAME_STATE,
       FRAME_ENTRY, FRAME_PING, FRAME_CONTROL, FRAME_PROBE, FRAME_KINDS };
enum { FRAME_MAGIC = 0x544c4d53, FRAME_VERSION = 3, FRAME_HEADER = 32, FRAME_MAX = 16 << 20, FRAME_CHUNK = 1 << 20 };

typedef struct {
  uint8_t type;
  uint64_t job, fence;
  uint32_t len;
} frame;

typedef struct { /* head of LOAD; memory_bytes 0: no limit; policy: a smelt_policy_kind, which STATS (kind "model") names again */
  uint32_t deadline_ms, threads, verify, policy;
  uint64_t memory_bytes;
} load_request;

typedef struct { /* payload of RUN; fields in this order, packed by their natural alignment */
  uint32_t deadline_ms, profile;
  uint32_t warmup_runs, samples;         /* at least so many; samples 0: one run, not timed further */
  uint64_t warmup_min_ns, warmup_max_ns; /* warm-up ends when both minima are met and the last 3 runs agree, or at the cap */
  uint64_t min_ns, max_ns;               /* of the timed part; max_ns wins over everything */
  uint64_t sample_ns;                    /* one sample covers as many runs as this time needs */
} run_request;

typedef struct { /* part of PROBE: bytes at a buffer right after the launch of this number, from 0, which must be that of the site */
  uint64_t launch, bytes;
  uint32_t site, buffer;
} probe_wish;

typedef struct { /* a growing byte buffer; `pos` is what was consumed */
  uint8_t *at;
  size_t pos, len, cap;
} buffer;

#pragma GCC visibility push(hidden)

/* ---- crc32 ---- */
void crc_start(void); /* before anything else here */
uint32_t crc32_of(uint32_t crc, const uint8_t *at, size_t n);

/* ---- buffers: 0, or -1 without memory ---- */
int buffer_reserve(buffer *b, size_t more);
int buffer_add(buffer *b, const void *from, size_t n);

/* ---- text ---- */
void put_n(buffer *b, const char *s, size_t n);
void put(buffer *b, const char *s);
void put_quoted_n(buffer *b, const char *s, size_t n); /* a JSON string */
/* A small printf: %s string, %q JSON string, %u unsigned and %i signed 64-bit numbers, %x hexadecimal. Numbers must be
 * passed as uint64_t or int64_t. */
void put_format(buffer *b, const char *format, ...);
#define U(x) ((uint64_t)(x))
#define I(x) ((int64_t)(x))

/* ---- frames ---- */
/* NULL when the header is good, else what is wrong with it. Nothing is allocated from a length before this says yes. */
const char *header_read(const uint8_t *h, frame *f);
/* A whole frame at the end of b; 0, or -1 without memory. */
int frame_add(buffer *b, uint8_t type, uint64_t job, uint64_t fence, const void *payload, size_t len);
/* The payload of END. */
void end_text(buffer *b, const char *status, uint8_t request, const char *text, uint64_t bytes, uint32_t crc);

/* ---- files ---- */
/* Blocking transfer of n bytes: n, 0 at end of file before the first byte, or negative. */
long read_all(int fd, void *to, size_t n);
/* 0, or -1 when not everything could be written. */
int write_all(int fd, const void *from, size_t n);
/* The start of a small file (procfs, sysfs) without its last newline; the number of bytes, 0 when it cannot be read. */
size_t read_small(const char *path, char *to, size_t cap);

#pragma GCC visibility pop
#endif
