/* fake_model.c: a hand-written model behind smelt.h that misbehaves as its input `mode` says.
 *
 *   inputs   x: f32[n, m], mode: i32[]        outputs   y: f32[n, m] = 2 x, count: i64[] = n m
 *   state    turns: i64[], how many runs went well since the start; count has it above its 32nd bit
 * It includes no libc header, so that any compiler can build it for any platform. */
#ifndef SMELT_PREFIX
#define SMELT_PREFIX model
#endif
#include "smelt.h"

void *malloc(size_t);
void *realloc(void *, size_t);
void free(void *);
void *memset(void *, int, size_t);
int printf(const char *, ...);
int fflush(void *);
void abort(void);
void exit(int);
int fork(void);
int setsid(void);
int getpid(void);
long write(int, const void *, size_t);
int usleep(unsigned);
size_t strlen(const char *);

enum { FINE, SEGFAULT, ABORT, SPIN, PRINT, EAT, LEAVE, REFUSE, FLOOD, NAP, OVERFLOW, GRANDCHILD, SCRIBBLE, BAD_OUTPUT, SLOW_RESET,
       DAEMON, SLEEP };
enum { RESET_US = 20000 };

struct smelt_session {
  float *y;
  int64_t dims[2], count;
  size_t capacity;
  smelt_memory memory;
  int profile;
  uint64_t launches;
  int64_t kept; /* its state */
  int slow_reset;
  smelt_probe_fn probe;
  void *probe_context;
  const char *error;
  int policy; /* all runs are at the first unit without one, else at the second; a bundle "alone" has none of the two */
  int alone;
  uint64_t at[2];
};
static const char *open_error = "";
char *volatile eaten;

smelt_status smelt_open(const char *bundle_dir, const smelt_options *options, smelt_session **out) {
  size_t n = strlen(bundle_dir);
  (void)options;
  if (n >= 7 && bundle_dir[n - 7] == 'r' && bundle_dir[n - 1] == 'd') { /* ".../refused" */
    open_error = "model.weights is missing from the bundle";
    return SMELT_INFRA;
  }
  *out = malloc(sizeof **out);
  memset(*out, 0, sizeof **out);
  (*out)->memory = (smelt_memory){.arena_capacity = 11, .weights_bytes = 13, .crossings = 17, .crossed_bytes = 19, .shared = 67, .shared_bytes = 71, .state_capacity = 23,
                                    .launches = 29, .submits = 31, .uploads = 37, .uploaded_bytes = 41, .reads = 43, .read_bytes = 47,
                                    .waits = 53, .cache_hits = 59, .cache_misses = 61, .kernel_forms = 73, .lesser_forms = 79};
  (*out)->error = "";
  (*out)->alone = n >= 5 && bundle_dir[n - 5] == 'a' && bundle_dir[n - 1] == 'e'; /* ".../alone" */
  return SMELT_OK;
}
void smelt_close(smelt_session *s) { free(s->y); free(s); }
const char *smelt_error(const smelt_session *s) { return s ? s->error : open_error; }
size_t smelt_entry_count(const smelt_session *s) { (void)s; return 1; }
const char *smelt_entry_name(const smelt_session *s, size_t i) { (void)s; return i ? NULL : "main"; }
smelt_session *smelt_entry(smelt_session *s, const char *name) {
  open_error = "there is no such entry";
  return strlen(name) == 4 && name[0] == 'm' ? s : NULL;
}
size_t smelt_input_count(const smelt_session *s) { (void)s; return 2; }
size_t smelt_output_count(const smelt_session *s) { (void)s; return 2; }
const char *smelt_input_name(const smelt_session *s, size_t i) { (void)s; return i ? "mode" : "x\"\n"; }
const char *smelt_output_name(const smelt_session *s, size_t i) { (void)s; return i ? "count" : "y"; }
DLDataType smelt_input_type(const smelt_session *s, size_t i) { (void)s; return i ? (DLDataType){0, 32, 1} : (DLDataType){2, 32, 1}; }
DLDataType smelt_output_type(const smelt_session *s, size_t i) { (void)s; return i ? (DLDataType){0, 64, 1} : (DLDataType){2, 32, 1}; }
int32_t smelt_input_rank(const smelt_session *s, size_t i) { (void)s; return i ? 0 : 2; }
int32_t smelt_output_rank(const smelt_session *s, size_t i) { (void)s; return i ? 0 : 2; }
smelt_status smelt_memory_stats(const smelt_session *s, smelt_memory *out) { *out = s->memory; return SMELT_OK; }
size_t smelt_state_count(const smelt_session *s) { (void)s; return 1; }
const char *smelt_state_name(const smelt_session *s, size_t i) { (void)s; return i ? NULL : "turns"; }
DLDataType smelt_state_type(const smelt_session *s, size_t i) { (void)s, (void)i; return (DLDataType){0, 64, 1}; }
int32_t smelt_state_rank(const smelt_session *s, size_t i) { (void)s, (void)i; return 0; }
smelt_status smelt_reset(smelt_session *s) { s->kept = 0; return s->slow_reset ? usleep(RESET_US), SMELT_OK : SMELT_OK; }
const char *smelt_fallback(const smelt_session *s) { (void)s; return NULL; }
smelt_status smelt_policy(smelt_session *s, const smelt_policy_options *how) {
  s->error = "the battery policy finds no battery";
  s->policy = how->policy;
  return how->policy == SMELT_POLICY_BATTERY ? SMELT_INVALID : SMELT_OK;
}
size_t smelt_share_count(const smelt_session *s) { return s->alone ? 1 : 2; }
smelt_status smelt_share(smelt_session *s, size_t i, smelt_unit_share *out) {
  *out = (smelt_unit_share){.unit = i || s->alone ? "cpu" : "Fake\"CL", .processor = "any", .why = i ? "" : "it is hot", .runs = s->at[i], .expected_ns = 5 * i};
  return i < 2 ? SMELT_OK : SMELT_INVALID;
}
const char *smelt_variant(const smelt_session *s) { (void)s; return "any"; }
smelt_status smelt_trim(smelt_session *s) { (void)s; return SMELT_OK; }
smelt_status smelt_profile(smelt_session *s, int32_t enable) { s->profile = enable; if (enable) s->launches = 0; return SMELT_OK; }
size_t smelt_kernel_count(const smelt_session *s) { (void)s; return 1; }
smelt_status smelt_kernel_device_stats(const smelt_session *s, size_t i, uint64_t *ns, uint64_t *launches) {
  (void)s, (void)i;
  return *ns = 0, *launches = 0, SMELT_OK;
}
smelt_status smelt_kernel_form(const smelt_session *s, size_t i, const char **form, const char **why) {
  (void)s, (void)i;
  return *form = "bytes", *why = "for \"more\" the device lacks it", SMELT_OK;
}
smelt_status smelt_kernel_stats(const smelt_session *s, size_t i, const char **name, uint64_t *ns, uint64_t *launches) {
  (void)i;
  *name = "double_it";
  *ns = 10 * s->launches;
  *launches = s->launches;
  return SMELT_OK;
}
void smelt_cancel(smelt_session *s) { (void)s; }
smelt_status smelt_probe(smelt_session *s, smelt_probe_fn fn, void *context) { s->probe = fn; s->probe_context = context; return SMELT_OK; }
smelt_status smelt_peek(smelt_session *s, int64_t address, void *to, uint64_t bytes) {
  (void)s;
  __builtin_memcpy(to, (const void *)(intptr_t)address, bytes);
  return SMELT_OK;
}

static int deep(volatile int *p) {
  volatile char frame[4096];
  frame[0] = (char)*p;
  volatile int next = *p + 1;
  return deep(&next) + frame[0];
}

static smelt_status misbehave(smelt_session *s, int mode) {
  volatile int zero = 0;
  switch (mode) {
    case SEGFAULT: *(volatile int *)(uintptr_t)(0x40 + zero) = 1; break;
    case ABORT: abort();
    case SPIN: for (;;) zero++; break;
    case SLEEP: for (;;) usleep(100000); break; /* as long, for tests of seconds */
    case PRINT: printf("hello from the model\n"); fflush(NULL); write(2, "and from stderr\n", 16); break;
    case EAT: for (size_t i = 0; i < 4096; i++) { /* up to 4 GiB, touched */
        char *p = malloc(1 << 20);
        if (!p) { s->error = "no memory for the arena"; return SMELT_DEVICE; }
        memset(p, 1, 1 << 20);
        eaten = p; /* or the compiler leaves both calls out */
        usleep(200);
      }
      break;
    case LEAVE: exit(7);
    case REFUSE: s->error = "input 'x' axis 1: expected 4, got 5"; return SMELT_SHAPE;
    case FLOOD: for (int i = 0; i < 200000; i++) printf("line %d of a model that talks too much\n", i); fflush(NULL); break;
    case NAP: usleep(500); break;
    case OVERFLOW: zero = deep(&zero); break;
    case GRANDCHILD: if (fork() == 0) for (;;) usleep(100000); exit(3);
    case DAEMON: /* leaves the group, the session and its parent, twice over */
      for (int i = 0; i < 2; i++) {
        if (fork()) continue;
        setsid();
        if (fork()) exit(0);
        printf("daemon %d\n", getpid());
        fflush(NULL);
        for (;;) usleep(100000);
      }
      usleep(200000); /* both have said who they are */
      break;
    case SCRIBBLE: for (int fd = 3; fd < 16; fd++) write(fd, "garbage garbage garbage garbage garbage garbage", 47); break;
    default: break;
  }
  return SMELT_OK;
}

smelt_status smelt_run(smelt_session *s, const DLTensor *inputs, size_t n_inputs, DLTensor *outputs, size_t n_outputs) {
  if (n_inputs != 2 || n_outputs != 2 || inputs[0].ndim != 2 || inputs[1].ndim != 0) {
    s->error = "wrong number or rank of inputs";
    return SMELT_SHAPE;
  }
  int mode = *(const int32_t *)inputs[1].data;
  s->slow_reset = mode == SLOW_RESET;
  smelt_status status = misbehave(s, mode);
  if (status != SMELT_OK) return status;
  s->at[s->policy > 0]++;
  const float *x = (const float *)inputs[0].data;
  size_t n = (size_t)(inputs[0].shape[0] * inputs[0].shape[1]);
  if (n * 4 > s->capacity) {
    s->y = realloc(s->y, n * 4);
    s->capacity = n * 4;
    s->memory.allocations++;
  }
  for (size_t i = 0; i < n; i++) s->y[i] = 2 * x[i];
  int64_t args[] = {(int64_t)(intptr_t)x, (int64_t)(intptr_t)s->y, inputs[0].shape[0], inputs[0].shape[1]};
  if (s->probe && s->probe(s->probe_context, 0, args, 2, 2)) {
    s->error = "stopped by its probe";
    return SMELT_DEVICE;
  }
  s->count = (int64_t)n + (s->kept << 32);
  s->kept += !s->probe;
  s->dims[0] = inputs[0].shape[0];
  s->dims[1] = mode == BAD_OUTPUT ? -5 : inputs[0].shape[1];
  s->memory.arena_bytes = n * 4;
  s->memory.output_capacity = s->capacity;
  s->memory.runs++;
  s->launches++;
  outputs[0] = (DLTensor){s->y, {1, 0}, 2, {2, 32, 1}, s->dims, NULL, 0};
  outputs[1] = (DLTensor){&s->count, {1, 0}, 0, {0, 64, 1}, NULL, NULL, 0};
  return SMELT_OK;
}
