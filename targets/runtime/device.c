/* device.c: addresses, memory and copies of a model with units besides the CPU, by the functions of their drivers.
 *
 * An address is (space << 48 | byte offset), with the sign where the host's view of it is meant (crossing.c). A space is one piece of
 * memory at one unit: the weights at unit 0, 1, ..; then the arenas, two for each state (its value, and what replaces it), and the inputs
 * and outputs of each entry, each at its home. Space 0 is none, so that 0 is no address. Memory at unit 0, the CPU, is the host's own. */
#include "device.h"

enum { MAX_SPACES = 1 << 15 };

/* ---- opening ---- */
static uint32_t home(const uint32_t *homes, uint32_t i) { return homes ? homes[i] : 1; }
/* Where the program's first addresses are: its first arena and the weights beside it. */
static uint32_t first_home(const smelt_rt *rt) { return rt->model->n_arenas ? home(rt->model->homes, rt->entry->arena) : 1; }

/* How many spaces the model has into *n; a status. */
static int32_t count_spaces(smelt_rt *rt, uint32_t *n) {
  const smelt_model_desc *m = rt->model;
  uint64_t movable = (uint64_t)m->n_arenas + 2 * (uint64_t)m->n_states, worst = 0;
  for (uint32_t i = 0; i < m->n_arenas; i++) worst = home(m->homes, i) > worst ? home(m->homes, i) : worst;
  for (uint32_t i = 0; i < m->n_states; i++) worst = rt_state_unit(rt, i) > worst ? rt_state_unit(rt, i) : worst;
  for (uint32_t e = 0; e < m->n_entries; e++) {
    uint32_t tensors = m->entries[e].n_inputs + m->entries[e].n_outputs;
    for (uint32_t i = 0; i < tensors; i++) worst = home(m->entries[e].homes, i) > worst ? home(m->entries[e].homes, i) : worst;
    movable += tensors;
  }
  if (worst > m->n_units)
    return rt_error(rt, SMELT_INTERNAL, "model '%s' keeps something at unit %u of %u; compile it again", m->name, (unsigned)worst, (unsigned)m->n_units);
  if (2 + (uint64_t)m->n_units + movable > MAX_SPACES)
    return rt_error(rt, SMELT_UNSUPPORTED, "model '%s' has %llu inputs, outputs, states and arenas, at most %d fit an address; compile it for the CPU alone",
                    m->name, (unsigned long long)movable, MAX_SPACES - 2 - (int)m->n_units);
  *n = (uint32_t)(2 + m->n_units + movable);
  return SMELT_OK;
}

static int32_t lay_out_spaces(smelt_rt *rt) {
  const smelt_model_desc *m = rt->model;
  uint32_t n = 0, at;
  int32_t status = count_spaces(rt, &n);
  if (status) return status;
  size_t most = 1;
  for (uint32_t i = 0; i < m->n_kernels; i++)
    if ((size_t)m->kernels[i].n_buffers > most) most = (size_t)m->kernels[i].n_buffers;
  size_t head = (sizeof(rt_device) + 15) / 16 * 16; /* spaces have 64-bit fields, also where pointers have 32 */
  rt_device *d = calloc(1, head + (size_t)n * sizeof *d->spaces + m->n_units * sizeof *d->units + most * sizeof *d->places);
  if (!d) return rt_error(rt, SMELT_DEVICE, "smelt_open: the system has no memory for a device session; close others");
  rt->session->device = d;
  d->spaces = (rt_space *)((char *)d + head);
  d->places = (smelt_place *)(d->spaces + n);
  d->units = (rt_unit *)(d->places + most);
  d->n_spaces = n;
  d->n_units = m->n_units;
  d->first_arena = 2 + m->n_units;
  d->first_state = d->first_arena + m->n_arenas;
  for (uint32_t i = 0; i < d->first_arena; i++) d->spaces[i].unit = i ? i - 1 : 0;
  for (uint32_t i = 0; i < m->n_arenas; i++) d->spaces[d->first_arena + i].unit = home(m->homes, i);
  for (uint32_t i = 0; i < 2 * m->n_states; i++) d->spaces[d->first_state + i].unit = rt_state_unit(rt, i / 2);
  at = d->first_state + 2 * m->n_states;
  for (uint32_t e = 0; e < m->n_entries; e++) {
    const smelt_entry_desc *entry = &m->entries[e];
    rt->session->views[e].first_space = at;
    for (uint32_t i = 0; i < entry->n_inputs + entry->n_outputs; i++) d->spaces[at++].unit = home(entry->homes, i);
  }
  d->spaces[1] = (rt_space){.foreign = 1, .memory = (void *)(uintptr_t)rt->session->weights, .capacity = m->weights_bytes};
  return SMELT_OK;
}

/* ---- where tensors are ---- */
static uint32_t state_number(const smelt_rt *rt, const rt_state *state) { return (uint32_t)(state - rt->session->states); }
static uint32_t value_space(const smelt_rt *rt, uint32_t state) { return rt->session->device->first_state + 2 * state; }
static int at_home(const smelt_rt *rt, const rt_state *state, uint32_t space) {
  return state && rt->session->device->spaces[space].unit == rt_state_unit(rt, state_number(rt, state));
}

int rt_device_reads(const smelt_rt *rt, uint32_t input) { return at_home(rt, rt_read_state(rt, input), rt->first_space + input); }
int rt_device_keeps(const smelt_rt *rt, uint32_t output) {
  return at_home(rt, rt_written_state(rt, output), rt->first_space + rt->entry->n_inputs + output);
}
static uint32_t input_space(const smelt_rt *rt, uint32_t i) {
  return rt_device_reads(rt, i) ? value_space(rt, state_number(rt, rt_read_state(rt, i))) : rt->first_space + i;
}
static uint32_t output_space(const smelt_rt *rt, uint32_t i) {
  for (uint32_t n = rt_fed(rt->entry); rt_in_place(rt, i) && n < rt->entry->n_inputs; n++)
    if (rt_read_state(rt, n) == rt_written_state(rt, i)) return input_space(rt, n);
  return rt_device_keeps(rt, i) ? value_space(rt, state_number(rt, rt_written_state(rt, i))) + 1 : rt->first_space + rt->entry->n_inputs + i;
}

smelt_addr rt_device_first_weights(smelt_rt *rt) { return rt_device_weights(rt, first_home(rt)); }

/* Nothing may be under way at it. What a device that hangs may still write to is left to it. */
static void release_space(smelt_rt *rt, rt_space *space) {
  if (!rt->session->hung && space->unit != RT_HOST) rt_beside_free(rt_unit_of(rt, space), &space->mirror);
  if (space->memory && !space->foreign) {
    if (space->unit == RT_HOST) {
      rt_block block = {space->memory, space->capacity};
      rt_block_free(&block);
    } else {
      rt_unit_release(rt_unit_of(rt, space), space->memory);
    }
  }
  *space = (rt_space){.unit = space->unit};
}

/* A forked child has no use of drivers, and calls in it may wait for ever. */
static int is_parent(const smelt_rt *rt) { return rt->session->pid == sm_getpid(); }

void rt_device_close(smelt_rt *rt) {
  rt_device *d = rt->session->device;
  int drivers = is_parent(rt);
  if (drivers) rt_device_hide(rt);
  for (uint32_t i = 0; drivers && i < d->n_units; i++)
    if (d->units[i].state) rt_unit_forget(&d->units[i]);
  for (uint32_t i = 0; i < d->n_spaces; i++)
    if (d->spaces[i].unit == RT_HOST || (drivers && d->units[d->spaces[i].unit - 1].state)) release_space(rt, &d->spaces[i]);
    else if (!rt->session->hung && !d->spaces[i].mirror.locked) rt_block_free(&d->spaces[i].mirror.block);
  for (uint32_t i = 0; drivers && i < d->n_units; i++) rt_unit_close(&d->units[i]);
  free(d);
  rt->session->device = NULL;
}

const char *rt_device_form(const smelt_rt *rt, int32_t kernel, const char **why) {
  int32_t unit = rt->model->kernels[kernel].unit;
  return unit && rt->session->device && is_parent(rt) ? rt_unit_form(&rt->session->device->units[unit - 1], kernel, why) : NULL;
}

int32_t rt_device_check(smelt_rt *rt) {
  if (is_parent(rt)) return SMELT_OK;
  uint32_t first = 1;
  while (!rt_has_unit(rt, first)) first++;
  const rt_unit *u = &rt->session->device->units[first - 1];
  return rt_error(rt, SMELT_DEVICE,
                  "%s device '%s': the session was opened before a fork, which drivers do not survive; open one in a process that is started anew",
                  u->driver->name, u->driver->device(u->state));
}

/* ---- memory ---- */
static smelt_addr no_space(smelt_rt *rt, const rt_space *space, const char *what, uint64_t bytes, int32_t code) {
  if (space->unit == RT_HOST) {
    rt_error(rt, SMELT_DEVICE, "%s: %llu bytes wanted, the system has no more memory; use smaller shapes or close other sessions", what,
             (unsigned long long)bytes);
    return 0;
  }
  const rt_unit *u = rt_unit_of(rt, space);
  rt_error(rt, SMELT_DEVICE, "%s device '%s': %s wants %llu bytes and gets none (code %d); use smaller shapes", u->driver->name,
           u->driver->device(u->state), what, (unsigned long long)bytes, (int)code);
  return 0;
}

enum { UNIT_OF_SIZE = 4096 };
/* What an address can tell apart, and a size_t, whole units. */
static int too_many(uint64_t bytes) { return bytes > ((uint64_t)1 << RT_OFFSET_BITS) - UNIT_OF_SIZE || bytes > SIZE_MAX / 2; }

/* *bytes, in whole units; it gets what was taken. */
static void *allocate(smelt_rt *rt, const rt_space *space, uint64_t *bytes, int32_t *code) {
  uint64_t rounded = *bytes ? (*bytes + UNIT_OF_SIZE - 1) / UNIT_OF_SIZE * UNIT_OF_SIZE : UNIT_OF_SIZE;
  *bytes = rounded;
  if (space->unit == RT_HOST) {
    rt_block block = {0};
    return rt_block_grow(rt, &block, rounded) ? block.data : NULL;
  }
  return rt_unit_allocate(rt_unit_of(rt, space), (size_t)rounded, NULL, code);
}

/* To `bytes` at least, and to `room` where there is as much. keep: what it holds stays in front. */
static smelt_addr grow(smelt_rt *rt, uint32_t i, uint64_t bytes, uint64_t room, int keep, const char *what) {
  rt_space *space = &rt->session->device->spaces[i], old = *space;
  if (old.memory && bytes <= old.capacity) return rt_address(i);
  if (too_many(bytes)) return no_space(rt, space, what, bytes, 0);
  if (rt_space_quiet(rt, space)) return 0;
  old = *space;
  uint64_t taken = room > bytes && !too_many(room) ? room : bytes;
  int32_t code = 0;
  keep = keep && old.memory;
  if (!keep) release_space(rt, space); /* before, not after: the peak is then the new size alone */
  void *memory = allocate(rt, space, &taken, &code);
  if (!memory && room > bytes) code = 0, taken = bytes, memory = allocate(rt, space, &taken, &code);
  if (!memory) return no_space(rt, space, what, bytes, code);
  if (keep && old.unit == RT_HOST) memcpy(memory, old.memory, (size_t)old.capacity);
  if (keep && old.unit != RT_HOST) {
    rt_unit *u = rt_unit_of(rt, space);
    code = rt_unit_copy(u, (smelt_place){memory, 0}, rt_start_of(&old), (size_t)old.capacity);
    if (code) rt_device_failed(rt, u, "copy", code);
  }
  if (keep) {
    space->mirror = (rt_beside){0}; /* which keeps what it holds, too */
    release_space(rt, space);
    space->mirror = old.mirror;
  }
  space->memory = memory;
  space->capacity = taken;
  return code ? 0 : rt_address(i);
}

smelt_addr rt_device_arena(smelt_rt *rt, uint32_t arena, uint64_t bytes, int keep) {
  uint32_t at = rt->session->device->first_arena + arena;
  uint64_t capacity = rt->session->device->spaces[at].capacity, most = rt_most_of_arena(rt, arena);
  return grow(rt, at, bytes, most || !keep ? most : capacity + capacity / 2, keep, "working memory");
}
/* For this run the space's memory is the caller's. */
static smelt_addr borrow(smelt_rt *rt, uint32_t i, const rt_tensor *t) {
  rt_space *space = &rt->session->device->spaces[i];
  if (!space->lent) space->own = space->memory, space->own_capacity = space->capacity;
  space->lent = 1, space->memory = t->memory, space->capacity = t->bytes;
  return rt_address(i);
}

smelt_addr rt_device_output(smelt_rt *rt, uint32_t output, uint64_t bytes) {
  const rt_tensor *lent = rt->outputs[output].lent;
  uint32_t at = output_space(rt, output);
  if (lent && lent->unit == rt->session->device->spaces[at].unit) return borrow(rt, at, lent);
  return grow(rt, at, bytes, rt_output_room(rt, output, bytes), 0, rt->entry->outputs[output].name);
}

/* ---- what has a bound ---- */
/* Memory for the most that a space may hold; 0: nobody knows. seen: the host looks at it. */
static int32_t reserve(smelt_rt *rt, uint32_t i, uint64_t most, int seen) {
  rt_space *space = &rt->session->device->spaces[i];
  int32_t code = 0, whole = 0;
  if (!most) return SMELT_OK;
  uint64_t taken = most;
  if (!space->memory && (space->memory = too_many(most) ? NULL : allocate(rt, space, &taken, &code))) space->capacity = taken;
  whole = space->memory && (!seen || space->unit == RT_HOST || rt_unit_of(rt, space)->shares || rt_beside_extend(rt_unit_of(rt, space), &space->mirror, space->capacity));
  if (whole) return SMELT_OK;
  const rt_unit *u = space->unit == RT_HOST ? NULL : rt_unit_of(rt, space);
  return rt_error(rt, SMELT_DEVICE,
                  "%s device '%s': model '%s' may need %llu bytes at once within the bounds of its dims, and gets none (code %d); "
                  "compile it with lower bounds",
                  u ? u->driver->name : "host", u ? u->driver->device(u->state) : "CPU", rt->model->name, (unsigned long long)most, (int)code);
}

/* So that no run takes memory of units. Of a state that every entry writes in place, the second space stays empty. */
static int32_t reserve_all(smelt_rt *rt) {
  int32_t status = SMELT_OK;
  for (uint32_t i = 0; !status && i < rt->model->n_arenas; i++)
    status = reserve(rt, rt->session->device->first_arena + i, rt_most_of_arena(rt, i), rt->model->seen && rt->model->seen[i]);
  for (uint32_t e = 0; e < rt_named_entries(rt->model); e++) {
    const smelt_rt *view = rt_running(&rt->session->views[e]);
    const uint32_t *seen = view->entry->seen, n = view->entry->n_inputs;
    for (uint32_t i = 0; !status && i < n; i++) status = reserve(rt, input_space(view, i), rt_most_of_input(view, i), seen && seen[i]);
    for (uint32_t i = 0; !status && i < view->entry->n_outputs; i++)
      status = reserve(rt, output_space(view, i), rt_most_of_output(view, i), seen && seen[n + i]);
  }
  return status;
}

int32_t rt_device_open(smelt_rt *rt) {
  int32_t status = lay_out_spaces(rt);
  for (uint32_t unit = 1; !status && unit <= rt->model->n_units; unit++)
    if (rt_has_unit(rt, unit)) status = rt_unit_open(&rt->session->device->units[unit - 1], rt, unit);
  for (uint32_t unit = 1; !status && unit <= rt->model->n_units; unit++)
    if (rt_has_unit(rt, unit) && !rt_device_weights(rt, unit)) status = SMELT_DEVICE;
  for (uint32_t unit = 1; !status && unit <= rt->model->n_units; unit++)
    if (rt_has_unit(rt, unit) && (rt_variant(rt)->units & ~((uint64_t)1 << (unit - 1))) && !rt_unit_relays(&rt->session->device->units[unit - 1]))
      status = rt_error(rt, SMELT_DEVICE, "smelt_open: the system has no memory for what goes from one device to another; close other sessions");
  return status ? status : reserve_all(rt);
}

/* ---- a caller's tensors at units ---- */
int32_t rt_device_new_tensor(smelt_rt *rt, rt_tensor *t) {
  const rt_space at = {.unit = t->unit};
  int32_t code = 0, status = rt_device_check(rt);
  if (status) return status;
  if (!too_many(t->bytes)) t->memory = allocate(rt, &at, &t->bytes, &code);
  return t->memory ? SMELT_OK : (no_space(rt, &at, "smelt_tensor", t->bytes, code), SMELT_DEVICE);
}

int32_t rt_device_export(smelt_rt *rt, const rt_tensor *t, DLTensor *out) {
  const rt_space at = {.unit = t->unit};
  int32_t status = rt_device_check(rt);
  if (!status) status = rt_device_wait(rt);
  if (status) return status;
  rt_unit *u = rt_unit_of(rt, &at);
  void *data = u->driver->known ? u->driver->known(u->state, t->memory, &out->device) : NULL;
  if (!data) return rt_error(rt, SMELT_UNSUPPORTED, "smelt_tensor_export: no other library knows memory of %s; copy it to the host", u->driver->name);
  out->data = data, out->byte_offset = 0;
  return SMELT_OK;
}

int32_t rt_device_import(smelt_rt *rt, rt_tensor *t, const DLTensor *theirs) {
  const rt_space at = {.unit = t->unit};
  const char *why = "it takes none of other libraries";
  int32_t status = rt_device_check(rt);
  if (status) return status;
  rt_unit *u = rt_unit_of(rt, &at);
  if (u->driver->adopt) t->memory = u->driver->adopt(u->state, theirs->device, (char *)theirs->data + theirs->byte_offset, (size_t)t->bytes, &why);
  if (t->memory) return SMELT_OK;
  return rt_error(rt, SMELT_INVALID, "smelt_tensor_import: memory of DLPack device type %d, device %d, is none that %s device '%s' can use: %s; copy it to the host",
                  (int)theirs->device.device_type, (int)theirs->device.device_id, u->driver->name, u->driver->device(u->state), why);
}

void rt_device_release_tensor(smelt_rt *rt, rt_tensor *t) {
  const rt_space at = {.unit = t->unit};
  if (is_parent(rt) && rt_unit_of(rt, &at)->state) rt_unit_release(rt_unit_of(rt, &at), t->memory);
}

int32_t rt_device_copy_tensor(smelt_rt *rt, const rt_tensor *to, void *to_host, const rt_tensor *from, const void *from_host, uint64_t bytes) {
  const rt_space a = {.unit = to ? to->unit : RT_HOST}, b = {.unit = from ? from->unit : RT_HOST};
  rt_unit *at = to ? rt_unit_of(rt, &a) : NULL, *u = from ? rt_unit_of(rt, &b) : NULL;
  int32_t code = 0, finished = 0, status = rt_device_check(rt);
  void *seen = NULL;
  if (status) return status;
  if (at && at == u) {
    if (to != from) code = rt_unit_copy(u, (smelt_place){to->memory, 0}, (smelt_place){from->memory, 0}, (size_t)bytes);
  } else if (!at) {
    code = rt_unit_download(u, (smelt_place){from->memory, 0}, to_host, (size_t)bytes, 0);
  } else {
    if (u) seen = rt_unit_map(u, from->memory, (size_t)from->bytes, 0, &code);
    if (u && !seen) return rt_device_failed(rt, u, "mapping memory for the host", code);
    code = rt_unit_upload(at, (smelt_place){to->memory, 0}, seen ? seen : from_host, (size_t)bytes, 1);
  }
  if (at) finished = rt_unit_finish(at);
  if (seen) rt_unit_unmap(u, from->memory, seen, (size_t)from->bytes, 0);
  if (u && u != at && !finished) finished = rt_unit_finish(u);
  code = code ? code : finished;
  return code ? rt_device_failed(rt, at ? at : u, "copy of a tensor", code) : SMELT_OK;
}

static void give_back(smelt_rt *rt) {
  for (uint32_t i = 0; i < rt->entry->n_inputs + rt->entry->n_outputs; i++) {
    rt_space *space = &rt->session->device->spaces[rt->first_space + i];
    if (space->lent) space->memory = space->own, space->capacity = space->own_capacity, space->lent = 0;
  }
}

/* ---- state: two spaces that change places ---- */
void rt_device_swap(smelt_rt *rt, uint32_t state) {
  rt_space *a = &rt->session->device->spaces[value_space(rt, state)], old = a[0];
  a[0] = a[1];
  a[1] = old;
}

uint64_t rt_device_state_capacity(const smelt_rt *rt, const rt_device *d) {
  uint64_t bytes = 0;
  for (uint32_t i = d->first_state; i < d->first_state + 2 * rt->model->n_states; i++) bytes += d->spaces[i].capacity + d->spaces[i].mirror.block.capacity;
  return bytes;
}

/* Is it the value of a state, which no run may be without? Other variants' units may hold what it was. */
static int holds_state(const smelt_rt *rt, uint32_t space) {
  uint32_t first = rt->session->device->first_state, state = (space - first) / 2;
  if (space < first || state >= rt->model->n_states || (space - first) % 2) return 0;
  return rt->session->states[state].begun && rt->session->states[state].resident == (int32_t)rt->session->variant + 1;
}

smelt_addr rt_device_weights(smelt_rt *rt, uint32_t unit) {
  rt_space *space = &rt->session->device->spaces[1 + unit];
  if (unit == RT_HOST || space->memory || !rt_has_unit(rt, unit)) return rt_address(1 + unit); /* programs ask for those of all variants */
  rt_unit *u = rt_unit_of(rt, space);
  uint64_t first = rt->model->units[unit - 1].weights_at, bytes = rt->model->units[unit - 1].weights_bytes;
  int32_t code = 0;
  if (!bytes) return rt_address(1 + unit);
  space->memory = rt_unit_allocate(u, (size_t)bytes, rt->session->weights + first, &code);
  if (!space->memory) {
    rt_error(rt, SMELT_DEVICE, "%s device '%s': %llu bytes of weights do not fit (code %d); use a device with more memory", u->driver->name,
             u->driver->device(u->state), (unsigned long long)bytes, (int)code);
    return 0;
  }
  space->capacity = bytes;
  return rt_address(1 + unit);
}

int rt_device_mirrors(const smelt_rt *rt, uint32_t arena) {
  const rt_device *d = rt->session->device;
  return d && d->spaces[d->first_arena + arena].mirror.block.data != NULL;
}

uint64_t rt_device_arena_capacity(const rt_device *d) {
  uint64_t bytes = 0;
  for (uint32_t i = d->first_arena; i < d->first_state; i++) bytes += d->spaces[i].capacity + d->spaces[i].mirror.block.capacity;
  return bytes;
}

void rt_device_trim(smelt_rt *rt) {
  for (uint32_t i = rt->session->device->first_arena; i < rt->session->device->n_spaces; i++)
    if (!holds_state(rt, i) && (rt->session->device->spaces[i].unit == RT_HOST || is_parent(rt))) release_space(rt, &rt->session->device->spaces[i]);
}

/* ---- into the model and out of it ---- */
/* Between a caller's tensor and an input or output (back: from it) that lies at another unit. */
static int32_t move_tensor(smelt_rt *rt, const rt_tensor *t, const rt_space *space, uint64_t bytes, int back) {
  const rt_tensor there = {.unit = space->unit, .memory = space->memory, .bytes = space->capacity};
  const rt_tensor *other = space->unit == RT_HOST ? NULL : &there;
  rt->session->crossings++, rt->session->crossed_bytes += bytes;
  return rt_device_copy_tensor(rt, back ? t : other, space->memory, back ? other : t, space->memory, bytes);
}

/* Zeros to the first bytes of a unit's memory: a few go there, which are doubled there. */
static int32_t clear(rt_unit *u, const rt_space *space, uint64_t bytes) {
  static const char zeros[4096];
  uint64_t n = bytes < sizeof zeros ? bytes : sizeof zeros;
  int32_t code = rt_unit_upload(u, rt_start_of(space), zeros, (size_t)n, 1);
  for (uint64_t done = n; done < bytes && !code; done += n) {
    n = done < bytes - done ? done : bytes - done;
    code = rt_unit_copy(u, (smelt_place){space->memory, done}, rt_start_of(space), (size_t)n);
  }
  return code;
}

/* Of a state that has no value yet, and starts where it lies. */
static int starts_here(const smelt_rt *rt, uint32_t input) {
  const rt_state *state = rt_read_state(rt, input);
  return state && !state->begun && rt_device_reads(rt, input);
}

int32_t rt_device_begin(smelt_rt *rt) {
  for (uint32_t i = 0; i < rt->entry->n_inputs; i++) {
    uint32_t at = input_space(rt, i);
    rt_space *space = &rt->session->device->spaces[at];
    if (holds_state(rt, at)) {
      rt->input_at[i] = rt_address(at);
      continue;
    }
    const rt_tensor *lent = i < rt_fed(rt->entry) ? rt->input_lent[i] : NULL;
    if (lent && lent->unit == space->unit) {
      rt->input_at[i] = borrow(rt, at, lent);
      continue;
    }
    if (!(rt->input_at[i] = grow(rt, at, rt->input_bytes[i], rt_most_of_input(rt, i), 0, rt->entry->inputs[i].name))) return SMELT_DEVICE;
    if (!rt->input_bytes[i]) continue;
    if (lent) {
      int32_t status = move_tensor(rt, lent, space, rt->input_bytes[i], 0);
      if (status) return status;
      continue;
    }
    int fresh = starts_here(rt, i);
    if (space->unit == RT_HOST) {
      if (fresh) memset(space->memory, 0, (size_t)rt->input_bytes[i]);
      else memcpy(space->memory, rt->input_host[i], (size_t)rt->input_bytes[i]);
      continue;
    }
    rt_unit *u = rt_unit_of(rt, space);
    int32_t code = fresh ? clear(u, space, rt->input_bytes[i]) : rt_unit_upload(u, rt_start_of(space), rt->input_host[i], (size_t)rt->input_bytes[i], 1);
    if (code) return rt_device_failed(rt, u, "upload of an input", code);
  }
  return SMELT_OK;
}

int32_t rt_device_finish(smelt_rt *rt) {
  rt_device *d = rt->session->device;
  rt_device_hide(rt);
  for (uint32_t i = 0; i < rt->entry->n_outputs; i++) {
    rt_output *out = &rt->outputs[i];
    rt_space *space = &d->spaces[output_space(rt, i)];
    if (!out->at || !out->bytes || rt_device_keeps(rt, i) || space->lent) continue;
    if (space->unit == RT_HOST && rt_space_quiet(rt, space)) return SMELT_DEVICE;
    if (out->lent) {
      int32_t status = move_tensor(rt, out->lent, space, out->bytes, 1);
      if (status) return status;
      continue;
    }
    if (space->unit == RT_HOST) {
      memcpy(out->host, space->memory, (size_t)out->bytes);
      continue;
    }
    rt_unit *u = rt_unit_of(rt, space);
    int32_t code = rt_unit_download(u, rt_start_of(space), out->host, (size_t)out->bytes, 0);
    if (code) return rt_device_failed(rt, u, "download of an output", code);
  }
  int32_t status = rt_device_wait(rt);
  if (!status) give_back(rt);
  return status;
}

int32_t rt_device_wait(smelt_rt *rt) {
  for (uint32_t i = 0; i < rt->session->device->n_units; i++) {
    rt_unit *u = &rt->session->device->units[i];
    int32_t code = u->state ? rt_unit_finish(u) : 0;
    if (code) return rt_device_failed(rt, u, "waiting for the end", code);
  }
  return SMELT_OK;
}

void rt_device_drain(smelt_rt *rt) {
  rt_device_hide(rt);
  for (uint32_t i = 0; i < rt->session->device->n_units; i++)
    if (rt->session->device->units[i].state) rt_unit_forget(&rt->session->device->units[i]);
  give_back(rt);
}

void rt_device_clock(smelt_rt *rt, int on) {
  rt_device *d = rt->session->device;
  for (uint32_t i = 0; d && is_parent(rt) && i < d->n_units; i++)
    if (d->units[i].state) rt_unit_clock(&d->units[i], on);
}

int64_t rt_device_elapsed(smelt_rt *rt, uint32_t unit) { return rt_unit_elapsed(&rt->session->device->units[unit - 1]); }

/* ---- work ---- */
int32_t rt_device_launch(smelt_rt *rt, int32_t id, const int64_t *args, int64_t groups) {
  rt_device *d = rt->session->device;
  const smelt_kernel_desc *desc = &rt->model->kernels[id];
  if (!d || desc->unit < 0 || (uint32_t)desc->unit > d->n_units)
    return rt_error(rt, SMELT_INTERNAL, "kernel '%s' is for unit %d, model '%s' has %u; compile it again", desc->name, (int)desc->unit,
                    rt->model->name, (unsigned)rt->model->n_units);
  for (int32_t i = 0; i < desc->n_buffers; i++) {
    rt_space *space = rt_space_of(rt, args[i]);
    if (args[i] && (space->unit != (uint32_t)desc->unit || args[i] < 0))
      return rt_error(rt, SMELT_INTERNAL, "kernel '%s' of unit %d gets memory of unit %u; compile the model again", desc->name, (int)desc->unit,
                      (unsigned)(args[i] < 0 ? RT_HOST : space->unit));
    int32_t status = rt_space_use(rt, space);
    if (status) return status;
    d->places[i] = (smelt_place){space->memory, rt_offset_of(args[i])};
  }
  size_t lanes = desc->lane_count > 0 ? (size_t)desc->lane_count : 1, all;
  if (__builtin_mul_overflow((uint64_t)groups, lanes, &all) || all > SIZE_MAX / 2)
    return rt_error(rt, SMELT_SHAPE, "kernel '%s' wants %lld groups of %d work-items, more than this device can count; use smaller shapes",
                    desc->name, (long long)groups, (int)lanes);
  rt_unit *u = &d->units[desc->unit - 1];
  int32_t code = rt_unit_launch(u, id, d->places, args + desc->n_buffers, groups);
  return code ? rt_device_failed(rt, u, desc->name, code) : SMELT_OK;
}
