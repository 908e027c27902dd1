/* rt.h: the private header of the runtime: the session, its entries, and functions that several of its files call. */
#ifndef SMELT_RT_H
#define SMELT_RT_H
#include <stdatomic.h>

#include "smelt_abi.h"
#include "smelt_libc.h"

enum { RT_ERROR_BYTES = 1024, RT_MAX_RANK = 64, RT_PATH_BYTES = 1024 };

/* The longest axis: an index and what is added to it (a padding, a window) fit a register. Generated code relies on it. */
#define RT_MAX_EXTENT (SIZE_MAX > UINT32_MAX ? (int64_t)1 << 62 : (int64_t)INT32_MAX)

/* Memory that only grows: capacity is the high-water mark. */
typedef struct {
  void *data;
  uint64_t capacity;
} rt_block;

/* The next `count` things of `each` bytes in a block that begins at `base`, and what is behind them; with base NULL only the latter. */
static inline void *rt_carve(char *base, size_t *at, size_t count, size_t each) {
  void *here = base ? base + *at : NULL;
  *at += (count * each + 63) / 64 * 64; /* a cache line: where words of several threads stand */
  return here;
}

/* ---- pool: one parallel region at a time, claimed in chunks ---- */
typedef struct {
  /* what is claimed from: chunks nobody has taken yet, and chunks not finished yet (caller sleeps on it) */
  _Alignas(64) _Atomic uint32_t unclaimed;
  _Alignas(64) _Atomic uint32_t unfinished;
  _Atomic uint32_t caller_sleeps;
  /* workers sleep on `wake` */
  _Alignas(64) _Atomic uint32_t wake;
  _Atomic uint32_t sleepers;
  _Atomic uint32_t quit;
  _Atomic int caller_cpu; /* the processor from which the last sleepers were woken */
  /* the region; written only while no chunk is unfinished */
  _Alignas(64) smelt_kernel_fn fn;
  const int64_t *args;
  int64_t groups, chunk;
  uint32_t n_chunks;
  uint32_t region;         /* its number; never 0 */
  _Atomic uint32_t places; /* threads that have taken part in it */
  int32_t threads;   /* wanted, caller included */
  int32_t started;   /* workers that run */
  int32_t tried;     /* starting them was tried */
  int32_t pid;       /* of the process that started them */
  uint64_t floats;   /* the control word with which kernels compute */
  uint64_t spin_ns;
  sm_thread workers[SMELT_MAX_THREADS];
} rt_pool;

/* A caller's memory at a unit; its address is the handle. */
typedef struct rt_tensor {
  struct rt_tensor *next;
  uint32_t unit;
  uint64_t bytes;
  void *memory; /* the driver's, or the host's bytes */
  int32_t foreign; /* bytes at the host that another library has */
} rt_tensor;

typedef struct {
  const DLTensor *caller; /* NULL: session-owned */
  rt_tensor *lent;        /* the caller's memory at a unit, or NULL */
  rt_block *block;        /* session-owned bytes, or staging for a caller's misaligned tensor: own, or a state's spare */
  rt_block own;
  int64_t *shape;         /* rank slots */
  void *host;             /* where the bytes of this run end up on the host */
  uint64_t bytes;
  smelt_addr at;          /* what generated code writes to; 0: not asked for yet */
} rt_output;

typedef struct {
  rt_block block;   /* its bytes on the host; a device's are in the space of the state */
  rt_block spare;   /* what the run writes that replaces it: the two change places; of one with room, what a caller looks at */
  int64_t *shape;   /* rank slots; of a value alone */
  uint64_t bytes;   /* with its room */
  int32_t begun;    /* it has a value; else the next run starts it with zeros */
  int32_t resident; /* the value lies at a unit of this variant, counted from 1, and not in block; 0: it does not */
} rt_state;

typedef struct rt_device rt_device;
typedef struct rt_policy rt_policy;

enum { RT_WHY_BYTES = RT_ERROR_BYTES };
/* A variant as a session has it. */
typedef struct {
  rt_device *device;     /* its units, which are open; NULL: they are not, or it has none */
  int32_t left;          /* for good: it did not open, or failed in a run */
  char why[RT_WHY_BYTES];
  uint64_t runs;         /* that it did for this session */
  uint64_t explorations; /* of them, those that were to find out how long it takes */
} rt_way;

/* What passed between the host and the units besides it, by all runs: fields of smelt_memory. */
typedef struct {
  uint64_t launches, submits, uploads, uploaded_bytes, reads, read_bytes, waits, cache_hits, cache_misses, kernel_forms, lesser_forms;
} rt_traffic;

/* What the entries of a session have in common. One call at a time has all of it. */
typedef struct {
  void *memory;  /* the block that the session lies in */
  smelt_rt *views; /* one per entry of the model */
  rt_block *arenas;
  uint64_t *arena_bytes; /* per arena, the most that the last run asked for */
  rt_state *states;
  rt_tensor *tensors; /* a list */
  uint64_t *kernel_ns, *kernel_launches;
  uint64_t *kernel_device_ns, *kernel_device_launches; /* by the device's own events, and of how many launches it told */
  void **library_fn;
  int64_t *mapped_args; /* a CPU kernel's args in a device session */
  int32_t profiling;
  smelt_probe_fn probe; /* NULL: nobody looks */
  void *probe_context;
  uint64_t callers_floats; /* the caller's own control word, while a run computes with the pool's */
  int32_t watched; /* profiling or probed: the one question that a launch asks */
  _Atomic int32_t busy, cancel;
  int pid; /* of the process that opened the session */
  uint64_t allocations, runs;
  uint64_t crossings, crossed_bytes; /* copies from one unit to another */
  uint64_t shared, shared_bytes;     /* what was handed over without one */
  rt_traffic traffic;
  uint64_t random; /* where the numbers that runs draw have got to; 0: nowhere yet */
  const uint8_t *weights;
  int32_t weights_fd;      /* open while weights are mapped from it, else -1 */
  int32_t weights_shared;  /* they are the copy that the library's sessions share */
  int64_t weights_mtime[2];
  rt_way *ways;      /* per variant */
  rt_policy *policy; /* which of them a run is bound to; NULL: the same one until it fails */
  rt_device *device; /* that of the variant; NULL: it runs on the CPU alone */
  _Atomic uint32_t variant; /* that the session is bound to */
  _Atomic uint32_t told;    /* that whose text smelt_error gives */
  int32_t broken;    /* a call of a driver has failed in this run */
  int32_t hung;      /* a device has not ended in time: what it may still read is not given back */
  char fallen[RT_ERROR_BYTES]; /* why it does not run at the units of an earlier variant; "": it does */
  rt_pool pool;
} rt_session;

/* An entry of a session: what callers have in their hands. */
struct smelt_rt {
  const smelt_model_desc *model; /* first: see rt_is_foreign */
  const smelt_entry_desc *entry;
  rt_session *session;
  int64_t *slots;
  int64_t *shapes, *planned_shapes; /* all inputs' dims, one after the other */
  const int64_t **shape_of;         /* per input, into shapes */
  smelt_addr *input_at;
  uint64_t *input_bytes;
  const void **input_host;
  rt_tensor **input_lent; /* per input, the caller's memory at a unit; NULL: the bytes are at input_host */
  rt_block *input_staging;
  rt_output *outputs;
  uint32_t n_shapes;
  int32_t planned;
  int32_t lost; /* status of a failure that was told to generated code as an address 0; it outranks what that returns */
  uint32_t first_space; /* of its inputs and then its outputs, in a device session */
  char error[RT_ERROR_BYTES];
};

/* Another model's library opened it. That may have another runtime: no more than `model`, which stays first, may be read. */
static inline int rt_is_foreign(const smelt_rt *rt) { return rt->model != &smelt_model; }
#define RT_FOREIGN "the session is one of another model, or closed; call the functions of the model that opened it"

/* Inputs that a caller feeds and outputs that he gets; the others are state. */
static inline uint32_t rt_fed(const smelt_entry_desc *e) { return e->n_inputs - e->n_reads; }
static inline uint32_t rt_given(const smelt_entry_desc *e) { return e->n_outputs - e->n_writes; }
/* The state that an entry's input reads, or that its output replaces; NULL: a caller's. */
static inline rt_state *rt_read_state(const smelt_rt *rt, uint32_t input) {
  return input < rt_fed(rt->entry) ? NULL : &rt->session->states[rt->entry->reads[input - rt_fed(rt->entry)]];
}
static inline rt_state *rt_written_state(const smelt_rt *rt, uint32_t output) {
  return output < rt_given(rt->entry) ? NULL : &rt->session->states[rt->entry->writes[output - rt_given(rt->entry)]];
}

/* Does the output lie where the state lies that it replaces? */
static inline int rt_in_place(const smelt_rt *rt, uint32_t output) {
  return output >= rt_given(rt->entry) && rt->entry->in_place && rt->entry->in_place[output - rt_given(rt->entry)];
}

/* Entries that a caller may name: the first variant's. */
static inline uint32_t rt_named_entries(const smelt_model_desc *m) { return m->n_variants ? m->n_entries / m->n_variants : 0; }
/* The entry that runs for the one that a caller has: that of the session's variant. */
static inline smelt_rt *rt_running(const smelt_rt *rt) {
  return (smelt_rt *)rt + rt->session->variant * rt_named_entries(rt->model);
}
static inline const smelt_variant_desc *rt_variant(const smelt_rt *rt) { return &rt->model->variants[rt->session->variant]; }
/* Does the session's variant run kernels at this unit, from 1 on? */
static inline int rt_has_unit(const smelt_rt *rt, uint32_t unit) { return (int)(rt_variant(rt)->units >> (unit - 1) & 1); }
/* The unit in whose memory a state is. */
static inline uint32_t rt_state_unit(const smelt_rt *rt, uint32_t state) { return rt_variant(rt)->states ? rt_variant(rt)->states[state] : 0; }

/* ---- session.c ---- */
smelt_status smelt_open_this(const char *bundle_dir, const smelt_options *options, smelt_session **out);

/* ---- bind.c ---- */
int32_t rt_bind_check(smelt_rt *rt); /* can this processor run any variant? */
/* Bind to the first variant from `from` on that fits the processor and whose units open. */
int32_t rt_bind_first(smelt_rt *rt, uint32_t from);
int32_t rt_bind_like(smelt_rt *rt, const smelt_rt *from); /* as the session that a new one is forked from */
/* Before a run of an entry that a caller has named: to the variant that the policy wants. */
void rt_bind_run(smelt_rt *named, const DLTensor *inputs, size_t n);
/* After it: learn from it. 1: it failed, and is to be done again by the variant to which the session is bound now. */
int rt_bind_again(smelt_rt *named, int32_t status);
/* Call fn for each variant whose units are open, the session being bound to it meanwhile. */
void rt_bind_each(smelt_rt *rt, void (*fn)(smelt_rt *, void *), void *context);
void rt_bind_close(smelt_rt *rt);

/* ---- check.c ---- */
/* Write the session's error text; returns status. No allocation. */
int32_t rt_error(smelt_rt *rt, int32_t status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same for a thread that has no session (or may not write to it). */
void rt_thread_error(const char *text);
const char *rt_thread_error_text(void);
/* A call that is not answered: its text goes to the calling thread. Returns SMELT_INVALID. */
smelt_status rt_refuse(const char *text);
/* One call at a time may use a session: 1 when it is this one. Whoever gets 0 calls rt_refuse_busy with its own name. */
int rt_take(smelt_rt *rt);
void rt_release(smelt_rt *rt);
smelt_status rt_refuse_busy(const smelt_rt *rt, const char *call);
/* Take the session for a call, unless there is none, or `why` (NULL: nothing) speaks against it; what refuses has told the thread
 * why. Then the end of the call, with its status. */
smelt_status rt_enter(smelt_rt *rt, const char *why, const char *call);
smelt_status rt_leave(smelt_rt *rt, int32_t status);
/* Bytes of a compact tensor; 0 and *bytes untouched when a dim is negative or the product of those that are not 0 is more
 * than an address can tell. */
int rt_tensor_bytes(DLDataType type, int32_t rank, const int64_t *shape, uint64_t *bytes);
int rt_is_compact(const DLTensor *t);
/* Check the caller's tensors against the model and bind them: shapes, shape_of, input_at/bytes/host, outputs[].caller. */
int32_t rt_bind_inputs(smelt_rt *rt, const DLTensor *inputs, size_t n);
int32_t rt_bind_outputs(smelt_rt *rt, const DLTensor *outputs, size_t n);
/* What holds for any tensor of a caller. role: "input" and so on, for messages. */
int32_t rt_check_tensor(smelt_rt *rt, const char *role, const smelt_tensor_desc *want, const DLTensor *t, uint64_t *bytes);

/* ---- memory.c ---- */
/* Make a block hold `bytes` (64-byte aligned at least); its contents are lost when it grows. 0 when the system refuses. */
int rt_block_grow(smelt_rt *rt, rt_block *block, uint64_t bytes);
/* The same of a block of no session; counts what it asks the system for. */
int rt_block_fit(rt_block *block, uint64_t bytes, uint64_t *allocations);
/* The same, and to hold `room` where the system gives as much. */
int rt_block_grow_roomy(smelt_rt *rt, rt_block *block, uint64_t bytes, uint64_t room);
/* The same with half more room than it has, keeping the contents; they may move. */
int rt_block_extend(smelt_rt *rt, rt_block *block, uint64_t bytes);
void rt_block_free(rt_block *block);
int rt_output_direct(const smelt_rt *rt, uint32_t i);
int32_t rt_reserve_bounded(smelt_rt *rt); /* all host memory that has a bound */
/* The most bytes that one may take; 0: nobody knows. */
uint64_t rt_most_of_arena(const smelt_rt *rt, uint32_t arena);
uint64_t rt_most_of_input(const smelt_rt *rt, uint32_t input);
uint64_t rt_most_of_output(const smelt_rt *rt, uint32_t output);
/* What to ask for when output i, or a state, wants so many bytes and has fewer, if there is as much. */
uint64_t rt_output_room(const smelt_rt *rt, uint32_t i, uint64_t bytes);
uint64_t rt_state_room(const smelt_rt *rt, uint32_t state, uint64_t bytes);
int32_t rt_stage_inputs(smelt_rt *rt);
void rt_free_tensors(smelt_rt *rt); /* copies of inputs, session-owned outputs, spare blocks of states */
int32_t rt_finish_outputs(smelt_rt *rt, DLTensor *outputs);

/* ---- state.c ---- */
/* Bytes of state k in memory when its value has this shape; 0 as rt_tensor_bytes. */
int rt_state_bytes(const smelt_rt *rt, uint32_t k, const int64_t *shape, uint64_t *bytes);
void rt_state_bind(smelt_rt *rt);     /* before the plan: shapes, memory */
int32_t rt_state_begin(smelt_rt *rt); /* after it: zeros for what has no value yet */
void rt_state_keep(smelt_rt *rt);     /* after a run that succeeded: its outputs are the next one's inputs */
int32_t rt_state_copy(smelt_rt *to, smelt_rt *from);
int32_t rt_state_home(smelt_rt *rt);  /* all values to the host */
void rt_state_trim(smelt_rt *rt);     /* what holds no value */
void rt_state_free(smelt_rt *rt);

/* ---- tensor.c ---- */
/* That of a caller's tensor on a unit; NULL: this session has no such one. */
rt_tensor *rt_find_tensor(const smelt_rt *rt, const DLTensor *t);
void rt_free_all_tensors(smelt_rt *rt);

/* ---- cpu.c ---- */
/* Does this processor lack any of these features (a list with ',' in between, NULL: none)? Their names go into missing. */
int rt_cpu_lacks(const char *features, char *missing, size_t room);

/* ---- weights.c ---- */
int32_t rt_weights_open(smelt_rt *rt, const char *bundle_dir, int verify);
int32_t rt_weights_check(smelt_rt *rt); /* before a run: is the mapped file as it was? */
int32_t rt_weights_share(smelt_rt *rt, const smelt_rt *from); /* open the weights of another session */
void rt_weights_close(smelt_rt *rt);

/* ---- cache.c ---- */
int rt_cache_folder(const char *of, char path[RT_PATH_BYTES]); /* $SMELT_CACHE/of, or its default, without a slash; 0: there is none */
void rt_make_folders(char *path);                              /* those that a file of this path lies in */

/* ---- pool.c ---- */
/* A thread that takes no signal but its own faults; 0: the system gives none. */
int rt_thread(sm_thread *to, void *(*fn)(void *), void *context);
void rt_pool_init(rt_pool *pool, int32_t threads, int keep_subnormals);
void rt_pool_start(rt_pool *pool); /* before the first region that needs it */
void rt_pool_run(rt_pool *pool, smelt_kernel_fn fn, const int64_t *args, int64_t groups, int32_t grain);
void rt_pool_after_fork(rt_pool *pool); /* in a child the workers are gone: forget them */
void rt_pool_close(rt_pool *pool);

/* ---- device.c and crossing.c; every function may be called only when rt->device is set, but for open and launch ---- */
int32_t rt_device_open(smelt_rt *rt);
void rt_device_close(smelt_rt *rt);
int32_t rt_device_check(smelt_rt *rt);  /* can this process use it? */
int32_t rt_device_begin(smelt_rt *rt);  /* upload inputs */
int32_t rt_device_finish(smelt_rt *rt); /* download outputs, wait for everything */
int32_t rt_device_wait(smelt_rt *rt);   /* for everything */
void rt_device_drain(smelt_rt *rt);     /* after a failure: drop what has not begun, wait for the rest */
void rt_device_clock(smelt_rt *rt, int on); /* begin or end to take the devices' own times */
int64_t rt_device_elapsed(smelt_rt *rt, uint32_t unit); /* ns, since it was last asked; -1: unknown */
const char *rt_device_form(const smelt_rt *rt, int32_t kernel, const char **why); /* as smelt_driver.form; NULL: it has no unit that is open */
int32_t rt_device_launch(smelt_rt *rt, int32_t id, const int64_t *args, int64_t groups);
/* keep: what the arena holds stays when it grows. */
smelt_addr rt_device_arena(smelt_rt *rt, uint32_t arena, uint64_t bytes, int keep);
smelt_addr rt_device_output(smelt_rt *rt, uint32_t output, uint64_t bytes);
/* Is this output's memory at the unit where the state lies that it replaces? Then the two change places. */
int rt_device_keeps(const smelt_rt *rt, uint32_t output);
/* Does this input read a state where that lies? */
int rt_device_reads(const smelt_rt *rt, uint32_t input);
void rt_device_swap(smelt_rt *rt, uint32_t state);
int32_t rt_device_read_state(smelt_rt *rt, uint32_t state, void *to, uint64_t bytes);
/* In the memory of a unit; of that which has arena 0. */
smelt_addr rt_device_weights(smelt_rt *rt, uint32_t unit);
smelt_addr rt_device_first_weights(smelt_rt *rt);
int rt_device_mirrors(const smelt_rt *rt, uint32_t arena); /* has the host a copy of it? */
uint64_t rt_device_arena_capacity(const rt_device *device); /* of any variant */
uint64_t rt_device_state_capacity(const smelt_rt *rt, const rt_device *device);
void rt_device_trim(smelt_rt *rt);
int32_t rt_device_read(smelt_rt *rt, smelt_addr at, void *to, uint64_t bytes);
int32_t rt_device_write(smelt_rt *rt, smelt_addr at, const void *from, uint64_t bytes);
int32_t rt_device_copy(smelt_rt *rt, smelt_addr to, smelt_addr from, uint64_t bytes);
int32_t rt_device_new_tensor(smelt_rt *rt, rt_tensor *t);
void rt_device_release_tensor(smelt_rt *rt, rt_tensor *t);
int32_t rt_device_export(smelt_rt *rt, const rt_tensor *t, DLTensor *out);
int32_t rt_device_import(smelt_rt *rt, rt_tensor *t, const DLTensor *theirs);
/* One of the two may be NULL: then the bytes are the host's. Waits. */
int32_t rt_device_copy_tensor(smelt_rt *rt, const rt_tensor *to, void *to_host, const rt_tensor *from, const void *from_host, uint64_t bytes);
/* Host pointers for n_buffers addresses, of which the first n_read are read alone, then the dims unchanged, into rt->mapped_args; unmap
 * gives them back. */
int32_t rt_device_map(smelt_rt *rt, const int64_t *args, int32_t n_read, int32_t n_buffers, int32_t n_dims);
int32_t rt_device_unmap(smelt_rt *rt);
#endif
