/* check.c: the caller's tensors and the model's description in, bound inputs and outputs or an error text out. */
#include "rt.h"

int32_t rt_error(smelt_rt *rt, int32_t status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(rt->error, sizeof rt->error, format, args);
  va_end(args);
  return status;
}

/* ---- errors without a session: a small table by thread id, since thread-local storage needs help from libc on bionic ---- */
enum { SLOTS = 16 };
static struct {
  int thread;
  char text[RT_ERROR_BYTES];
} slots[SLOTS];
static _Atomic int slots_owner; /* process id of who is at the table; 0: nobody */
static unsigned next_slot;

/* An owner of another process was a thread that a fork left behind in the parent: it never comes to give the table back. */
static void lock_slots(void) {
  int self = sm_getpid();
  for (int owner = 0; !atomic_compare_exchange_weak_explicit(&slots_owner, &owner, self, memory_order_acquire, memory_order_relaxed);) {
    if (owner == self) owner = 0;
    sm_pause();
  }
}
static void unlock_slots(void) { atomic_store_explicit(&slots_owner, 0, memory_order_release); }

static int find_slot(int thread) {
  for (int i = 0; i < SLOTS; i++)
    if (slots[i].thread == thread) return i;
  return -1;
}

void rt_thread_error(const char *text) {
  int thread = sm_gettid();
  lock_slots();
  int i = find_slot(thread);
  if (i < 0) i = (int)(next_slot++ % SLOTS); /* the oldest text gives way */
  slots[i].thread = thread;
  snprintf(slots[i].text, sizeof slots[i].text, "%s", text);
  unlock_slots();
}

const char *rt_thread_error_text(void) {
  lock_slots();
  int i = find_slot(sm_gettid());
  unlock_slots();
  return i < 0 ? "" : slots[i].text;
}

smelt_status rt_refuse(const char *text) {
  rt_thread_error(text);
  return SMELT_INVALID;
}

/* ---- one call at a time ---- */
int rt_take(smelt_rt *rt) { return !atomic_exchange(&rt->session->busy, 1); }
void rt_release(smelt_rt *rt) { atomic_store(&rt->session->busy, 0); }

/* In a forked child the run may have been another thread's of the parent, which left its state half made: it stays refused. */
smelt_status rt_refuse_busy(const smelt_rt *rt, const char *call) {
  char text[RT_ERROR_BYTES];
  snprintf(text, sizeof text, "%s: the session is running in another thread%s", call,
           rt->session->pid == sm_getpid() ? "; open a session for each thread" : ", or was when this process was forked; open one in the child");
  return rt_refuse(text);
}

smelt_status rt_enter(smelt_rt *rt, const char *why, const char *call) {
  char text[RT_ERROR_BYTES];
  if (!rt) why = "the session is NULL; open one first";
  else if (rt_is_foreign(rt)) why = RT_FOREIGN;
  if (!why) return rt_take(rt) ? SMELT_OK : rt_refuse_busy(rt, call);
  snprintf(text, sizeof text, "%s: %s", call, why);
  return rt_refuse(text);
}

smelt_status rt_leave(smelt_rt *rt, int32_t status) {
  if (status) rt_thread_error(rt->error);
  rt_release(rt);
  return (smelt_status)status;
}

/* ---- generated code reports a failed run-time check ---- */
static size_t append(char *to, size_t at, const char *from, size_t n) {
  if (n > RT_ERROR_BYTES - 1 - at) n = RT_ERROR_BYTES - 1 - at;
  memcpy(to + at, from, n);
  return at + n;
}

/* The length of a "{slot 12}" at p where `what` is "{slot ", and its number; 0 where there is none. */
static size_t numbered(const char *p, const char *what, uint32_t *number) {
  const char *end = p + strlen(what), *first = end;
  if (strncmp(p, what, strlen(what))) return 0;
  for (*number = 0; *end >= '0' && *end <= '9' && *number < UINT32_MAX / 16; end++) *number = *number * 10 + (uint32_t)(*end - '0');
  return end > first && *end == '}' ? (size_t)(end + 1 - p) : 0;
}

static size_t append_number(char *to, size_t at, int64_t number) {
  char digits[24];
  return append(to, at, digits, (size_t)snprintf(digits, sizeof digits, "%lld", (long long)number));
}

/* A check's text with its numbers, and the texts of other checks (one level deep), in the place of their names. */
static size_t expand(smelt_rt *rt, size_t at, uint32_t check, int64_t got, int64_t want, int inner) {
  for (const char *p = rt->entry->checks[check].text; *p;) {
    uint32_t number = 0;
    size_t name;
    if ((name = numbered(p, "{slot ", &number)) && number < rt->entry->n_slots) {
      at = append_number(rt->error, at, rt->slots[number]);
    } else if (!inner && (name = numbered(p, "{check ", &number)) && number < rt->entry->n_checks) {
      at = expand(rt, at, number, got, want, 1);
    } else if (strncmp(p, "{got}", name = 5) == 0) {
      at = append_number(rt->error, at, got);
    } else if (strncmp(p, "{want}", name = 6) == 0) {
      at = append_number(rt->error, at, want);
    } else {
      at = append(rt->error, at, p, name = 1);
    }
    p += name;
  }
  return at;
}

int32_t smelt_rt_fail(smelt_rt *rt, int32_t check, int64_t got, int64_t want) {
  if (check < 0 || (uint32_t)check >= rt->entry->n_checks)
    return rt_error(rt, SMELT_INTERNAL, "model '%s' failed check %d, which it does not have; compile it again", rt->model->name,
                    (int)check);
  rt->error[expand(rt, 0, (uint32_t)check, got, want, 0)] = 0;
  int32_t status = rt->entry->checks[check].status;
  return status != SMELT_OK ? status : SMELT_INTERNAL;
}

/* ---- tensors ---- */
int rt_tensor_bytes(DLDataType type, int32_t rank, const int64_t *shape, uint64_t *bytes) {
  int empty = 0;
  int64_t n = 1, bits = (int64_t)type.bits * type.lanes;
  for (int32_t i = 0; i < rank; i++) {
    if (shape[i] < 0) return 0;
    empty |= shape[i] == 0;
    if (shape[i] && __builtin_mul_overflow(n, shape[i], &n)) return 0; /* an empty tensor too: its strides are products */
  }
  if (n > RT_MAX_EXTENT) return 0;
  uint64_t each = ((uint64_t)bits + 7) / 8;
  if (!empty && each && (uint64_t)n > (uint64_t)(SIZE_MAX / 2) / each) return 0; /* no object is larger */
  *bytes = empty ? 0 : bits % 8 ? (uint64_t)n / 8 * (uint64_t)bits + ((uint64_t)n % 8 * (uint64_t)bits + 7) / 8 : (uint64_t)n * each;
  return 1;
}

int rt_is_compact(const DLTensor *t) {
  if (!t->strides) return 1;
  int64_t expected = 1;
  for (int32_t i = 0; i < t->ndim; i++)
    if (t->shape[i] == 0) return 1;
  for (int32_t i = t->ndim - 1; i >= 0; i--) {
    if (t->shape[i] != 1 && t->strides[i] != expected) return 0;
    expected *= t->shape[i];
  }
  return 1;
}

static const char *type_class(uint8_t code) {
  static const char *const names[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  return code < sizeof names / sizeof *names ? names[code] : "type";
}

int32_t rt_check_tensor(smelt_rt *rt, const char *role, const smelt_tensor_desc *want, const DLTensor *t, uint64_t *bytes) {
  if (t->dtype.code != want->dtype.code || t->dtype.bits != want->dtype.bits || t->dtype.lanes != want->dtype.lanes)
    return rt_error(rt, SMELT_SHAPE, "%s '%s': your tensor is %s%d%s, the model wants %s%d; convert it first", role, want->name,
                    type_class(t->dtype.code), t->dtype.bits, t->dtype.lanes == 1 ? "" : " of several lanes",
                    type_class(want->dtype.code), want->dtype.bits);
  if (t->ndim != want->rank)
    return rt_error(rt, SMELT_SHAPE, "%s '%s': your tensor has %d dims, the model wants %d", role, want->name, (int)t->ndim,
                    (int)want->rank);
  if (t->ndim > 0 && !t->shape)
    return rt_error(rt, SMELT_INVALID, "%s '%s': shape is NULL, wanted %d dims", role, want->name, (int)want->rank);
  for (int32_t i = 0; i < t->ndim; i++)
    if (t->shape[i] < 0)
      return rt_error(rt, SMELT_SHAPE, "%s '%s' axis %d: got %lld, a size cannot be negative", role, want->name, (int)i,
                      (long long)t->shape[i]);
    else if (t->shape[i] > RT_MAX_EXTENT)
      return rt_error(rt, SMELT_SHAPE, "%s '%s' axis %d: got %lld, the longest axis of this device is %lld", role, want->name, (int)i,
                      (long long)t->shape[i], (long long)RT_MAX_EXTENT);
  if (!rt_tensor_bytes(t->dtype, t->ndim, t->shape, bytes))
    return rt_error(rt, SMELT_SHAPE, "%s '%s': its dims multiply to more bytes than this device can address", role, want->name);
  if (t->device.device_type == SMELT_ON_UNIT) {
    const rt_tensor *own = rt_find_tensor(rt, t);
    if (!own || t->byte_offset)
      return rt_error(rt, SMELT_INVALID, "%s '%s': on unit %d, but %s; smelt_tensor makes such tensors", role, want->name, (int)t->device.device_id,
                      own ? "with a byte_offset" : "its data is no handle of this session there");
    if (own->bytes < *bytes)
      return rt_error(rt, SMELT_INVALID, "%s '%s': %llu bytes, its memory on unit %d has %llu", role, want->name, (unsigned long long)*bytes,
                      (int)t->device.device_id, (unsigned long long)own->bytes);
  } else if (t->device.device_type != 1)
    return rt_error(rt, SMELT_INVALID, "%s '%s': got DLPack device type %d, wanted 1 (host memory) or a tensor of smelt_tensor; copy it to the host first", role,
                    want->name, (int)t->device.device_type);
  if (!rt_is_compact(t))
    return rt_error(rt, SMELT_INVALID, "%s '%s': its strides are not those of a compact row-major tensor; copy it to a contiguous one",
                    role, want->name);
  if (!t->data && *bytes)
    return rt_error(rt, SMELT_INVALID, "%s '%s': data is NULL, wanted %llu bytes", role, want->name, (unsigned long long)*bytes);
  if (*bytes && (t->byte_offset > UINTPTR_MAX - (uintptr_t)t->data || *bytes > UINTPTR_MAX - (uintptr_t)t->data - t->byte_offset))
    return rt_error(rt, SMELT_INVALID, "%s '%s': its byte_offset of %llu leaves the address space", role, want->name,
                    (unsigned long long)t->byte_offset);
  return SMELT_OK;
}

static int32_t check_count(smelt_rt *rt, const char *role, size_t got, uint32_t want, const void *tensors) {
  if (got != want)
    return rt_error(rt, SMELT_SHAPE, "got %llu %ss, model '%s' has %u; pass them all, in the model's order", (unsigned long long)got,
                    role, rt->model->name, (unsigned)want);
  if (want && !tensors) return rt_error(rt, SMELT_INVALID, "the array of %ss is NULL, wanted %u tensors", role, (unsigned)want);
  return SMELT_OK;
}

static rt_tensor *on_unit(const smelt_rt *rt, const DLTensor *t) { return t->device.device_type == SMELT_ON_UNIT ? rt_find_tensor(rt, t) : NULL; }

int32_t rt_bind_inputs(smelt_rt *rt, const DLTensor *inputs, size_t n) {
  int32_t status = check_count(rt, "input", n, rt_fed(rt->entry), inputs);
  if (status) return status;
  int64_t *dims = rt->shapes;
  for (uint32_t i = 0; i < rt_fed(rt->entry); i++) {
    const DLTensor *t = &inputs[i];
    status = rt_check_tensor(rt, "input", &rt->entry->inputs[i], t, &rt->input_bytes[i]);
    if (status) return status;
    if (t->ndim) memcpy(dims, t->shape, (size_t)t->ndim * sizeof *dims);
    dims += t->ndim;
    rt->input_lent[i] = on_unit(rt, t);
    rt->input_host[i] = t->data && !rt->input_lent[i] ? (const char *)t->data + t->byte_offset : NULL;
  }
  rt_state_bind(rt);
  return SMELT_OK;
}

/* ---- what a run writes must be nothing that it reads, and nothing that it writes elsewhere ---- */
typedef struct {
  const char *role, *name;
  uintptr_t at;
  uint64_t bytes;
} range;

static int32_t check_apart(smelt_rt *rt, const range *written, const range *other) {
  uintptr_t low = written->at < other->at ? written->at : other->at;
  uint64_t first = low == written->at ? written->bytes : other->bytes, apart = (written->at - low) + (other->at - low);
  if (!written->bytes || !other->bytes || apart >= first) return SMELT_OK;
  return rt_error(rt, SMELT_INVALID, "output '%s' and %s '%s' share memory, and a run writes the one before it is done with the other; give the output memory of its own",
                  written->name, other->role, other->name);
}

/* Where output i's bytes come to lie in this run; the caller's memory first, then the session's. How many of the two. */
static int written_ranges(const smelt_rt *rt, uint32_t i, range to[2]) {
  const rt_output *out = &rt->outputs[i];
  const smelt_tensor_desc *desc = &rt->entry->outputs[i];
  int n = 0;
  if (out->lent) to[n++] = (range){"output", desc->name, (uintptr_t)out->lent, 1};
  else if (out->caller) to[n++] = (range){"output", desc->name, (uintptr_t)out->caller->data + (uintptr_t)out->caller->byte_offset, out->bytes};
  if (!rt_output_direct(rt, i)) to[n++] = (range){"output", desc->name, (uintptr_t)out->block->data, out->block->capacity};
  return n;
}

/* A tensor on a unit stands for itself: by its handle, and one byte. */
static uintptr_t input_at(const smelt_rt *rt, uint32_t i) { return rt->input_lent[i] ? (uintptr_t)rt->input_lent[i] : (uintptr_t)rt->input_host[i]; }

/* Is range k of written_ranges the caller's? */
static int out_of_caller(const smelt_rt *rt, uint32_t output, int k) { return rt->outputs[output].caller && !k; }

static int32_t check_overlaps(smelt_rt *rt) {
  const smelt_entry_desc *m = rt->entry;
  const range weights = {"the", "weights", (uintptr_t)rt->session->weights, rt->session->weights ? rt->model->weights_bytes : 0};
  range a[2], b[2];
  int32_t status = SMELT_OK;
  for (uint32_t i = 0; i < m->n_outputs; i++)
    for (int ka = 0, na = written_ranges(rt, i, a); ka < na; ka++) {
      status = ka ? check_apart(rt, &a[0], &a[1]) : check_apart(rt, &a[0], &weights);
      for (uint32_t j = 0; !status && j < m->n_inputs; j++)
        if (!rt_in_place(rt, i) || rt_read_state(rt, j) != rt_written_state(rt, i))
          status = check_apart(rt, &a[ka], &(range){"input", m->inputs[j].name, input_at(rt, j), rt->input_lent[j] ? 1 : rt->input_bytes[j]});
      for (uint32_t j = 0; !status && out_of_caller(rt, i, ka) && j < rt->model->n_states; j++) { /* of other entries, too */
        const rt_block *value = &rt->session->states[j].block;
        status = check_apart(rt, &a[ka], &(range){"state", rt->model->states[j].name, (uintptr_t)value->data, value->capacity});
      }
      for (uint32_t j = 0; !status && j < i; j++)
        for (int kb = 0, nb = written_ranges(rt, j, b); !status && kb < nb; kb++) status = check_apart(rt, &a[ka], &b[kb]);
      if (status) return status;
    }
  return SMELT_OK;
}

int32_t rt_bind_outputs(smelt_rt *rt, const DLTensor *outputs, size_t n) {
  int32_t status = check_count(rt, "output", n, rt_given(rt->entry), outputs);
  for (uint32_t i = 0; !status && i < rt->entry->n_outputs; i++) {
    rt_output *out = &rt->outputs[i];
    out->caller = i < rt_given(rt->entry) && outputs[i].data ? &outputs[i] : NULL;
    out->lent = out->caller ? on_unit(rt, out->caller) : NULL;
    out->at = 0;
    if (out->caller) status = rt_check_tensor(rt, "output", &rt->entry->outputs[i], out->caller, &out->bytes);
  }
  return status ? status : check_overlaps(rt);
}
