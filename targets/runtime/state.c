/* state.c: the states of a session: inputs that outputs of a run replace, without a copy; read, set, reset and copied by the API.
 *
 * The states are the session's. An entry's last n_reads inputs read some of them, and its last n_writes outputs replace some (rt_read_state,
 * rt_written_state). A run reads the one block of a state and writes the other; when it has succeeded, and not before, the two change
 * places. Of a state with room, a run may write rows behind the value in the same block; then it has a longer shape when the run has
 * succeeded. */
#include "rt.h"

enum { UNKNOWN = -1 }; /* an extent of a state that has no value yet, until the plan tells */

static const smelt_state_desc *desc_of(const smelt_rt *rt, uint32_t k) { return &rt->model->states[k]; }
static int64_t *shape_of(const smelt_rt *rt, uint32_t input) { return rt->shapes + (rt->shape_of[input] - rt->shapes); }
static size_t shape_bytes(const smelt_rt *rt, uint32_t k) { return (size_t)desc_of(rt, k)->rank * sizeof(int64_t); }

/* ---- how a value lies: `lead` pieces, of so many bytes each, `step` bytes apart ---- */
typedef struct {
  uint64_t lead, piece, step;
} spread;

int rt_state_bytes(const smelt_rt *rt, uint32_t k, const int64_t *shape, uint64_t *bytes) {
  const smelt_state_desc *desc = desc_of(rt, k);
  int64_t held[RT_MAX_RANK];
  for (int32_t axis = 0; axis < desc->rank; axis++) held[axis] = desc->room && axis == desc->axis ? desc->room : shape[axis];
  return rt_tensor_bytes(desc->dtype, desc->rank, held, bytes);
}

/* Of a value whose bytes are known to be countable. */
static spread spread_of(const smelt_state_desc *desc, const int64_t *shape) {
  uint64_t row = desc->dtype.bits / 8u;
  spread s = {.lead = 1};
  for (int32_t axis = 0; axis < desc->rank; axis++) {
    if (desc->room && axis < desc->axis) s.lead *= (uint64_t)shape[axis];
    if (!desc->room || axis > desc->axis) row *= (uint64_t)shape[axis];
  }
  s.piece = desc->room ? row * (uint64_t)shape[desc->axis] : row;
  s.step = desc->room ? row * (uint64_t)desc->room : row;
  return s;
}

/* ---- a run ---- */
void rt_state_bind(smelt_rt *rt) {
  for (uint32_t i = rt_fed(rt->entry); i < rt->entry->n_inputs; i++) {
    const rt_state *state = rt_read_state(rt, i);
    int32_t rank = rt->entry->inputs[i].rank;
    for (int32_t axis = 0; axis < rank; axis++) shape_of(rt, i)[axis] = state->begun ? state->shape[axis] : UNKNOWN;
    rt->input_host[i] = state->block.data;
    rt->input_bytes[i] = state->block.capacity; /* a caller's output must lie apart from all of it */
  }
}

int32_t smelt_rt_start(smelt_rt *rt, int32_t input, int32_t axis, int64_t extent) {
  uint32_t i = (uint32_t)input;
  if (input < 0 || i < rt_fed(rt->entry) || i >= rt->entry->n_inputs || axis < 0 || axis >= rt->entry->inputs[i].rank)
    return rt_error(rt, SMELT_INTERNAL, "model '%s' has no state %d with an axis %d; compile it again", rt->model->name, (int)input, (int)axis);
  if (rt_read_state(rt, i)->begun) return SMELT_OK;
  if (extent < 0 || extent > RT_MAX_EXTENT)
    return rt_error(rt, SMELT_SHAPE, "state '%s' axis %d: it would start with an extent of %lld; use smaller shapes", rt->entry->inputs[i].name,
                    (int)axis, (long long)extent);
  shape_of(rt, i)[axis] = extent;
  return SMELT_OK;
}

static int32_t no_memory(smelt_rt *rt, uint32_t k, uint64_t bytes) {
  return rt_error(rt, SMELT_DEVICE, "state '%s': %llu bytes wanted, the system has no more memory; use smaller shapes or close other sessions",
                  desc_of(rt, k)->name, (unsigned long long)bytes);
}

/* The value in host memory, also of a state that lies on a device. */
static int32_t to_host(smelt_rt *rt, uint32_t k) {
  rt_state *state = &rt->session->states[k];
  if (!state->begun || !state->resident) return SMELT_OK;
  int32_t status = rt_device_check(rt);
  if (status) return status;
  if (!rt_block_grow(rt, &state->block, state->bytes)) return no_memory(rt, k, state->bytes);
  return state->bytes ? rt_device_read_state(rt, k, state->block.data, state->bytes) : SMELT_OK;
}

int32_t rt_state_begin(smelt_rt *rt) {
  for (uint32_t i = rt_fed(rt->entry); i < rt->entry->n_inputs; i++) {
    rt_state *state = rt_read_state(rt, i);
    uint32_t k = (uint32_t)(state - rt->session->states);
    const smelt_state_desc *desc = desc_of(rt, k);
    if (!state->begun) {
      if (!rt_state_bytes(rt, k, shape_of(rt, i), &state->bytes))
        return rt_error(rt, SMELT_SHAPE, "state '%s': its first dims multiply to more bytes than this device can address; use smaller shapes", desc->name);
      rt->input_bytes[i] = state->bytes, state->resident = 0;
      if (rt->session->device && rt_device_reads(rt, i)) continue; /* it starts there */
      if (!rt_block_grow_roomy(rt, &state->block, state->bytes, rt_state_room(rt, k, state->bytes))) return no_memory(rt, k, state->bytes);
      const spread s = spread_of(desc, shape_of(rt, i));
      for (uint64_t n = 0; s.piece && n < s.lead; n++) memset((char *)state->block.data + n * s.step, 0, (size_t)s.piece);
    } else if (state->resident && !rt_device_reads(rt, i)) { /* another entry left it at another unit */
      int32_t status = to_host(rt, k);
      if (status) return status;
    }
    rt->input_host[i] = state->block.data;
    rt->input_bytes[i] = state->bytes;
  }
  return SMELT_OK;
}

void rt_state_keep(smelt_rt *rt) {
  for (uint32_t i = rt_given(rt->entry); i < rt->entry->n_outputs; i++) {
    rt_state *state = rt_written_state(rt, i);
    rt_output *out = &rt->outputs[i];
    uint32_t k = (uint32_t)(state - rt->session->states);
    state->resident = rt->session->device && rt_device_keeps(rt, i) ? (int32_t)rt->session->variant + 1 : 0;
    if (state->resident) {
      if (!rt_in_place(rt, i)) rt_device_swap(rt, k);
      rt_block_free(&state->block); /* zeros, or a copy that a caller has seen */
    } else if (!rt_in_place(rt, i)) {
      rt_block written = state->spare;
      state->spare = state->block;
      state->block = written;
    }
    state->bytes = out->bytes;
    state->begun = 1;
    if (desc_of(rt, k)->rank) memcpy(state->shape, out->shape, shape_bytes(rt, k));
  }
}

/* ---- what callers ask ---- */
static int32_t set(smelt_rt *rt, uint32_t k, const DLTensor *value) {
  rt_state *state = &rt->session->states[k];
  const smelt_tensor_desc desc = {desc_of(rt, k)->name, desc_of(rt, k)->dtype, desc_of(rt, k)->rank};
  uint64_t bytes = 0;
  if (!value || (!value->data && !value->shape && value->ndim == desc.rank)) { /* as `get` tells of a start */
    state->begun = 0;
    return SMELT_OK;
  }
  if (value->device.device_type == SMELT_ON_UNIT)
    return rt_error(rt, SMELT_INVALID, "state '%s': a state is set from host memory; copy the tensor to the host first", desc.name);
  int32_t status = rt_check_tensor(rt, "state", &desc, value, &bytes);
  if (status) return status;
  if (desc_of(rt, k)->room && value->shape[desc_of(rt, k)->axis] > desc_of(rt, k)->room)
    return rt_error(rt, SMELT_SHAPE, "state '%s' axis %d: expected at most %lld, got %lld; compile with another --dim range to allow it", desc.name,
                    (int)desc_of(rt, k)->axis, (long long)desc_of(rt, k)->room, (long long)value->shape[desc_of(rt, k)->axis]);
  if (!rt_state_bytes(rt, k, value->shape, &bytes)) return no_memory(rt, k, bytes);
  rt_block block = {0}; /* a new one: the value may lie in the old one, which stays when there is no memory */
  if (!rt_block_grow_roomy(rt, &block, bytes, rt_state_room(rt, k, bytes))) return no_memory(rt, k, bytes);
  const spread s = spread_of(desc_of(rt, k), value->shape);
  const char *from = (const char *)value->data + value->byte_offset;
  for (uint64_t i = 0; s.piece && i < s.lead; i++) memcpy((char *)block.data + i * s.step, from + i * s.piece, (size_t)s.piece);
  if (value->ndim) memmove(state->shape, value->shape, shape_bytes(rt, k));
  rt_block_free(&state->block);
  state->block = block, state->bytes = bytes, state->begun = 1, state->resident = 0;
  return SMELT_OK;
}

static int32_t get(smelt_rt *rt, uint32_t k, DLTensor *out) {
  const smelt_state_desc *desc = desc_of(rt, k);
  int32_t status = to_host(rt, k);
  if (status) return status;
  *out = (DLTensor){.device = {1, 0}, .ndim = desc->rank, .dtype = desc->dtype};
  rt_state *state = &rt->session->states[k];
  if (!state->begun) return SMELT_OK;
  out->data = state->block.data, out->shape = state->shape;
  if (!desc->room) return SMELT_OK;
  const spread s = spread_of(desc, state->shape);
  if (!rt_block_grow(rt, &state->spare, s.lead * s.piece)) return no_memory(rt, k, s.lead * s.piece);
  for (uint64_t i = 0; s.piece && i < s.lead; i++)
    memcpy((char *)state->spare.data + i * s.piece, (char *)state->block.data + i * s.step, (size_t)s.piece);
  out->data = state->spare.data;
  return SMELT_OK;
}

/* Take the session for a call about state i; what refuses has told the thread why. */
static smelt_status enter(smelt_rt *rt, size_t i, const char *call) {
  int known = !rt || rt_is_foreign(rt) || i < rt->model->n_states;
  return rt_enter(rt, known ? NULL : "the model has no state of this number; see smelt_state_count", call);
}

smelt_status smelt_state_get(smelt_session *s, size_t i, DLTensor *out) {
  smelt_rt *rt = (smelt_rt *)s;
  if (!out) return rt_refuse("smelt_state_get: out is NULL, wanted where to put the tensor");
  smelt_status status = enter(rt, i, "smelt_state_get");
  return status ? status : rt_leave(rt, get(rt, (uint32_t)i, out));
}

smelt_status smelt_state_set(smelt_session *s, size_t i, const DLTensor *value) {
  smelt_rt *rt = (smelt_rt *)s;
  smelt_status status = enter(rt, i, "smelt_state_set");
  return status ? status : rt_leave(rt, set(rt, (uint32_t)i, value));
}

smelt_status smelt_reset(smelt_session *s) {
  smelt_rt *rt = (smelt_rt *)s;
  if (!rt) return rt_refuse("smelt_reset: the session is NULL; open one first");
  if (rt_is_foreign(rt)) return rt_refuse("smelt_reset: " RT_FOREIGN);
  if (!rt_take(rt)) return rt_refuse_busy(rt, "smelt_reset");
  for (uint32_t k = 0; k < rt->model->n_states; k++) rt->session->states[k].begun = 0;
  rt_release(rt);
  return SMELT_OK;
}

int32_t rt_state_copy(smelt_rt *to, smelt_rt *from) {
  DLTensor value;
  for (uint32_t k = 0; k < from->model->n_states; k++) {
    int32_t status = get(from, k, &value);
    if (status) return rt_error(to, status, "%s", from->error);
    status = set(to, k, value.data ? &value : NULL);
    if (from->session->states[k].resident) rt_block_free(&from->session->states[k].block); /* the value is on the device */
    if (status) return status;
  }
  return SMELT_OK;
}

int32_t rt_state_home(smelt_rt *rt) {
  int32_t status = SMELT_OK;
  for (uint32_t k = 0; k < rt->model->n_states && !status; k++) status = to_host(rt, k);
  for (uint32_t k = 0; k < rt->model->n_states && !status; k++) rt->session->states[k].resident = 0;
  return status;
}

void rt_state_trim(smelt_rt *rt) {
  for (uint32_t k = 0; k < rt->model->n_states; k++) {
    rt_state *state = &rt->session->states[k];
    if (!state->begun || state->resident) rt_block_free(&state->block); /* nothing, or a copy that a caller has seen */
  }
}

void rt_state_free(smelt_rt *rt) {
  for (uint32_t k = 0; k < rt->model->n_states; k++) {
    rt_block_free(&rt->session->states[k].block);
    rt_block_free(&rt->session->states[k].spare);
  }
}
