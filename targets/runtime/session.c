/* session.c: a bundle directory in, a session that runs the model linked beside it out: the public functions of smelt.h. */
#include "rt.h"

/* ---- one block of memory holds the session and all its tables ---- */
/* The tables of an entry. With base NULL nothing is set but the numbers. */
static void lay_out_entry(smelt_rt *rt, const smelt_entry_desc *e, char *base, size_t *at) {
  uint32_t n_shapes = 0;
  for (uint32_t i = 0; i < e->n_inputs; i++) n_shapes += (uint32_t)e->inputs[i].rank;
  rt->n_shapes = n_shapes;
  rt->slots = rt_carve(base, at, e->n_slots ? e->n_slots : 1, sizeof *rt->slots);
  rt->shapes = rt_carve(base, at, n_shapes, sizeof *rt->shapes);
  rt->planned_shapes = rt_carve(base, at, n_shapes, sizeof *rt->planned_shapes);
  rt->shape_of = rt_carve(base, at, e->n_inputs, sizeof *rt->shape_of);
  rt->input_at = rt_carve(base, at, e->n_inputs, sizeof *rt->input_at);
  rt->input_bytes = rt_carve(base, at, e->n_inputs, sizeof *rt->input_bytes);
  rt->input_host = rt_carve(base, at, e->n_inputs, sizeof *rt->input_host);
  rt->input_lent = rt_carve(base, at, e->n_inputs, sizeof *rt->input_lent);
  rt->input_staging = rt_carve(base, at, e->n_inputs, sizeof *rt->input_staging);
  rt->outputs = rt_carve(base, at, e->n_outputs, sizeof *rt->outputs);
  for (uint32_t i = 0; i < e->n_outputs; i++) {
    int64_t *shape = rt_carve(base, at, (size_t)e->outputs[i].rank, sizeof *shape);
    if (base) rt->outputs[i].shape = shape;
  }
  const int64_t *shape = rt->shapes;
  for (uint32_t i = 0; base && i < e->n_inputs; shape += e->inputs[i++].rank) rt->shape_of[i] = shape;
}

/* The session at `base` and all its tables; NULL: only how many bytes they are. */
static size_t lay_out(const smelt_model_desc *m, char *base) {
  rt_session sizes, *all = base ? (rt_session *)base : &sizes;
  size_t at = (sizeof *all + 63) / 64 * 64, n_args = 8;
  for (uint32_t i = 0; i < m->n_kernels; i++) {
    size_t n = (size_t)m->kernels[i].n_buffers + (size_t)m->kernels[i].n_dims;
    if (n > n_args) n_args = n;
  }
  all->views = rt_carve(base, &at, m->n_entries, sizeof *all->views);
  all->arenas = rt_carve(base, &at, m->n_arenas, sizeof *all->arenas);
  all->arena_bytes = rt_carve(base, &at, m->n_arenas, sizeof *all->arena_bytes);
  all->states = rt_carve(base, &at, m->n_states, sizeof *all->states);
  all->ways = rt_carve(base, &at, m->n_variants, sizeof *all->ways);
  all->kernel_ns = rt_carve(base, &at, m->n_kernels, sizeof *all->kernel_ns);
  all->kernel_launches = rt_carve(base, &at, m->n_kernels, sizeof *all->kernel_launches);
  all->kernel_device_ns = rt_carve(base, &at, m->n_kernels, sizeof *all->kernel_device_ns);
  all->kernel_device_launches = rt_carve(base, &at, m->n_kernels, sizeof *all->kernel_device_launches);
  all->library_fn = rt_carve(base, &at, m->n_libraries, sizeof *all->library_fn);
  all->mapped_args = rt_carve(base, &at, n_args, sizeof *all->mapped_args);
  for (uint32_t i = 0; i < m->n_states; i++) {
    int64_t *shape = rt_carve(base, &at, (size_t)m->states[i].rank, sizeof *shape);
    if (base) all->states[i].shape = shape;
  }
  for (uint32_t i = 0; i < m->n_entries; i++) {
    smelt_rt none_yet, *rt = base ? &all->views[i] : &none_yet;
    lay_out_entry(rt, &m->entries[i], base, &at);
    if (!base) continue;
    rt->model = m, rt->entry = &m->entries[i], rt->session = all;
    for (uint32_t k = 0; k < rt->entry->n_outputs; k++) {
      rt_state *state = rt_written_state(rt, k);
      rt->outputs[k].block = !state ? &rt->outputs[k].own : rt_in_place(rt, k) ? &state->block : &state->spare;
    }
  }
  return at;
}

/* The first entry of a new session. */
static smelt_rt *create(const smelt_model_desc *model, int32_t threads) {
  size_t bytes = lay_out(model, NULL);
  char *memory = calloc(1, bytes + 64); /* + 64: the pool's words want a cache line each */
  if (!memory) return NULL;
  rt_session *all = (rt_session *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
  lay_out(model, (char *)all);
  all->memory = memory;
  all->weights_fd = -1;
  all->pid = sm_getpid();
  rt_pool_init(&all->pool, threads, model->keep_subnormals);
  return all->views;
}

static smelt_status no_session(const char *call) {
  char text[RT_ERROR_BYTES];
  snprintf(text, sizeof text, "%s: the system has no memory for a session; close others", call);
  rt_thread_error(text);
  return SMELT_DEVICE;
}

/* A session whose making ended with a status: to the caller, or away. */
static smelt_status hand_out(smelt_rt *rt, int32_t status, smelt_session **out) {
  if (status) {
    rt_thread_error(rt->error);
    smelt_close((smelt_session *)rt);
    return (smelt_status)status;
  }
  *out = (smelt_session *)rt;
  return SMELT_OK;
}

static int32_t open_in(smelt_rt *rt, const char *bundle_dir, const smelt_options *options) {
  int verify = options && options->struct_size >= (int32_t)(offsetof(smelt_options, verify) + sizeof(int32_t)) && options->verify;
  int32_t status = rt_bind_check(rt);
  if (!status) status = rt_weights_open(rt, bundle_dir, verify);
  if (!status) status = rt_bind_first(rt, 0);
  if (!status) status = rt_reserve_bounded(rt);
  return status;
}

enum { LARGEST_OPTIONS = 4096 }; /* a later version's struct may be larger than ours; what was never set is larger still */

smelt_status smelt_open(const char *bundle_dir, const smelt_options *options, smelt_session **out) {
  if (!out) return rt_refuse("smelt_open: out is NULL, wanted where to put the session");
  *out = NULL;
  int32_t threads = smelt_model.default_threads;
  if (options) {
    if (options->struct_size < (int32_t)(offsetof(smelt_options, threads) + sizeof(int32_t)))
      return rt_refuse("smelt_open: options->struct_size is too small; set it to sizeof(smelt_options)");
    if (options->struct_size > LARGEST_OPTIONS)
      return rt_refuse("smelt_open: options->struct_size is no size of a struct; set it to sizeof(smelt_options)");
    if (options->threads < 0) return rt_refuse("smelt_open: options->threads is negative, wanted 0 (the default) or a count");
    if (options->threads) threads = options->threads;
  }
  if (smelt_model.abi_version != SMELT_ABI_VERSION)
    return rt_refuse("smelt_open: the model object and the runtime beside it speak different versions; compile the model again");
  smelt_rt *rt = create(&smelt_model, threads);
  return rt ? hand_out(rt, open_in(rt, bundle_dir, options), out) : no_session("smelt_open");
}

/* The copy of the state is the only thing of `from` that has to stand still. */
static int32_t fork_from(smelt_rt *rt, smelt_rt *from) {
  int32_t status = from->session->device ? rt_device_check(from) : SMELT_OK;
  if (status) return rt_error(rt, status, "%s", from->error);
  status = rt_weights_share(rt, from);
  if (!status) status = rt_bind_like(rt, from);
  if (!status) status = rt_reserve_bounded(rt);
  return status ? status : rt_state_copy(rt, from);
}

smelt_status smelt_fork(smelt_session *s, smelt_session **out) {
  smelt_rt *from = (smelt_rt *)s;
  if (!out) return rt_refuse("smelt_fork: out is NULL, wanted where to put the session");
  *out = NULL;
  if (!from) return rt_refuse("smelt_fork: the session is NULL; open one first");
  if (rt_is_foreign(from)) return rt_refuse("smelt_fork: " RT_FOREIGN);
  if (!rt_take(from)) return rt_refuse_busy(from, "smelt_fork");
  smelt_rt *rt = create(from->model, from->session->pool.threads);
  smelt_status status = rt ? hand_out(rt, fork_from(rt, from), out) : no_session("smelt_fork");
  if (!status) *out = (smelt_session *)&rt->session->views[from - from->session->views]; /* the same entry */
  rt_release(from);
  return status;
}

enum { NAP_NS = 200000 };

/* A run in another thread is cancelled and waited for: what it uses must not go away under it. */
void smelt_close(smelt_session *s) {
  smelt_rt *rt = (smelt_rt *)s;
  if (!rt) return;
  if (rt_is_foreign(rt)) {
    rt_thread_error("smelt_close: " RT_FOREIGN);
    return;
  }
  if (rt->session->pid == sm_getpid()) /* in a forked child nobody is left to wait for */
    while (!rt_take(rt)) {
      atomic_store(&rt->session->cancel, 1);
      sm_sleep(NAP_NS);
    }
  rt_session *all = rt->session;
  rt_pool_close(&all->pool);
  rt_free_all_tensors(rt);
  rt_bind_close(rt);
  for (uint32_t i = 0; i < rt->model->n_arenas; i++) rt_block_free(&all->arenas[i]);
  for (uint32_t i = 0; i < rt->model->n_entries; i++) rt_free_tensors(&all->views[i]);
  rt_state_free(rt);
  rt_weights_close(rt);
  /* who goes on with it, against the rules, is refused as long as malloc gives this memory to nobody else */
  for (uint32_t i = 0; i < smelt_model.n_entries; i++) *(const smelt_model_desc *volatile *)&all->views[i].model = NULL;
  free(all->memory);
}

const char *smelt_error(const smelt_session *s) {
  const smelt_rt *rt = (const smelt_rt *)s;
  return rt && !rt_is_foreign(rt) ? rt[rt->session->told * rt_named_entries(rt->model)].error : rt_thread_error_text();
}

const char *smelt_fallback(const smelt_session *s) {
  const smelt_rt *rt = (const smelt_rt *)s;
  return rt && !rt_is_foreign(rt) && rt->session->fallen[0] ? rt->session->fallen : NULL;
}

const char *smelt_variant(const smelt_session *s) {
  const smelt_rt *rt = (const smelt_rt *)s;
  return rt && !rt_is_foreign(rt) ? rt_variant(rt)->name : NULL;
}

/* For callers that were compiled with the model's own header: the link gives this a name that holds a piece of the model's hash,
 * so of two models by one name neither is taken for the other. */
smelt_status smelt_open_this(const char *bundle_dir, const smelt_options *options, smelt_session **out) {
  return smelt_open(bundle_dir, options, out);
}

/* ---- a run ---- */
/* Sizes and checks for these input shapes; nothing to do when they are those of the last run that passed. */
static int32_t plan(smelt_rt *rt) {
  size_t bytes = rt->n_shapes * sizeof *rt->shapes;
  if (rt->planned && (!bytes || memcmp(rt->shapes, rt->planned_shapes, bytes) == 0)) return SMELT_OK;
  rt->planned = 0;
  int32_t status = rt->entry->plan((smelt_rt *)rt, rt->shape_of, rt->slots);
  if (status) return status;
  if (bytes) memcpy(rt->planned_shapes, rt->shapes, bytes);
  rt->planned = 1;
  return SMELT_OK;
}

static int32_t execute(smelt_rt *rt) {
  smelt_addr arena = 0, weights = rt->session->device ? rt_device_first_weights(rt) : (smelt_addr)(intptr_t)rt->session->weights;
  int32_t status = rt->session->device ? rt_device_begin(rt) : rt_stage_inputs(rt);
  if (status) return status;
  for (uint32_t i = 0; i < rt->model->n_arenas; i++) rt->session->arena_bytes[i] = 0;
  if (rt->model->n_arenas && !(arena = smelt_rt_reserve(rt, (int32_t)rt->entry->arena, rt->slots[0]))) return rt->lost;
  /* In a session with devices the caller's thread keeps its mode, which drivers may rely on, except within the CPU's kernels. */
  if (!rt->session->device) rt->session->callers_floats = sm_swap_floats(rt->session->pool.floats);
  status = rt->entry->run(rt, rt->slots, rt->input_at, weights, arena);
  if (!rt->session->device) sm_swap_floats(rt->session->callers_floats);
  return rt->lost ? rt->lost : status;
}

static int32_t run(smelt_rt *rt, const DLTensor *inputs, size_t n_inputs, DLTensor *outputs, size_t n_outputs) {
  rt->error[0] = 0, rt->lost = 0;
  int32_t status = rt->session->device ? rt_device_check(rt)
                   : rt_variant(rt)->units ? rt_error(rt, SMELT_DEVICE, "the session has no unit left, open another: %s", rt->session->fallen)
                                           : SMELT_OK;
  if (!status && rt->session->weights_fd >= 0) status = rt_weights_check(rt);
  if (!status) status = rt_bind_inputs(rt, inputs, n_inputs);
  if (!status) status = rt_bind_outputs(rt, outputs, n_outputs);
  if (!status) status = plan(rt);
  if (!status) status = rt_state_begin(rt);
  if (status) return status;
  status = execute(rt);
  if (rt->session->device && !status) status = rt_device_finish(rt);
  if (rt->session->device && status) rt_device_drain(rt); /* the caller's memory must not be in use when we return */
  if (!status) status = rt_finish_outputs(rt, outputs);
  if (!status && !rt->session->probe) rt_state_keep(rt);
  return status;
}

/* Of a model with several entries, an error says which one failed. */
static void name_entry(smelt_rt *rt) {
  enum { NAME_BYTES = 80 };
  char head[NAME_BYTES];
  if (rt_named_entries(rt->model) < 2) return;
  size_t n = (size_t)snprintf(head, sizeof head, "entry '%.64s': ", rt->entry->name), kept = strlen(rt->error);
  if (kept > RT_ERROR_BYTES - 1 - n) kept = RT_ERROR_BYTES - 1 - n; /* the end of a long text gives way */
  memmove(rt->error + n, rt->error, kept);
  memcpy(rt->error, head, n);
  rt->error[n + kept] = 0;
}

smelt_status smelt_run(smelt_session *s, const DLTensor *inputs, size_t n_inputs, DLTensor *outputs, size_t n_outputs) {
  smelt_rt *named = (smelt_rt *)s, *rt;
  if (!named) return rt_refuse("smelt_run: the session is NULL; open one first");
  if (rt_is_foreign(named)) return rt_refuse("smelt_run: " RT_FOREIGN);
  if (!rt_take(named)) return rt_refuse_busy(named, "smelt_run");
  rt_pool_after_fork(&named->session->pool);
  atomic_store(&named->session->cancel, 0);
  rt_bind_run(named, inputs, n_inputs);
  int32_t status;
  do {
    rt = rt_running(named);
    rt->session->broken = 0;
    status = run(rt, inputs, n_inputs, outputs, n_outputs);
  } while (rt_bind_again(named, status));
  rt = rt_running(named);
  if (status) rt->session->told = rt->session->variant;
  if (status < SMELT_OK || status > SMELT_INTERNAL)
    status = rt_error(rt, SMELT_INTERNAL, "model '%s' returned status %d, which does not exist; compile it again", rt->model->name, (int)status);
  if (status && !rt->error[0])
    rt_error(rt, status, "model '%s' failed with status %d and gave no reason; compile it again", rt->model->name, (int)status);
  if (status) name_entry(rt);
  if (!status) rt->session->runs++;
  rt_release(rt);
  return (smelt_status)status;
}

void smelt_cancel(smelt_session *s) {
  if (s && !rt_is_foreign((smelt_rt *)s)) atomic_store(&((smelt_rt *)s)->session->cancel, 1);
}

/* ---- what the model is ---- */
static const smelt_model_desc none;
static const smelt_entry_desc no_entry;
static const smelt_model_desc *model_of(const smelt_session *s) {
  return s && rt_is_foreign((const smelt_rt *)s) ? &none : &smelt_model;
}
static const smelt_entry_desc *entry_of(const smelt_session *s) {
  const smelt_model_desc *m = model_of(s);
  return !m->n_entries ? &no_entry : s ? ((const smelt_rt *)s)->entry : m->entries;
}
static const smelt_tensor_desc *input(const smelt_session *s, size_t i) {
  const smelt_entry_desc *e = entry_of(s);
  return i < rt_fed(e) ? &e->inputs[i] : NULL;
}
static const smelt_tensor_desc *output(const smelt_session *s, size_t i) {
  const smelt_entry_desc *e = entry_of(s);
  return i < rt_given(e) ? &e->outputs[i] : NULL;
}
static const smelt_state_desc *state(const smelt_session *s, size_t i) {
  const smelt_model_desc *m = model_of(s);
  return i < m->n_states ? &m->states[i] : NULL;
}

size_t smelt_entry_count(const smelt_session *s) { return rt_named_entries(model_of(s)); }
const char *smelt_entry_name(const smelt_session *s, size_t i) {
  const smelt_model_desc *m = model_of(s);
  return i < rt_named_entries(m) ? m->entries[i].name : NULL;
}

static smelt_session *no_such_entry(const smelt_model_desc *m, const char *name) {
  char text[RT_ERROR_BYTES];
  int at = snprintf(text, sizeof text, "smelt_entry: model '%.64s' has no entry '%.64s'; there are:", m->name, name);
  for (uint32_t i = 0; i < rt_named_entries(m) && at < (int)sizeof text; i++)
    at += snprintf(text + at, sizeof text - (size_t)at, "%s %.64s", i ? "," : "", m->entries[i].name);
  rt_refuse(text);
  return NULL;
}

smelt_session *smelt_entry(smelt_session *s, const char *name) {
  smelt_rt *rt = (smelt_rt *)s;
  const char *why = !rt ? "smelt_entry: the session is NULL; open one first" : rt_is_foreign(rt) ? "smelt_entry: " RT_FOREIGN : NULL;
  if (!why && !name) why = "smelt_entry: name is NULL, wanted that of an entry; see smelt_entry_name";
  if (why) {
    rt_refuse(why);
    return NULL;
  }
  for (uint32_t i = 0; i < rt_named_entries(rt->model); i++)
    if (strcmp(rt->model->entries[i].name, name) == 0) return (smelt_session *)&rt->session->views[i];
  return no_such_entry(rt->model, name);
}

static const char *name_of(const smelt_tensor_desc *t) { return t ? t->name : NULL; }
static DLDataType type_of(const smelt_tensor_desc *t) { return t ? t->dtype : (DLDataType){0, 0, 0}; }
static int32_t rank_of(const smelt_tensor_desc *t) { return t ? t->rank : -1; }

size_t smelt_input_count(const smelt_session *s) { return rt_fed(entry_of(s)); }
size_t smelt_output_count(const smelt_session *s) { return rt_given(entry_of(s)); }
const char *smelt_input_name(const smelt_session *s, size_t i) { return name_of(input(s, i)); }
const char *smelt_output_name(const smelt_session *s, size_t i) { return name_of(output(s, i)); }
DLDataType smelt_input_type(const smelt_session *s, size_t i) { return type_of(input(s, i)); }
DLDataType smelt_output_type(const smelt_session *s, size_t i) { return type_of(output(s, i)); }
int32_t smelt_input_rank(const smelt_session *s, size_t i) { return rank_of(input(s, i)); }
int32_t smelt_output_rank(const smelt_session *s, size_t i) { return rank_of(output(s, i)); }
/* Of the variant that the session is bound to. */
static int32_t unit_of(const smelt_session *s, uint32_t tensor) {
  const smelt_rt *rt = s ? rt_running((const smelt_rt *)s) : NULL;
  return !rt || !rt_variant(rt)->units ? 0 : rt->entry->homes ? (int32_t)rt->entry->homes[tensor] : 1;
}
int32_t smelt_input_unit(const smelt_session *s, size_t i) { return input(s, i) ? unit_of(s, (uint32_t)i) : -1; }
int32_t smelt_output_unit(const smelt_session *s, size_t i) { return output(s, i) ? unit_of(s, entry_of(s)->n_inputs + (uint32_t)i) : -1; }
size_t smelt_state_count(const smelt_session *s) { return model_of(s)->n_states; }
const char *smelt_state_name(const smelt_session *s, size_t i) { return state(s, i) ? state(s, i)->name : NULL; }
DLDataType smelt_state_type(const smelt_session *s, size_t i) { return state(s, i) ? state(s, i)->dtype : (DLDataType){0, 0, 0}; }
int32_t smelt_state_rank(const smelt_session *s, size_t i) { return state(s, i) ? state(s, i)->rank : -1; }

/* ---- profile ---- */
smelt_status smelt_profile(smelt_session *s, int32_t enable) {
  smelt_rt *rt = (smelt_rt *)s;
  if (!rt) return rt_refuse("smelt_profile: the session is NULL; open one first");
  if (rt_is_foreign(rt)) return rt_refuse("smelt_profile: " RT_FOREIGN);
  if (!rt_take(rt)) return rt_refuse_busy(rt, "smelt_profile");
  rt->session->profiling = enable != 0;
  rt->session->watched = rt->session->profiling || rt->session->probe;
  for (uint32_t i = 0; enable && i < rt->model->n_kernels; i++) {
    rt->session->kernel_ns[i] = rt->session->kernel_launches[i] = 0;
    rt->session->kernel_device_ns[i] = rt->session->kernel_device_launches[i] = 0;
  }
  rt_device_clock(rt, rt->session->profiling);
  rt_release(rt);
  return SMELT_OK;
}

/* ---- probes ---- */
smelt_status smelt_probe(smelt_session *s, smelt_probe_fn fn, void *context) {
  smelt_rt *rt = (smelt_rt *)s;
  if (!rt) return rt_refuse("smelt_probe: the session is NULL; open one first");
  if (rt_is_foreign(rt)) return rt_refuse("smelt_probe: " RT_FOREIGN);
  if (!rt_take(rt)) return rt_refuse_busy(rt, "smelt_probe");
  if (fn && rt->session->variant) { /* callers know the launches of the first variant alone */
    int32_t status = rt_error(rt_running(rt), SMELT_UNSUPPORTED, "smelt_probe: the session runs the code for %s, and only that of the first variant, for %s, "
                              "is described; compile the model for this processor alone", rt_variant(rt)->name, rt->model->variants[0].name);
    rt->session->told = rt->session->variant;
    rt_release(rt);
    return (smelt_status)status;
  }
  rt->session->probe = fn;
  rt->session->probe_context = context;
  rt->session->watched = rt->session->profiling || fn;
  rt_release(rt);
  return SMELT_OK;
}

smelt_status smelt_peek(smelt_session *s, int64_t address, void *to, uint64_t bytes) {
  smelt_rt *rt = (smelt_rt *)s;
  if (!rt) return rt_refuse("smelt_peek: the session is NULL; open one first");
  if (rt_is_foreign(rt)) return rt_refuse("smelt_peek: " RT_FOREIGN);
  if (!rt->session->probe) return rt_refuse("smelt_peek: no probe is set; only a probe may call it");
  if (bytes && (!address || !to)) return rt_refuse("smelt_peek: an address is NULL, wanted one that the probe was given, and room for the bytes");
  if (!bytes) return SMELT_OK;
  if (rt->session->device) return (smelt_status)rt_device_read(rt_running(rt), address, to, bytes);
  memcpy(to, (const void *)(intptr_t)address, (size_t)bytes);
  return SMELT_OK;
}

size_t smelt_kernel_count(const smelt_session *s) { return model_of(s)->n_kernels; }

smelt_status smelt_kernel_stats(const smelt_session *s, size_t i, const char **name, uint64_t *ns, uint64_t *launches) {
  const smelt_rt *rt = (const smelt_rt *)s;
  if (!rt) return rt_refuse("smelt_kernel_stats: the session is NULL; open one first");
  if (rt_is_foreign(rt)) return rt_refuse("smelt_kernel_stats: " RT_FOREIGN);
  if (i >= rt->model->n_kernels) return rt_refuse("smelt_kernel_stats: the model has no kernel of this number; see smelt_kernel_count");
  if (name) *name = rt->model->kernels[i].name;
  if (ns) *ns = rt->session->kernel_ns[i];
  if (launches) *launches = rt->session->kernel_launches[i];
  return SMELT_OK;
}

smelt_status smelt_kernel_device_stats(const smelt_session *s, size_t i, uint64_t *ns, uint64_t *launches) {
  const smelt_rt *rt = (const smelt_rt *)s;
  if (!rt) return rt_refuse("smelt_kernel_device_stats: the session is NULL; open one first");
  if (rt_is_foreign(rt)) return rt_refuse("smelt_kernel_device_stats: " RT_FOREIGN);
  if (i >= rt->model->n_kernels) return rt_refuse("smelt_kernel_device_stats: the model has no kernel of this number; see smelt_kernel_count");
  if (ns) *ns = rt->session->kernel_device_ns[i];
  if (launches) *launches = rt->session->kernel_device_launches[i];
  return SMELT_OK;
}

smelt_status smelt_kernel_form(const smelt_session *s, size_t i, const char **form, const char **why) {
  const smelt_rt *rt = (const smelt_rt *)s;
  const char *reason = "";
  if (!rt) return rt_refuse("smelt_kernel_form: the session is NULL; open one first");
  if (rt_is_foreign(rt)) return rt_refuse("smelt_kernel_form: " RT_FOREIGN);
  if (i >= rt->model->n_kernels) return rt_refuse("smelt_kernel_form: the model has no kernel of this number; see smelt_kernel_count");
  const char *found = rt_device_form(rt, (int32_t)i, &reason);
  if (form) *form = found;
  if (why) *why = reason;
  return SMELT_OK;
}
