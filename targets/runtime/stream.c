/* stream.c: stages with wires between them in, a stream out, in which each stage works in a thread of its own on another item.
 *
 * An item has a slot for all its tensors, from its push until the pop after its own; slots are used in turn. So nothing is wanted
 * to keep order but counters that only grow, each written by one thread: `pushed`, a stage's `done`, `released`. Stage s may work
 * on item k when k was pushed and all stages that it reads from are done with it; slot k % depth is free for the push of item k
 * when k - depth was released. Whoever raises a counter rings `bell`, on which the others sleep. */
#include "rt.h"

enum { MOST_STAGES = 64, MOST_WIRES = 4096, MOST_DEPTH = 1024, MOST_PIECES = 1 << 20, NAME_BYTES = 64, LARGEST_STRUCT = 4096 };

/* A tensor of an item. */
typedef struct {
  DLTensor tensor;
  int64_t shape[RT_MAX_RANK];
  rt_block block;
} piece;

/* How a stage ended with an item. */
typedef struct {
  smelt_status status;
  int32_t skipped; /* an earlier stage had failed: the status is that one's */
  char text[RT_ERROR_BYTES];
} ending;

typedef struct {
  _Alignas(64) _Atomic uint64_t done; /* items */
  _Atomic uint64_t failed, busy_ns, bytes, allocations;
  _Alignas(64) smelt_stream *stream;
  smelt_stage_calls calls;
  void *context;
  const void *owner;
  char name[NAME_BYTES];
  smelt_wire *inputs;
  uint32_t n_inputs, n_outputs, first; /* its outputs among an item's pieces */
  DLTensor *taken, *given; /* of the run under way */
  ending *endings;         /* one per slot */
  sm_thread thread;
  int started;
  _Atomic int32_t ended;
} stage;

struct smelt_stream {
  _Alignas(64) _Atomic uint64_t pushed;
  _Alignas(64) _Atomic uint64_t released; /* items that the caller is done with */
  _Alignas(64) _Atomic uint32_t bell;
  _Atomic uint32_t sleepers, finished, quit;
  _Atomic int32_t pushing, popping;
  void *memory; /* the block that the stream lies in */
  stage *stages;
  piece *pieces; /* slot by slot: what was pushed, then the stages' outputs */
  smelt_wire *popped;
  uint32_t n_stages, n_pushed, n_popped, n_pieces, depth;
  uint64_t next; /* item to pop */
  uint64_t allocations;
  int pid;
};

/* ---- waiting ---- */
typedef int (*condition)(const smelt_stream *stream, const void *of);

static void ring(smelt_stream *stream) {
  atomic_fetch_add(&stream->bell, 1);
  if (atomic_load(&stream->sleepers)) sm_futex_wake(&stream->bell, INT32_MAX);
}

/* Sleep until it holds; 0: it does not within wait_ns (negative: no limit), or the stream is being closed. */
static int wait_until(smelt_stream *stream, condition holds, const void *of, int64_t wait_ns) {
  if (holds(stream, of)) return 1;
  if (!wait_ns) return 0;
  uint64_t start = wait_ns > 0 ? sm_now() : 0;
  int held = 0;
  atomic_fetch_add(&stream->sleepers, 1); /* before the look at the counters: whoever raises one then sees us */
  for (;;) {
    uint32_t seen = atomic_load(&stream->bell);
    held = holds(stream, of);
    if (held || atomic_load(&stream->quit)) break;
    if (wait_ns < 0) {
      sm_futex_wait(&stream->bell, seen);
      continue;
    }
    uint64_t past = sm_now() - start;
    if (past >= (uint64_t)wait_ns) break;
    sm_futex_wait_for(&stream->bell, seen, (uint64_t)wait_ns - past);
  }
  atomic_fetch_sub(&stream->sleepers, 1);
  return held;
}

static piece *piece_of(const smelt_stream *stream, uint64_t item, smelt_wire from) {
  uint32_t base = from.stage < 0 ? 0 : stream->stages[from.stage].first;
  return &stream->pieces[(item % stream->depth) * stream->n_pieces + base + (uint32_t)from.output];
}
static ending *ending_of(const stage *s, uint64_t item) { return &s->endings[item % s->stream->depth]; }

/* ---- pieces ---- */
/* Why a tensor cannot lie in a slot; NULL: it can, and it has so many bytes. */
static const char *unfit(const DLTensor *t, uint64_t *bytes) {
  if (t->device.device_type != 1) return "is not in host memory (DLPack's device type 1)";
  if (t->ndim < 0 || t->ndim > RT_MAX_RANK) return "has fewer than 0 or more than 64 dims";
  if (t->ndim && !t->shape) return "has no shape (NULL)";
  if (!rt_tensor_bytes(t->dtype, t->ndim, t->shape, bytes)) return "has a negative dim, or dims that multiply to more bytes than this device can address";
  if (!rt_is_compact(t)) return "has strides that are not those of a compact row-major tensor";
  if (!t->data && *bytes) return "has no data (NULL)";
  return NULL;
}

static void describe(piece *to, const DLTensor *t) {
  if (t->ndim) memcpy(to->shape, t->shape, (size_t)t->ndim * sizeof *to->shape);
  to->tensor = (DLTensor){.data = to->block.data, .device = {1, 0}, .ndim = t->ndim, .dtype = t->dtype, .shape = to->shape};
}

/* 0: the system has no memory for it. */
static int copy_in(piece *to, const DLTensor *t, uint64_t bytes, uint64_t *allocations) {
  if (!rt_block_fit(&to->block, bytes, allocations)) return 0;
  if (bytes) memcpy(to->block.data, (const char *)t->data + t->byte_offset, (size_t)bytes);
  describe(to, t);
  return 1;
}

/* ---- a stage's thread ---- */
static int may_begin(const smelt_stream *stream, const void *stage_) {
  const stage *s = stage_;
  uint64_t item = atomic_load_explicit(&s->done, memory_order_relaxed);
  if (atomic_load(&stream->pushed) <= item) return 0;
  for (uint32_t i = 0; i < s->n_inputs; i++)
    if (s->inputs[i].stage >= 0 && atomic_load(&stream->stages[s->inputs[i].stage].done) <= item) return 0;
  return 1;
}

static smelt_status fails(const stage *s, ending *end, smelt_status status, const char *why) {
  snprintf(end->text, sizeof end->text, "stage '%s': %s", s->name, why);
  return end->status = status;
}

/* An output of the run becomes a piece: by exchange of memory, or else as a copy. */
static smelt_status keep(stage *s, uint64_t item, uint32_t output, ending *end) {
  const DLTensor *t = &s->given[output];
  smelt_stream *stream = s->stream;
  piece *to = piece_of(stream, item, (smelt_wire){(int32_t)(s - stream->stages), (int32_t)output});
  uint64_t bytes = 0, before = to->block.capacity, allocations = 0;
  const char *why = unfit(t, &bytes);
  char text[RT_ERROR_BYTES / 2];
  snprintf(text, sizeof text, "its output %u %s", (unsigned)output, why ? why : "has more bytes than the system has memory for; use smaller shapes");
  if (why) return fails(s, end, SMELT_SHAPE, text);
  if (s->calls.exchange && s->calls.exchange(s->context, output, &to->block.data, &to->block.capacity)) describe(to, t);
  else if (!copy_in(to, t, bytes, &allocations)) return fails(s, end, SMELT_DEVICE, text);
  atomic_fetch_add(&s->bytes, to->block.capacity - before);
  atomic_fetch_add(&s->allocations, allocations);
  return SMELT_OK;
}

static smelt_status run_stage(stage *s, uint64_t item, ending *end) {
  for (uint32_t i = 0; i < s->n_inputs; i++) s->taken[i] = piece_of(s->stream, item, s->inputs[i])->tensor;
  for (uint32_t i = 0; i < s->n_outputs; i++) s->given[i] = (DLTensor){.device = {1, 0}};
  uint64_t start = sm_now();
  smelt_status status = s->calls.run(s->context, s->taken, s->n_inputs, s->given, s->n_outputs);
  atomic_fetch_add(&s->busy_ns, sm_now() - start);
  if (status < SMELT_OK || status > SMELT_INTERNAL) return fails(s, end, SMELT_INTERNAL, "it returned a status that is none of a run");
  if (status) {
    const char *why = s->calls.error ? s->calls.error(s->context) : NULL;
    return fails(s, end, status, why && *why ? why : "it failed and gave no reason");
  }
  for (uint32_t i = 0; !status && i < s->n_outputs; i++) status = keep(s, item, i, end);
  return status;
}

/* The stage that failed on the item before this one could have it; NULL: none. */
static const stage *failed_before(const stage *s, uint64_t item) {
  for (uint32_t i = 0; i < s->n_inputs; i++)
    if (s->inputs[i].stage >= 0) {
      const stage *from = &s->stream->stages[s->inputs[i].stage];
      if (ending_of(from, item)->status) return from;
    }
  return NULL;
}

static void *work(void *stage_) {
  stage *s = stage_;
  smelt_stream *stream = s->stream;
  for (uint64_t item = 0; wait_until(stream, may_begin, s, -1) && !atomic_load(&stream->quit); item++) {
    ending *end = ending_of(s, item);
    const stage *earlier = failed_before(s, item);
    end->status = earlier ? ending_of(earlier, item)->status : SMELT_OK;
    end->skipped = earlier != NULL;
    if (!earlier) run_stage(s, item, end);
    if (end->status) atomic_fetch_add(&s->failed, 1);
    atomic_store(&s->done, item + 1);
    ring(stream);
  }
  atomic_store(&s->ended, 1);
  return NULL;
}

/* ---- opening ---- */
static smelt_status refuse_stage(size_t i, const char *name, const char *why) {
  char text[RT_ERROR_BYTES];
  snprintf(text, sizeof text, "smelt_start_stream: stage %llu%s%.*s: %s", (unsigned long long)i, name ? " " : "", NAME_BYTES, name ? name : "", why);
  return rt_refuse(text);
}

/* Do these wires begin at something that is pushed, or at an output of a stage before `until`? */
static int lead(const smelt_stream_options *o, const smelt_wire *wires, size_t n, size_t until) {
  for (size_t i = 0; i < n; i++) {
    int32_t from = wires[i].stage;
    if (from < -1 || (from >= 0 && (size_t)from >= until) || wires[i].output < 0) return 0;
    if ((size_t)wires[i].output >= (from < 0 ? o->n_pushed : o->stages[from].n_outputs)) return 0;
  }
  return 1;
}

static smelt_status check_stage(const smelt_stream_options *o, size_t i) {
  const smelt_stage *s = &o->stages[i];
  if (!s->calls || !s->calls->run) return refuse_stage(i, s->name, "it has no function to run; smelt_as_stage makes a stage of a model");
  if (s->calls->struct_size < (int32_t)sizeof *s->calls || s->calls->struct_size > LARGEST_STRUCT)
    return refuse_stage(i, s->name, "calls->struct_size is no size of a struct; set it to sizeof(smelt_stage_calls)");
  if (s->n_inputs > MOST_WIRES || s->n_outputs > MOST_WIRES) return refuse_stage(i, s->name, "it has more than 4096 inputs or outputs");
  if (s->n_inputs && !s->inputs) return refuse_stage(i, s->name, "inputs is NULL, wanted a wire for each of its n_inputs");
  if (!lead(o, s->inputs, s->n_inputs, i))
    return refuse_stage(i, s->name, "a wire begins at no output of an earlier stage, nor (stage -1) at a tensor that is pushed");
  for (size_t k = 0; k < i; k++)
    if (s->owner && s->owner == o->stages[k].owner)
      return refuse_stage(i, s->name, "an earlier stage runs the same session, which does one run at a time; give it one of smelt_fork");
  return SMELT_OK;
}

static smelt_status check_options(const smelt_stream_options *o) {
  if (!o) return rt_refuse("smelt_start_stream: options is NULL, wanted the stages");
  if (o->struct_size < (int32_t)sizeof *o || o->struct_size > LARGEST_STRUCT)
    return rt_refuse("smelt_start_stream: options->struct_size is no size of a struct; set it to sizeof(smelt_stream_options)");
  if (o->stage_size != (int32_t)sizeof *o->stages)
    return rt_refuse("smelt_start_stream: options->stage_size is not sizeof(smelt_stage); compile program and model with one smelt.h");
  if (!o->n_stages || o->n_stages > MOST_STAGES || !o->stages) return rt_refuse("smelt_start_stream: wanted from 1 to 64 stages");
  if (o->n_pushed > MOST_WIRES || o->n_popped > MOST_WIRES) return rt_refuse("smelt_start_stream: n_pushed or n_popped is more than 4096");
  if (o->depth < 0 || o->depth == 1 || o->depth > MOST_DEPTH)
    return rt_refuse("smelt_start_stream: depth is not from 2 to 1024, nor 0 (the number of stages and two more)");
  for (size_t i = 0; i < o->n_stages; i++) {
    smelt_status status = check_stage(o, i);
    if (status) return status;
  }
  size_t pieces = o->n_pushed;
  for (size_t i = 0; i < o->n_stages; i++) pieces += o->stages[i].n_outputs;
  if (pieces * (o->depth ? (size_t)o->depth : o->n_stages + 2) > MOST_PIECES)
    return rt_refuse("smelt_start_stream: the tensors of an item, depth times, are more than 1048576; ask for less depth");
  if ((o->n_popped && !o->popped) || !lead(o, o->popped, o->n_popped, o->n_stages))
    return rt_refuse("smelt_start_stream: a wire of `popped` begins at no output of a stage, nor (stage -1) at a tensor that is pushed");
  return SMELT_OK;
}

/* The stream at `base` with all its tables; NULL: only how many bytes they are. */
static size_t lay_out(const smelt_stream_options *o, char *base) {
  size_t at = 0;
  smelt_stream none, *stream = rt_carve(base, &at, 1, sizeof none);
  if (!stream) stream = &none;
  stream->n_stages = o->n_stages, stream->n_pushed = o->n_pushed, stream->n_popped = o->n_popped;
  stream->depth = o->depth ? (uint32_t)o->depth : stream->n_stages + 2;
  stream->n_pieces = stream->n_pushed;
  stream->stages = rt_carve(base, &at, o->n_stages, sizeof(stage));
  stream->popped = rt_carve(base, &at, o->n_popped, sizeof(smelt_wire));
  if (base && o->n_popped) memcpy(stream->popped, o->popped, o->n_popped * sizeof *o->popped);
  for (size_t i = 0; i < o->n_stages; i++) {
    const smelt_stage *from = &o->stages[i];
    stage unused, *s = base ? &stream->stages[i] : &unused;
    s->inputs = rt_carve(base, &at, from->n_inputs, sizeof *s->inputs);
    s->taken = rt_carve(base, &at, from->n_inputs, sizeof *s->taken);
    s->given = rt_carve(base, &at, from->n_outputs, sizeof *s->given);
    s->endings = rt_carve(base, &at, stream->depth, sizeof *s->endings);
    s->first = stream->n_pieces;
    stream->n_pieces += from->n_outputs;
    if (!base) continue;
    s->stream = stream, s->calls = *from->calls, s->context = from->context, s->owner = from->owner;
    s->n_inputs = from->n_inputs, s->n_outputs = from->n_outputs;
    snprintf(s->name, sizeof s->name, from->name ? "%s" : "%s%u", from->name ? from->name : "", (unsigned)i);
    if (from->n_inputs) memcpy(s->inputs, from->inputs, from->n_inputs * sizeof *from->inputs);
  }
  stream->pieces = rt_carve(base, &at, (size_t)stream->depth * stream->n_pieces, sizeof(piece));
  return at;
}

/* Slots for what has a bound. */
static int reserve(stage *s) {
  for (uint32_t i = 0; s->calls.most && i < s->n_outputs; i++) {
    uint64_t most = s->calls.most(s->context, i), allocations = 0;
    for (uint32_t slot = 0; most && slot < s->stream->depth; slot++) {
      piece *p = piece_of(s->stream, slot, (smelt_wire){(int32_t)(s - s->stream->stages), (int32_t)i});
      if (!rt_block_fit(&p->block, most, &allocations)) return 0;
      atomic_fetch_add(&s->bytes, p->block.capacity);
    }
    atomic_fetch_add(&s->allocations, allocations);
  }
  return 1;
}

smelt_status smelt_start_stream(const smelt_stream_options *options, smelt_stream **out) {
  if (!out) return rt_refuse("smelt_start_stream: out is NULL, wanted where to put the stream");
  *out = NULL;
  smelt_status status = check_options(options);
  if (status) return status;
  char *memory = calloc(1, lay_out(options, NULL) + 64);
  smelt_stream *stream = memory ? (smelt_stream *)(((uintptr_t)memory + 63) & ~(uintptr_t)63) : NULL;
  int made = stream != NULL;
  if (made) {
    lay_out(options, (char *)stream);
    stream->memory = memory;
    stream->pid = sm_getpid();
  }
  for (uint32_t i = 0; made && i < stream->n_stages; i++) made = reserve(&stream->stages[i]);
  for (uint32_t i = 0; made && i < stream->n_stages; i++) {
    stage *s = &stream->stages[i];
    made = s->started = rt_thread(&s->thread, work, s);
  }
  if (made) {
    *out = stream;
    return SMELT_OK;
  }
  smelt_end_stream(stream);
  rt_thread_error("smelt_start_stream: the system has no memory for the slots, or no thread for a stage; ask for less depth, or close other sessions");
  return SMELT_DEVICE;
}

/* ---- the caller's calls ---- */
static int has_room(const smelt_stream *stream, const void *none) {
  (void)none;
  return atomic_load(&stream->pushed) - atomic_load(&stream->released) < stream->depth;
}

/* Have all stages ended with the next item, or is there none to come? */
static int has_result(const smelt_stream *stream, const void *none) {
  (void)none;
  if (atomic_load(&stream->finished) && stream->next >= atomic_load(&stream->pushed)) return 1;
  for (uint32_t i = 0; i < stream->n_stages; i++)
    if (atomic_load(&stream->stages[i].done) <= stream->next) return 0;
  return 1;
}

/* Take the stream's one place for such a call. */
static smelt_status enter(const smelt_stream *stream, _Atomic int32_t *place, const char *call) {
  char text[RT_ERROR_BYTES];
  const char *why = stream->pid != sm_getpid()      ? "the stream was opened before this process was forked; open one in the child"
                    : atomic_exchange(place, 1) ? "another thread is in the same call; one thread at a time pushes, and one pops"
                                                    : NULL;
  if (!why) return SMELT_OK;
  snprintf(text, sizeof text, "%s: %s", call, why);
  return rt_refuse(text);
}

static smelt_status again(const char *text) {
  rt_thread_error(text);
  return SMELT_AGAIN;
}

static smelt_status push(smelt_stream *stream, const DLTensor *tensors, size_t n, int64_t wait_ns) {
  char text[RT_ERROR_BYTES];
  uint64_t bytes = 0, item = atomic_load(&stream->pushed);
  if (n != stream->n_pushed || (n && !tensors)) {
    snprintf(text, sizeof text, "smelt_push: got %llu tensors, the stream takes %u", (unsigned long long)(tensors ? n : 0), (unsigned)stream->n_pushed);
    rt_thread_error(text);
    return SMELT_SHAPE;
  }
  if (atomic_load(&stream->finished)) return rt_refuse("smelt_push: after smelt_finish_stream nothing can be pushed; open another stream");
  for (size_t i = 0; i < n; i++) {
    const char *why = unfit(&tensors[i], &bytes);
    snprintf(text, sizeof text, "smelt_push: tensor %llu %s", (unsigned long long)i, why ? why : "");
    if (why) return rt_refuse(text);
  }
  if (!wait_until(stream, has_room, NULL, wait_ns)) return again("smelt_push: all slots are taken; pop a result, or wait longer");
  for (size_t i = 0; i < n; i++) {
    unfit(&tensors[i], &bytes);
    if (copy_in(piece_of(stream, item, (smelt_wire){-1, (int32_t)i}), &tensors[i], bytes, &stream->allocations)) continue;
    rt_thread_error("smelt_push: the system has no memory for a copy of the tensors; push smaller ones");
    return SMELT_DEVICE;
  }
  atomic_store(&stream->pushed, item + 1);
  ring(stream);
  return SMELT_OK;
}

smelt_status smelt_push(smelt_stream *stream, const DLTensor *tensors, size_t n, int64_t wait_ns) {
  if (!stream) return rt_refuse("smelt_push: the stream is NULL; open one first");
  smelt_status status = enter(stream, &stream->pushing, "smelt_push");
  if (status) return status;
  status = push(stream, tensors, n, wait_ns);
  atomic_store(&stream->pushing, 0);
  return status;
}

static smelt_status pop(smelt_stream *stream, DLTensor *tensors, size_t n, int64_t wait_ns) {
  if (n != stream->n_popped || (n && !tensors)) {
    char text[RT_ERROR_BYTES];
    snprintf(text, sizeof text, "smelt_pop: got room for %llu tensors, the stream gives %u", (unsigned long long)(tensors ? n : 0), (unsigned)stream->n_popped);
    rt_thread_error(text);
    return SMELT_SHAPE;
  }
  if (atomic_load(&stream->released) < stream->next) {
    atomic_store(&stream->released, stream->next);
    ring(stream);
  }
  if (!wait_until(stream, has_result, NULL, wait_ns)) return again("smelt_pop: the next result is not there yet; wait longer, or push more");
  if (stream->next >= atomic_load(&stream->pushed)) return SMELT_END;
  uint64_t item = stream->next++;
  for (uint32_t i = 0; i < stream->n_stages; i++) {
    const ending *end = ending_of(&stream->stages[i], item);
    if (!end->status || end->skipped) continue;
    rt_thread_error(end->text);
    return end->status;
  }
  for (size_t i = 0; i < n; i++) tensors[i] = piece_of(stream, item, stream->popped[i])->tensor;
  return SMELT_OK;
}

smelt_status smelt_pop(smelt_stream *stream, DLTensor *tensors, size_t n, int64_t wait_ns) {
  if (!stream) return rt_refuse("smelt_pop: the stream is NULL; open one first");
  smelt_status status = enter(stream, &stream->popping, "smelt_pop");
  if (status) return status;
  status = pop(stream, tensors, n, wait_ns);
  atomic_store(&stream->popping, 0);
  return status;
}

smelt_status smelt_finish_stream(smelt_stream *stream) {
  if (!stream) return rt_refuse("smelt_finish_stream: the stream is NULL; open one first");
  atomic_store(&stream->finished, 1);
  ring(stream);
  return SMELT_OK;
}

smelt_status smelt_ask_stage(const smelt_stream *stream, size_t i, smelt_stage_stats *out) {
  if (!stream || !out) return rt_refuse(stream ? "smelt_ask_stage: out is NULL, wanted where to put the numbers" : "smelt_ask_stage: the stream is NULL; open one first");
  if (i >= stream->n_stages) return rt_refuse("smelt_ask_stage: the stream has no stage of this number");
  const stage *s = &stream->stages[i];
  *out = (smelt_stage_stats){.items = atomic_load(&s->done), .failed = atomic_load(&s->failed), .busy_ns = atomic_load(&s->busy_ns),
                             .bytes = atomic_load(&s->bytes), .allocations = atomic_load(&s->allocations)};
  return SMELT_OK;
}

enum { NAP_NS = 200000 };

static void end_stages(smelt_stream *stream) {
  atomic_store(&stream->quit, 1);
  ring(stream);
  for (uint32_t i = 0; i < stream->n_stages; i++) {
    stage *s = &stream->stages[i];
    if (!s->started) continue;
    while (s->calls.cancel && !atomic_load(&s->ended)) { /* a run that began just after it was cancelled does not know of it */
      s->calls.cancel(s->context);
      sm_sleep(NAP_NS);
    }
    pthread_join(s->thread, NULL);
  }
}

void smelt_end_stream(smelt_stream *stream) {
  if (!stream) return;
  if (stream->pid == sm_getpid()) end_stages(stream); /* in a forked child there are no threads to end */
  for (size_t i = 0; i < (size_t)stream->depth * stream->n_pieces; i++) rt_block_free(&stream->pieces[i].block);
  free(stream->memory);
}

/* ---- a model's stage ---- */
static smelt_status run_model(void *context, const DLTensor *inputs, size_t n_inputs, DLTensor *outputs, size_t n_outputs) {
  return smelt_run(context, inputs, n_inputs, outputs, n_outputs);
}
static const char *error_of_model(void *context) { return smelt_error(context); }
static void cancel_model(void *context) { smelt_cancel(context); }
static uint64_t most_of_model(void *context, size_t output) { return rt_most_of_output(rt_running(context), (uint32_t)output); }

static int32_t exchange_with_model(void *context, size_t output, void **data, uint64_t *capacity) {
  smelt_rt *rt = rt_running(context);
  if (!rt_take(rt)) return 0;
  rt_block *own = &rt->outputs[output].own, given = {*data, *capacity};
  *data = own->data, *capacity = own->capacity;
  *own = given;
  rt_release(rt);
  return 1;
}

smelt_status smelt_as_stage(smelt_session *s, smelt_stage *out) {
  static const smelt_stage_calls calls = {sizeof calls, run_model, error_of_model, cancel_model, most_of_model, exchange_with_model};
  const smelt_rt *rt = (const smelt_rt *)s;
  if (!rt || !out) return rt_refuse(rt ? "smelt_as_stage: out is NULL, wanted where to put the stage" : "smelt_as_stage: the session is NULL; open one first");
  if (rt_is_foreign(rt)) return rt_refuse("smelt_as_stage: " RT_FOREIGN);
  const char *name = rt_named_entries(rt->model) > 1 ? rt->entry->name : rt->model->name;
  *out = (smelt_stage){.name = name, .calls = &calls, .context = s, .owner = rt->session, .n_inputs = rt_fed(rt->entry), .n_outputs = rt_given(rt->entry)};
  return SMELT_OK;
}
