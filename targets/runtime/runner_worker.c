/* runner_worker.c: the requests LOAD, ENTRY, SETIN, RUN, STATE and GETOUT -> calls of the model and answers. */
#include "runner_worker.h"

#include "runner_control.h"
#include "runner_crash.h"
#include "runner_gauge.h"
#include "runner_probe.h"

/* ---- replies ---- */
void reply_send(worker *w, uint8_t type, const void *payload, size_t len) {
  w->reply.pos = w->reply.len = 0;
  if (frame_add(&w->reply, type, w->request.job, w->request.fence, payload, len) ||
      write_all(w->out, w->reply.at, w->reply.len))
    sys_exit(0); /* the supervisor is gone or there is no memory left: nobody to tell */
}
void reply_text(worker *w, uint8_t type) { reply_send(w, type, w->text.at, w->text.len); }
void stage(worker *w, const char *name) { reply_send(w, FRAME_STAGE, name, strlen(name)); }
buffer *fresh(worker *w) {
  w->text.pos = w->text.len = 0;
  return &w->text;
}

void finish(worker *w, const char *status, const char *text) {
  buffer *b = fresh(w);
  end_text(b, status, w->request.type, text, w->sent, w->sent_crc);
  reply_text(w, FRAME_END);
}

/* END from the text that was just put; the text is copied because the same buffer takes the JSON. */
void finish_with(worker *w, const char *status) {
  static char copy[2048];
  size_t n = w->text.len < sizeof copy - 1 ? w->text.len : sizeof copy - 1;
  memcpy(copy, w->text.at, n);
  copy[n] = 0;
  finish(w, status, copy);
}

void finish_model(worker *w, smelt_status s) {
  put_format(fresh(w), "%s", w->api.error(w->session));
  finish_with(w, status_name(s));
}

/* ---- LOAD ---- */
static void put_type(buffer *b, const char *name, DLDataType t, int32_t rank) {
  put_format(b, "{\"name\":%q,\"code\":%u,\"bits\":%u,\"lanes\":%u,\"rank\":%i}", name, U(t.code), U(t.bits), U(t.lanes), I(rank));
}

void put_memory(worker *w, buffer *b) {
  smelt_memory m;
  long used[18];
  memset(&m, 0, sizeof m);
  memset(used, 0, sizeof used);
  w->api.memory_stats(w->session, &m);
  sys(NR_getrusage, 0, (long)used, 0, 0, 0, 0);
  put_format(b, "{\"arena_bytes\":%u,\"arena_capacity\":%u,\"output_capacity\":%u,\"weights_bytes\":%u,\"allocations\":%u,\"runs\":%u,\"crossings\":%u,\"crossed_bytes\":%u,\"shared\":%u,\"shared_bytes\":%u",
             m.arena_bytes, m.arena_capacity, m.output_capacity, m.weights_bytes, m.allocations, m.runs, m.crossings, m.crossed_bytes, m.shared, m.shared_bytes);
  put_format(b, ",\"launches\":%u,\"submits\":%u,\"uploads\":%u,\"uploaded_bytes\":%u,\"reads\":%u,\"read_bytes\":%u,\"waits\":%u,\"cache_hits\":%u,\"cache_misses\":%u,\"kernel_forms\":%u,\"lesser_forms\":%u",
             m.launches, m.submits, m.uploads, m.uploaded_bytes, m.reads, m.read_bytes, m.waits, m.cache_hits, m.cache_misses, m.kernel_forms, m.lesser_forms);
  put_format(b, ",\"state_capacity\":%u,\"resident_peak_kb\":%u,\"major_faults\":%u,\"preemptions\":%u}", m.state_capacity, U(used[4]), U(used[9]), U(used[17]));
}

static void put_model(worker *w, buffer *b, uint64_t load_ns) {
  put_format(b, "{\"kind\":\"model\",\"load_ns\":%u,\"policy\":%q,\"inputs\":[", load_ns, policy_name(w->policy));
  for (size_t i = 0; i < w->n_inputs; i++) {
    put(b, i ? "," : "");
    put_type(b, w->api.input_name(w->session, i), w->api.input_type(w->session, i), w->api.input_rank(w->session, i));
  }
  put(b, "],\"outputs\":[");
  for (size_t i = 0; i < w->n_outputs; i++) {
    put(b, i ? "," : "");
    put_type(b, w->api.output_name(w->session, i), w->api.output_type(w->session, i), w->api.output_rank(w->session, i));
  }
  put(b, "],\"state\":[");
  for (size_t i = 0; i < w->api.state_count(w->session); i++) {
    put(b, i ? "," : "");
    put_type(b, w->api.state_name(w->session, i), w->api.state_type(w->session, i), w->api.state_rank(w->session, i));
  }
  put(b, "],\"entries\":[");
  for (size_t i = 0; i < w->api.entry_count(w->session); i++) put_format(b, "%s%q", i ? "," : "", w->api.entry_name(w->session, i));
  put(b, "],\"memory\":");
  put_memory(w, b);
  put(b, "}");
}

int worker_slots(worker *w) {
  for (size_t i = 0; i < w->n_inputs; i++)
    if (w->inputs && w->inputs[i].memory) sys_unmap(w->inputs[i].memory, w->inputs[i].capacity);
  if (w->inputs) sys_unmap(w->inputs, (w->n_inputs + 1) * sizeof(slot));
  if (w->arguments) sys_unmap(w->arguments, (w->n_inputs + 1) * sizeof(DLTensor));
  if (w->outputs) sys_unmap(w->outputs, (w->n_outputs + 1) * sizeof(DLTensor));
  w->inputs = NULL, w->arguments = w->outputs = NULL, w->ran = 0;
  w->n_inputs = w->api.input_count(w->session);
  w->n_outputs = w->api.output_count(w->session);
  if (w->n_inputs > TENSOR_LIMIT || w->n_outputs > TENSOR_LIMIT) return -1;
  w->inputs = sys_map((w->n_inputs + 1) * sizeof(slot));
  w->arguments = sys_map((w->n_inputs + 1) * sizeof(DLTensor));
  w->outputs = sys_map((w->n_outputs + 1) * sizeof(DLTensor));
  return w->inputs && w->arguments && w->outputs ? 0 : -1;
}

/* Into the log: that the device is not what runs the model. */
static void tell_fallback(worker *w) {
  const char *why = w->api.fallback(w->session);
  if (!why) return;
  buffer *b = fresh(w);
  put_format(b, "smelt: the CPU runs the model: %s\n", why);
  sys_write(2, b->at, b->len);
}

static void on_load(worker *w) {
  load_request r;
  if (w->payload.len <= sizeof r) return finish(w, "protocol", "a LOAD frame is shorter than its fixed part");
  memcpy(&r, w->payload.at, sizeof r);
  buffer_add(&w->payload, "", 1);
  smelt_options options = {.struct_size = sizeof options, .threads = (int32_t)r.threads, .verify = r.verify != 0};
  const char *bundle = (const char *)w->payload.at + sizeof r;
  if (r.memory_bytes) sys_limit(SYS_RLIMIT_AS, r.memory_bytes);
  stage(w, "load: library");
  uint64_t start = sys_now();
  if (model_load(&w->api, bundle, fresh(w))) return finish_with(w, "invalid");
  stage(w, "load: open");
  smelt_status s = w->api.open(bundle, &options, &w->session);
  uint64_t load_ns = sys_now() - start;
  if (s != SMELT_OK || !w->session) {
    w->session = NULL;
    return finish_model(w, s == SMELT_OK ? SMELT_INTERNAL : s);
  }
  if (worker_slots(w)) return finish(w, "device", "no memory for the model's tensor table");
  if (model_bind(&w->api, w->session, r.policy, fresh(w))) return finish_with(w, "invalid");
  w->policy = r.policy;
  tell_fallback(w);
  put_model(w, fresh(w), load_ns);
  reply_text(w, FRAME_STATS);
  finish(w, "ok", "");
}

/* ---- ENTRY ---- */
static void on_entry(worker *w) {
  enum { HEAD = 8 };
  if (w->payload.len <= HEAD) return finish(w, "protocol", "an ENTRY frame is shorter than its fixed part");
  if (!w->session) return finish(w, "protocol", "no model is loaded");
  buffer_add(&w->payload, "", 1);
  smelt_session *entry = w->api.entry(w->session, (const char *)w->payload.at + HEAD);
  if (!entry) {
    put_format(fresh(w), "%s", w->api.error(NULL));
    return finish_with(w, "invalid");
  }
  w->session = entry;
  if (worker_slots(w)) return finish(w, "device", "no memory for the model's tensor table");
  put_model(w, fresh(w), 0);
  reply_text(w, FRAME_STATS);
  finish(w, "ok", "");
}

/* ---- SETIN ---- */
typedef struct { uint32_t deadline_ms, index; DLDataType type; uint32_t rank; uint64_t bytes; } tensor_head; /* then dims */

uint64_t tensor_bytes(DLDataType t, const int64_t *dims, size_t rank) {
  uint64_t count = 1, bits;
  int zero = 0;
  for (size_t i = 0; i < rank; i++) {
    if (dims[i] < 0) return UINT64_MAX;
    zero |= dims[i] == 0;
    if (!zero && __builtin_mul_overflow(count, (uint64_t)dims[i], &count)) return UINT64_MAX;
  }
  if (zero) return 0;
  if (__builtin_mul_overflow(count, (uint64_t)t.bits * (t.lanes ? t.lanes : 1), &bits) || bits >> 63) return UINT64_MAX;
  return (bits + 7) / 8;
}

int slot_reserve(slot *s, uint64_t bytes) {
  size_t want = bytes < 4096 ? 4096 : (size_t)bytes;
  if (want < bytes) return -1;
  if (want <= s->capacity) {
    sys_border(s->memory, (size_t)bytes, s->capacity);
    return 0;
  }
  void *memory = sys_map(want);
  if (!memory) return -1;
  if (s->memory) sys_unmap(s->memory, s->capacity);
  s->memory = memory;
  s->capacity = want;
  sys_border(memory, (size_t)bytes, want);
  return 0;
}

/* Read one DATA frame into the slot at `at`; its length, or -1 when the stream is not what was announced. */
static int64_t receive_chunk(worker *w, slot *s, uint64_t at, uint64_t bytes) {
  uint8_t header[FRAME_HEADER];
  uint64_t offset;
  uint32_t crc;
  frame f;
  if (read_all(w->in, header, sizeof header) <= 0) sys_exit(0);
  if (header_read(header, &f) || f.type != FRAME_DATA || f.len < 8 || f.len - 8 > bytes - at) return -1;
  if (read_all(w->in, &offset, 8) <= 0) sys_exit(0);
  if (offset != at) return -1;
  if (f.len > 8 && read_all(w->in, (uint8_t *)s->memory + at, f.len - 8) <= 0) sys_exit(0);
  if (read_all(w->in, &crc, 4) <= 0) sys_exit(0);
  return (int64_t)f.len - 8;
}

static void on_set_input(worker *w) {
  tensor_head head;
  if (w->payload.len < sizeof head) return finish(w, "protocol", "a SETIN frame is shorter than its fixed part");
  memcpy(&head, w->payload.at, sizeof head);
  if (head.rank > RANK_MAX || w->payload.len != sizeof head + 8 * (size_t)head.rank)
    return finish(w, "protocol", "a SETIN frame's length does not fit its rank");
  if (!w->session) return finish(w, "protocol", "no model is loaded");
  if (head.index >= w->n_inputs) {
    put_format(fresh(w), "input %u does not exist; the model has %u", U(head.index), U(w->n_inputs));
    return finish_with(w, "shape");
  }
  slot *s = &w->inputs[head.index];
  int64_t dims[RANK_MAX];
  memcpy(dims, w->payload.at + sizeof head, 8 * (size_t)head.rank);
  if (tensor_bytes(head.type, dims, head.rank) != head.bytes)
    return finish(w, "shape", "an input's byte count does not fit its dims and type");
  s->set = 0;
  if (slot_reserve(s, head.bytes)) {
    put_format(fresh(w), "no memory for input %u of %u bytes", U(head.index), head.bytes);
    return finish_with(w, "device");
  }
  for (uint64_t at = 0; at < head.bytes;) {
    int64_t n = receive_chunk(w, s, at, head.bytes);
    if (n <= 0) { /* what follows in the pipe cannot be told apart any more */
      finish(w, "protocol", "DATA frames do not follow each other as announced by SETIN");
      sys_exit(0);
    }
    at += (uint64_t)n;
  }
  memcpy(s->dims, dims, sizeof dims);
  s->tensor = (DLTensor){s->memory, {1, 0}, (int32_t)head.rank, head.type, s->dims, NULL, 0};
  s->set = 1;
  finish(w, "ok", "");
}

/* ---- RUN ---- */
int inputs_set(worker *w) {
  for (size_t i = 0; i < w->n_inputs; i++)
    if (!w->inputs[i].set) {
      put_format(fresh(w), "input %u '%s' was not set", U(i), w->api.input_name(w->session, i));
      finish_with(w, "shape");
      return 0;
    }
  return 1;
}

static smelt_status call_model(worker *w) {
  for (size_t i = 0; i < w->n_inputs; i++) w->arguments[i] = w->inputs[i].tensor;
  for (size_t i = 0; i < w->n_outputs; i++) {
    memset(&w->outputs[i], 0, sizeof(DLTensor));
    w->outputs[i].device.device_type = 1;
    w->outputs[i].dtype = w->api.output_type(w->session, i);
  }
  return w->api.run(w->session, w->arguments, w->n_inputs, w->outputs, w->n_outputs);
}

/* How long `count` runs take in all, but for the way back to the start of the state. Without one the clock is read once: a system call
 * is long for a tiny model. */
static smelt_status timed_runs(worker *w, uint32_t count, uint64_t *ns) {
  smelt_status s = SMELT_OK;
  uint64_t start = sys_now(), away = 0;
  for (uint32_t i = 0; i < count && s == SMELT_OK; i++) {
    if (w->afresh) {
      uint64_t left = sys_now();
      w->api.reset(w->session);
      away += sys_now() - left;
    }
    s = call_model(w);
  }
  *ns = sys_now() - start - away;
  return s;
}

smelt_status run_once(worker *w, uint64_t *ns) { return timed_runs(w, 1, ns); }

void begin_afresh(worker *w, int yes) { w->afresh = yes && w->api.state_count(w->session); }

enum { SAMPLES_MAX = 1 << 18, INNER_MAX = 1 << 20 };

typedef struct { /* what a timed request measures; the list of samples is first of the warm-up, then of the timed part */
  uint32_t head[2]; /* of the frame; the samples follow it */
  sample samples[SAMPLES_MAX];
} list;

typedef struct {
  list *list;
  size_t n, warm;
  uint32_t inner;
  int stable;
  gauge gauge;
  telemetry telemetry;
} measurement;

static void send_samples(worker *w, list *l, size_t n, uint32_t inner, uint32_t kind) {
  l->head[0] = inner, l->head[1] = kind;
  reply_send(w, FRAME_SAMPLES, l, sizeof l->head + n * sizeof *l->samples);
}

/* The last three runs are within 5 % of each other. */
static int settled(const sample *s, size_t n) {
  if (n < 3) return 0;
  uint64_t lo = s[n - 1].ns, hi = lo;
  for (size_t i = n - 3; i < n; i++) {
    lo = s[i].ns < lo ? s[i].ns : lo;
    hi = s[i].ns > hi ? s[i].ns : hi;
  }
  return hi - lo <= lo / 20;
}

static smelt_status take_sample(worker *w, measurement *m, size_t i) {
  usage before;
  gauge_read(&m->gauge, &before);
  smelt_status s = timed_runs(w, m->inner, &m->list->samples[i].ns);
  sample_end(&m->gauge, &before, &m->list->samples[i]);
  return s;
}

/* Warm up as the request says; m->stable tells whether the end was reached by settling. */
static smelt_status warm_up(worker *w, const run_request *r, measurement *m) {
  uint64_t start = sys_now();
  for (m->n = 0, m->stable = 0, m->inner = 1; m->n < SAMPLES_MAX;) {
    uint64_t spent = sys_now() - start;
    if (m->n >= r->warmup_runs && spent >= r->warmup_min_ns) {
      m->stable = settled(m->list->samples, m->n) || !r->warmup_runs;
      if (m->stable || spent >= r->warmup_max_ns) break;
    }
    if (m->n && spent >= r->warmup_max_ns) break;
    smelt_status s = take_sample(w, m, m->n);
    if (s != SMELT_OK) return s;
    m->n++;
  }
  m->warm = m->n;
  return SMELT_OK;
}

/* How many runs one sample needs to last sample_ns; grown by trial, since the time of one short run is mostly the clock's. */
static smelt_status choose_inner(worker *w, const run_request *r, uint64_t one_ns, uint32_t *inner) {
  uint64_t want = one_ns < r->sample_ns ? r->sample_ns / (one_ns ? one_ns : 1) + 1 : 1;
  for (int attempt = 0; attempt < 4; attempt++) {
    *inner = want < INNER_MAX ? (uint32_t)want : INNER_MAX;
    if (*inner == 1) return SMELT_OK;
    uint64_t took;
    smelt_status s = timed_runs(w, *inner, &took);
    if (s != SMELT_OK) return s;
    if (took >= r->sample_ns || *inner == INNER_MAX) return SMELT_OK;
    want = want * r->sample_ns / (took ? took : 1) + want / 10 + 1;
  }
  return SMELT_OK;
}

static smelt_status measure(worker *w, const run_request *r, measurement *m) {
  gauge_close(&m->gauge);
  gauge_open(&m->gauge); /* the first run may have started threads */
  if (telemetry_start(&m->telemetry, w->sysfs)) return SMELT_DEVICE;
  uint64_t start = sys_now();
  smelt_status s = SMELT_OK;
  for (m->n = 0; m->n < SAMPLES_MAX && s == SMELT_OK; m->n++) {
    uint64_t now = sys_now(), spent = now - start;
    if ((m->n >= r->samples && spent >= r->min_ns) || (m->n && spent >= r->max_ns)) break;
    telemetry_tick(&m->telemetry, now, m->n);
    s = take_sample(w, m, m->n);
  }
  telemetry_take(&m->telemetry, m->n);
  return s;
}

/* Warm up, choose how many runs make a sample, and measure; the samples are sent as they come. */
static smelt_status measure_all(worker *w, const run_request *r, uint64_t first, measurement *m) {
  stage(w, "run: warm-up");
  gauge_open(&m->gauge);
  smelt_status s = warm_up(w, r, m);
  if (s != SMELT_OK) return s;
  send_samples(w, m->list, m->warm, 1, 1);
  s = choose_inner(w, r, m->warm ? m->list->samples[m->warm - 1].ns : first, &m->inner);
  if (s != SMELT_OK) return s;
  if (r->profile) w->api.profile(w->session, 1);
  stage(w, "run: timed");
  s = measure(w, r, m);
  if (s == SMELT_OK) send_samples(w, m->list, m->n, m->inner, 0);
  return s;
}

static void measurement_end(measurement *m) {
  gauge_close(&m->gauge);
  telemetry_end(&m->telemetry);
  if (m->list) sys_unmap(m->list, sizeof *m->list);
}

void put_shares(worker *w, buffer *b) {
  smelt_unit_share share;
  put(b, "[");
  for (size_t i = 0, n = 0; w->policy && i < w->api.share_count(w->session); i++) {
    memset(&share, 0, sizeof share);
    if (w->api.share(w->session, i, &share) != SMELT_OK) continue;
    put_format(b, "%s{\"unit\":%q,\"processor\":%q,\"why\":%q,\"runs\":%u,\"explorations\":%u,\"expected_ns\":%u}", n++ ? "," : "", share.unit,
               share.processor, share.why, share.runs, share.explorations, share.expected_ns);
  }
  put(b, "]");
}

static void put_outputs(worker *w, buffer *b) {
  put(b, "[");
  for (size_t i = 0; i < w->n_outputs; i++) {
    const DLTensor *t = &w->outputs[i];
    put(b, i ? ",{\"dims\":[" : "{\"dims\":[");
    for (int32_t d = 0; d < t->ndim; d++) put_format(b, "%s%i", d ? "," : "", I(t->shape[d]));
    put(b, "]}");
  }
  put(b, "]");
}

static void send_profile(worker *w) {
  buffer *b = fresh(w);
  put(b, "{\"kind\":\"profile\",\"kernels\":[");
  for (size_t i = 0; i < w->api.kernel_count(w->session); i++) {
    const char *name = "", *form = NULL, *why = "";
    uint64_t ns = 0, launches = 0, device_ns = 0, told = 0;
    if (w->api.kernel_stats(w->session, i, &name, &ns, &launches) != SMELT_OK) continue;
    w->api.kernel_device_stats(w->session, i, &device_ns, &told);
    w->api.kernel_form(w->session, i, &form, &why);
    put_format(b, "%s{\"name\":%q,\"ns\":%u,\"launches\":%u,\"device_ns\":%u,\"device_launches\":%u", i ? "," : "", name, ns, launches, device_ns,
               told);
    if (form) put_format(b, ",\"form\":%q,\"lesser\":%q", form, why);
    put(b, "}");
  }
  put(b, "]}");
  reply_text(w, FRAME_STATS);
}

/* 0, or -1 after the answer that says what is missing. */
static int may_run(worker *w) {
  if (w->payload.len != sizeof(run_request)) return finish(w, "protocol", "a RUN frame does not have its fixed length"), -1;
  if (!w->session) return finish(w, "protocol", "no model is loaded"), -1;
  return inputs_set(w) ? 0 : -1;
}

static void send_run(worker *w, const measurement *m, uint64_t first, const buffer *before) {
  buffer *b = fresh(w);
  put_format(b, "{\"kind\":\"run\",\"first_ns\":%u,\"inner\":%u,\"samples\":%u,\"warmup_runs\":%u,\"warmup_stable\":%s,\"outputs\":", first,
             U(m->inner), U(m->n), U(m->warm), m->stable ? "true" : "false");
  put_outputs(w, b);
  put(b, ",\"memory\":");
  put_memory(w, b);
  put(b, ",\"shares\":");
  put_shares(w, b);
  put(b, ",\"telemetry\":");
  put_telemetry(b, &m->telemetry);
  put_format(b, ",\"before\":%s,\"after\":", (const char *)before->at);
  put_condition(b, w->sysfs);
  put(b, "}");
  reply_text(w, FRAME_STATS);
}

static void on_run(worker *w) {
  static measurement m; /* its tables are too long for the stack */
  run_request r;
  uint64_t first = 0, again;
  buffer before = {0};
  if (may_run(w)) return;
  memcpy(&r, w->payload.at, sizeof r);
  memset(&m, 0, sizeof m);
  m.inner = 1, m.stable = 1;
  m.list = r.samples ? sys_map(sizeof *m.list) : NULL;
  if (r.samples && !m.list) return finish(w, "device", "no memory for the list of samples");
  put_condition(&before, w->sysfs);
  put_n(&before, "", 1);
  w->ran = 0;
  begin_afresh(w, r.samples || r.profile);
  stage(w, "run: first");
  smelt_status s = run_once(w, &first);
  if (s == SMELT_OK && r.samples) {
    s = measure_all(w, &r, first, &m);
  } else if (s == SMELT_OK && r.profile) { /* a profile without timing: one more run, so that the first one's costs stay out */
    w->api.profile(w->session, 1);
    s = run_once(w, &again);
  }
  if (s == SMELT_OK) {
    w->ran = 1;
    send_run(w, &m, first, &before);
    if (r.profile) send_profile(w);
  }
  w->api.profile(w->session, 0);
  sys_unmap(before.at, before.cap);
  measurement_end(&m);
  if (s == SMELT_OK) finish(w, "ok", "");
  else finish_model(w, s);
}

/* ---- STATE ---- */
static void on_state(worker *w) {
  if (w->payload.len != 8) return finish(w, "protocol", "a STATE frame does not have its fixed length");
  if (!w->session) return finish(w, "protocol", "no model is loaded");
  smelt_status s = w->api.reset(w->session);
  put_format(fresh(w), "%s", s == SMELT_OK ? "" : w->api.error(NULL));
  finish_with(w, status_name(s));
}

/* ---- GETOUT ---- */
void send_data(worker *w, const uint8_t *from, uint64_t bytes) {
  static uint8_t chunk[8 + FRAME_CHUNK];
  for (uint64_t at = 0; at < bytes;) {
    size_t n = bytes - at < FRAME_CHUNK ? (size_t)(bytes - at) : FRAME_CHUNK;
    memcpy(chunk, &at, 8);
    memcpy(chunk + 8, from + at, n);
    w->sent_crc = crc32_of(w->sent_crc, chunk + 8, n);
    w->sent += n;
    reply_send(w, FRAME_DATA, chunk, 8 + n);
    at += n;
  }
}

static void on_get_output(worker *w) {
  uint32_t index, zero = 0;
  if (w->payload.len != 8) return finish(w, "protocol", "a GETOUT frame does not have its fixed length");
  memcpy(&index, w->payload.at + 4, 4);
  if (!w->session || !w->ran) return finish(w, "protocol", "no run has succeeded, so there is no output");
  if (index >= w->n_outputs) {
    put_format(fresh(w), "output %u does not exist; the model has %u", U(index), U(w->n_outputs));
    return finish_with(w, "shape");
  }
  const DLTensor *t = &w->outputs[index];
  uint64_t bytes = t->ndim < 0 || t->ndim > RANK_MAX || (t->ndim && !t->shape)
                       ? UINT64_MAX : tensor_bytes(t->dtype, t->shape, (size_t)t->ndim);
  if (bytes == UINT64_MAX || t->strides || (bytes && !t->data)) {
    put_format(fresh(w), "output %u is not a compact tensor with memory; the model's library is wrong", U(index));
    return finish_with(w, "internal");
  }
  uint32_t rank = (uint32_t)t->ndim;
  buffer *b = fresh(w);
  buffer_add(b, &index, 4);
  buffer_add(b, &t->dtype, 4);
  buffer_add(b, &rank, 4);
  buffer_add(b, &zero, 4);
  buffer_add(b, &bytes, 8);
  buffer_add(b, t->shape, 8 * (size_t)rank);
  reply_text(w, FRAME_OUT);
  send_data(w, (const uint8_t *)t->data + t->byte_offset, bytes);
  finish(w, "ok", "");
}

static void (*const REQUESTS[FRAME_KINDS])(worker *) = {
    [FRAME_LOAD] = on_load, [FRAME_SETIN] = on_set_input, [FRAME_RUN] = on_run, [FRAME_STATE] = on_state, [FRAME_GETOUT] = on_get_output,
    [FRAME_ENTRY] = on_entry, [FRAME_PROBE] = on_probe};

__attribute__((noreturn)) void worker_main(int in, int out, int crash, const char *sysfs) {
  static worker w;
  uint8_t header[FRAME_HEADER];
  uint32_t crc;
  w.in = in;
  w.out = out;
  w.sysfs = sysfs;
  sys_limit(SYS_RLIMIT_CORE, 0);
  catch_fatal(crash);
  control_enter_worker();
  while (read_all(in, header, sizeof header) > 0 && !header_read(header, &w.request)) {
    w.payload.pos = w.payload.len = w.sent = w.sent_crc = 0;
    if (buffer_reserve(&w.payload, (size_t)w.request.len + 1)) break;
    if (w.request.len && read_all(in, w.payload.at, w.request.len) <= 0) break;
    w.payload.len = w.request.len;
    if (read_all(in, &crc, 4) <= 0) break;
    void (*handle)(worker *) = REQUESTS[w.request.type];
    if (handle) handle(&w);
    else if (w.request.type != FRAME_DATA) /* DATA here is what is left of a SETIN that was refused */
      finish(&w, "protocol", "the worker has no such request");
  }
  if (w.session) w.api.close(w.session);
  sys_exit(0);
}
