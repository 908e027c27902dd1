/* smelt.h: the C ABI of compiled models. Tensors in and out are DLPack DLTensor; every function returns a status.
 *
 * A model that is called `det` has det_open, det_run and so on, which its own header det.h declares; so a program can have
 * many models, each with its functions. What each function does stands below, under the name smelt_open for det_open. Code
 * that is to fit any model is written with these names and told which one it is for:
 *
 *   #define SMELT_PREFIX det      (or -DSMELT_PREFIX=det)
 *   #include "smelt.h"            (smelt_open now is det_open)
 */
#ifndef SMELT_H
#define SMELT_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- DLPack (the subset that a caller needs; layout equal to dlpack.h v1) ---- */
#ifndef DLPACK_DLPACK_H_
typedef struct { int32_t device_type; int32_t device_id; } DLDevice; /* kDLCPU = 1 */
typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } DLDataType; /* 0 int 1 uint 2 float 4 bfloat 6 bool */
typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; /* NULL: compact row-major */
  uint64_t byte_offset;
} DLTensor;
#endif

/* A device_type (DLPack's kDLExtDev) of tensors that smelt_tensor makes: device_id is a unit of the model, data a handle. */
enum { SMELT_ON_UNIT = 12 };

typedef enum {
  SMELT_OK = 0,
  SMELT_INVALID = 1,     /* bad argument or broken bundle */
  SMELT_UNSUPPORTED = 2,
  SMELT_SHAPE = 3,       /* input count, dtype, rank, dim, or a run-time check */
  SMELT_DEVICE = 4,      /* driver, out of memory */
  SMELT_INFRA = 5,       /* file missing, mmap failed */
  SMELT_INTERNAL = 6,
  SMELT_AGAIN = 7,       /* of streams: no room, or no result, within the time that the caller waits */
  SMELT_END = 8          /* of streams: all results have been popped, and no more is pushed */
} smelt_status;

typedef struct smelt_session smelt_session;

typedef struct {
  int32_t struct_size;   /* sizeof(smelt_options): lets the struct grow */
  int32_t threads;       /* 0: the bundle's default, 1: the caller only */
  int32_t verify;        /* 1: also check the hash of the weights (reads all of them) */
} smelt_options;

typedef struct {
  uint64_t arena_bytes;      /* what the last run needed: the manifest's formulas, evaluated, less what need not be copied */
  uint64_t arena_capacity;   /* high-water mark that the session holds */
  uint64_t output_capacity;  /* session-owned output memory */
  uint64_t weights_bytes;
  uint64_t allocations;      /* how many times the session asked the system (or the device) for memory */
  uint64_t runs;
  uint64_t crossings;        /* copies from one unit of the device to another, by all runs */
  uint64_t crossed_bytes;    /* and their bytes */
  uint64_t shared, shared_bytes; /* what was handed over instead, to or from a unit whose memory is the host's */
  uint64_t state_capacity;   /* of what runs leave for the next one, both buffers of each state */
  /* Units besides the CPU, by all runs: */
  uint64_t launches;         /* kernels started on them */
  uint64_t submits;          /* how often their drivers were told to begin; launches between two are begun together */
  uint64_t uploads, uploaded_bytes; /* from the host to their memory; weights are not among them */
  uint64_t reads, read_bytes;       /* from their memory to the host */
  uint64_t waits;            /* how often the host waited for one */
  uint64_t cache_hits, cache_misses; /* binaries of their code that smelt_open found in a file, and those that it did not */
  uint64_t kernel_forms, lesser_forms; /* kernels that it has in several forms, and those that have not got the best: smelt_kernel_form */
} smelt_memory;

/* What binds a run to one of the units that the model was compiled for: see smelt_policy. */
typedef enum { SMELT_POLICY_STATIC = 0, SMELT_POLICY_LOAD = 1, SMELT_POLICY_THERMAL = 2, SMELT_POLICY_BATTERY = 3 } smelt_policy_kind;

typedef struct {
  int32_t struct_size; /* sizeof(smelt_policy_options) */
  int32_t policy;      /* smelt_policy_kind */
  int32_t limit;       /* millidegrees C above which a unit is left; 0: each zone's own lowest passive trip point, else 85000 */
  int32_t cooled;      /* by so many below its limit a unit has to be before it is taken again; 0: 5000 */
  const char *zones;   /* how the types of a unit's thermal zones begin; NULL: "cpu=cpu,x86_pkg_temp;*=gpu". A unit is "cpu", or the
                        * name of its driver ("OpenCL", "Vulkan", "CUDA"), or '*', any that is not named. In whatever case. */
  const char *energy;  /* how the name of a counter of energy begins that counts all of the machine; NULL: "psys" */
} smelt_policy_options;

/* One of the units that a session's runs may be bound to. */
typedef struct {
  const char *unit;      /* "cpu", or the name of its driver */
  const char *processor; /* whose code runs there, or around it on the host */
  const char *why;       /* why it is left, or is not taken now; "": nothing speaks against it. Until the next smelt_share or smelt_run */
  uint64_t runs;         /* of this session that it did */
  uint64_t explorations; /* of them, those that were to find out how long it takes now */
  uint64_t expected_ns;  /* of a run like the last one; 0: unknown */
  uint64_t expected_uj;  /* microjoules of such a run, by the machine's counter; 0: unknown */
  int32_t millidegrees;  /* of its thermal zone at the last look; INT32_MIN: unknown */
  int32_t bound;         /* 1: the last run was bound to it */
  int32_t open;          /* 1: its driver is open, and its memory taken */
} smelt_unit_share;

/* What smelt_probe is given. */
typedef int32_t (*smelt_probe_fn)(void *context, int32_t site, const int64_t *args, int32_t n_buffers, int32_t n_dims);

/* ---- streams ---- */
typedef struct smelt_stream smelt_stream;

/* Where a tensor comes from: an output of an earlier stage, or (stage -1) one of those that are pushed. */
typedef struct { int32_t stage, output; } smelt_wire;

/* What a stage does. A function of the caller's has `run` alone, the others NULL; smelt_as_stage has those of a model. All are
 * called by the stage's own thread, cancel alone by that which closes the stream. */
typedef struct {
  int32_t struct_size; /* sizeof(smelt_stage_calls) */
  /* As smelt_run. What it leaves in the outputs (host memory, compact) has to stay until its next call; it is copied, unless
   * `exchange` hands it over. A status that is not SMELT_OK is the item's. */
  smelt_status (*run)(void *context, const DLTensor *inputs, size_t n_inputs, DLTensor *outputs, size_t n_outputs);
  const char *(*error)(void *context); /* why the last run failed */
  void (*cancel)(void *context);       /* let a run that is under way end early */
  uint64_t (*most)(void *context, size_t output); /* the most bytes of an output; 0: unknown */
  /* Take this memory (of mmap; NULL: none yet) for an output's next value, and give that in which its last one lies. 0: neither. */
  int32_t (*exchange)(void *context, size_t output, void **data, uint64_t *capacity);
} smelt_stage_calls;

typedef struct {
  const char *name; /* for messages; NULL: its number */
  const smelt_stage_calls *calls;
  void *context;
  const void *owner; /* what only one stage can use at a time: a session. NULL: nothing */
  const smelt_wire *inputs;
  uint32_t n_inputs, n_outputs;
} smelt_stage;

typedef struct {
  int32_t struct_size;      /* sizeof(smelt_stream_options) */
  int32_t stage_size;       /* sizeof(smelt_stage) */
  const smelt_stage *stages;
  uint32_t n_stages;
  uint32_t n_pushed;        /* tensors of each push */
  const smelt_wire *popped; /* where those of each pop come from */
  uint32_t n_popped;
  int32_t depth;            /* items in the stream at most, that which was popped last among them; 0: n_stages + 2 */
} smelt_stream_options;

typedef struct {
  uint64_t items;       /* that the stage is done with */
  uint64_t failed;      /* of them, those that it failed on, or did not get because an earlier stage had */
  uint64_t busy_ns;     /* how long it ran; the stage with the most of it decides how many items go through in a second */
  uint64_t bytes;       /* that its outputs hold, of all items together */
  uint64_t allocations; /* how often these were asked of the system */
} smelt_stage_stats;

#ifdef __cplusplus
}
#endif

#ifdef __GNUC__
#define SMELT_SYMBOL(name) __asm__(name) /* what the linker is to call a function */
#else
#define SMELT_SYMBOL(name)
#endif
#define SMELT_JOIN_(prefix, name) prefix##name
#define SMELT_JOIN(prefix, name) SMELT_JOIN_(prefix, name)
#endif

#if defined(SMELT_PREFIX) && !defined(smelt_open)
#define smelt_open SMELT_JOIN(SMELT_PREFIX, _open)
#define smelt_run SMELT_JOIN(SMELT_PREFIX, _run)
#define smelt_close SMELT_JOIN(SMELT_PREFIX, _close)
#define smelt_error SMELT_JOIN(SMELT_PREFIX, _error)
#define smelt_entry SMELT_JOIN(SMELT_PREFIX, _entry)
#define smelt_entry_count SMELT_JOIN(SMELT_PREFIX, _entry_count)
#define smelt_entry_name SMELT_JOIN(SMELT_PREFIX, _entry_name)
#define smelt_input_count SMELT_JOIN(SMELT_PREFIX, _input_count)
#define smelt_output_count SMELT_JOIN(SMELT_PREFIX, _output_count)
#define smelt_input_name SMELT_JOIN(SMELT_PREFIX, _input_name)
#define smelt_output_name SMELT_JOIN(SMELT_PREFIX, _output_name)
#define smelt_input_type SMELT_JOIN(SMELT_PREFIX, _input_type)
#define smelt_output_type SMELT_JOIN(SMELT_PREFIX, _output_type)
#define smelt_input_rank SMELT_JOIN(SMELT_PREFIX, _input_rank)
#define smelt_output_rank SMELT_JOIN(SMELT_PREFIX, _output_rank)
#define smelt_state_count SMELT_JOIN(SMELT_PREFIX, _state_count)
#define smelt_state_name SMELT_JOIN(SMELT_PREFIX, _state_name)
#define smelt_state_type SMELT_JOIN(SMELT_PREFIX, _state_type)
#define smelt_state_rank SMELT_JOIN(SMELT_PREFIX, _state_rank)
#define smelt_state_get SMELT_JOIN(SMELT_PREFIX, _state_get)
#define smelt_state_set SMELT_JOIN(SMELT_PREFIX, _state_set)
#define smelt_reset SMELT_JOIN(SMELT_PREFIX, _reset)
#define smelt_fork SMELT_JOIN(SMELT_PREFIX, _fork)
#define smelt_input_unit SMELT_JOIN(SMELT_PREFIX, _input_unit)
#define smelt_output_unit SMELT_JOIN(SMELT_PREFIX, _output_unit)
#define smelt_tensor SMELT_JOIN(SMELT_PREFIX, _tensor)
#define smelt_tensor_export SMELT_JOIN(SMELT_PREFIX, _tensor_export)
#define smelt_tensor_import SMELT_JOIN(SMELT_PREFIX, _tensor_import)
#define smelt_tensor_free SMELT_JOIN(SMELT_PREFIX, _tensor_free)
#define smelt_tensor_copy SMELT_JOIN(SMELT_PREFIX, _tensor_copy)
#define smelt_fallback SMELT_JOIN(SMELT_PREFIX, _fallback)
#define smelt_variant SMELT_JOIN(SMELT_PREFIX, _variant)
#define smelt_policy SMELT_JOIN(SMELT_PREFIX, _policy)
#define smelt_policy_note SMELT_JOIN(SMELT_PREFIX, _policy_note)
#define smelt_share SMELT_JOIN(SMELT_PREFIX, _share)
#define smelt_share_count SMELT_JOIN(SMELT_PREFIX, _share_count)
#define smelt_memory_stats SMELT_JOIN(SMELT_PREFIX, _memory_stats)
#define smelt_trim SMELT_JOIN(SMELT_PREFIX, _trim)
#define smelt_profile SMELT_JOIN(SMELT_PREFIX, _profile)
#define smelt_kernel_count SMELT_JOIN(SMELT_PREFIX, _kernel_count)
#define smelt_kernel_stats SMELT_JOIN(SMELT_PREFIX, _kernel_stats)
#define smelt_kernel_device_stats SMELT_JOIN(SMELT_PREFIX, _kernel_device_stats)
#define smelt_kernel_form SMELT_JOIN(SMELT_PREFIX, _kernel_form)
#define smelt_probe SMELT_JOIN(SMELT_PREFIX, _probe)
#define smelt_peek SMELT_JOIN(SMELT_PREFIX, _peek)
#define smelt_cancel SMELT_JOIN(SMELT_PREFIX, _cancel)
#define smelt_as_stage SMELT_JOIN(SMELT_PREFIX, _as_stage)
#define smelt_finish_stream SMELT_JOIN(SMELT_PREFIX, _finish_stream)
#define smelt_pop SMELT_JOIN(SMELT_PREFIX, _pop)
#define smelt_push SMELT_JOIN(SMELT_PREFIX, _push)
#define smelt_end_stream SMELT_JOIN(SMELT_PREFIX, _end_stream)
#define smelt_start_stream SMELT_JOIN(SMELT_PREFIX, _start_stream)
#define smelt_ask_stage SMELT_JOIN(SMELT_PREFIX, _ask_stage)

#ifdef __cplusplus
extern "C" {
#endif

/* bundle_dir: the folder of the model's weights (det.weights); NULL: the one that this library was loaded from. Weights of
 * another model are refused, and so is a session of another model by every function below.
 * Where bounds of the dims bound an arena or an output (the manifest's memory.most and memory.outputs), it is reserved here, at
 * that size: where all are bounded, no run takes memory, but for copies of misaligned inputs. Pages that were never written are the
 * system's; of units they are taken. What has no bound grows to its high-water mark in runs. */
smelt_status smelt_open(const char *bundle_dir, const smelt_options *options, smelt_session **out);
/* One run at a time on a session; threads that want to run at once open a session each.
 * Inputs in the model's order (smelt_input_name). An output whose data is NULL gets session-owned memory and shape, valid
 * until the next smelt_run, smelt_trim or smelt_close; one whose data is not NULL must have the right shape and is written
 * in place. What a run writes may share no memory with an input or another output (SMELT_INVALID names the two): a
 * session-owned output is copied before it goes in again. Tensors are compact, in host memory or of smelt_tensor; data of an empty
 * tensor may be NULL. After a failure outputs and state are as they were, but for caller-owned data, and the session stays usable.
 * A process that forks leaves its children its sessions; one that was running at that moment can only be closed there.
 * The run computes in a mode of its own (rounding to nearest, no traps, subnormal numbers as the model was compiled); the caller's is as
 * before when it returns. */
smelt_status smelt_run(smelt_session *s, const DLTensor *inputs, size_t n_inputs, DLTensor *outputs, size_t n_outputs);
void smelt_close(smelt_session *s); /* of the whole session, by any of its entries, once; a run in another thread is cancelled and
                                     * waited for; s NULL: nothing happens. Calls after that are undefined; many are refused */
const char *smelt_error(const smelt_session *s); /* of the last smelt_run that failed; s NULL: of this thread's last smelt_open
                                                  * that failed, or other call that was refused: an argument was NULL or out
                                                  * of range, or the session was running */

/* Entries: a model may have several, such as prefill and decode, each with inputs, outputs and dims of its own. They share the session:
 * its weights, threads, working memory and state. What smelt_open gives is its first entry; smelt_entry gives another one, for which
 * every function here stands too. It lives as long as the session, is not closed on its own, and runs of all of them exclude each
 * other. Outputs that the session owns are the entry's: a run of another entry leaves them as they are. NULL: there is no entry of
 * this name; smelt_error(NULL) says which there are. A model that was compiled of one file has one entry, main. */
smelt_session *smelt_entry(smelt_session *s, const char *name);
size_t smelt_entry_count(const smelt_session *s);
const char *smelt_entry_name(const smelt_session *s, size_t i);

size_t smelt_input_count(const smelt_session *s);
size_t smelt_output_count(const smelt_session *s);
const char *smelt_input_name(const smelt_session *s, size_t i);
const char *smelt_output_name(const smelt_session *s, size_t i);
DLDataType smelt_input_type(const smelt_session *s, size_t i);
DLDataType smelt_output_type(const smelt_session *s, size_t i);
int32_t smelt_input_rank(const smelt_session *s, size_t i);
int32_t smelt_output_rank(const smelt_session *s, size_t i);

/* State: inputs that outputs of the run before replace, where the model was compiled so. They are neither among the inputs nor
 * among the outputs above: a run that succeeds leaves them in the session for the next run, without a copy; of several entries, an
 * output of one may replace an input of another. A state has an input's name, and all of them are the session's, whichever entry
 * is asked. Before the first run, and after smelt_reset, each is at its start: zeros; of an axis that runs change as few as the
 * model allows (an empty cache), of any other as many as the inputs of that run say. */
size_t smelt_state_count(const smelt_session *s);
const char *smelt_state_name(const smelt_session *s, size_t i);
DLDataType smelt_state_type(const smelt_session *s, size_t i);
int32_t smelt_state_rank(const smelt_session *s, size_t i);
/* Point out at the value of state i, in host memory. Its data and its shape are the session's own: both stay where and as they
 * are until the next smelt_run, smelt_state_set, smelt_reset, smelt_trim, smelt_fork or smelt_close of this session, also one that
 * fails; other calls, smelt_state_get among them, leave them alone. At its start data is NULL, and so is shape: the next run
 * decides them. */
smelt_status smelt_state_get(smelt_session *s, size_t i, DLTensor *out);
/* Copy a value into state i, of its type and rank; that its extents fit is checked by the next run. value NULL, or with neither
 * data nor shape, as smelt_state_get tells of a start: its start. */
smelt_status smelt_state_set(smelt_session *s, size_t i, const DLTensor *value);
smelt_status smelt_reset(smelt_session *s); /* every state back to its start */
/* A session of its own that goes on from a copy of this one's state, with the same options and the same weights; out is the entry that
 * s is. */
smelt_status smelt_fork(smelt_session *s, smelt_session **out);

/* Tensors at a unit. Of a model with units besides the CPU, inputs go up to the unit that reads them and outputs come back at each
 * run, but for tensors that lie there already: smelt_tensor gives memory at a unit, 0 the host, and sets data, device and
 * byte_offset of *out; type and shape are the caller's. Such a tensor may be an input, or the memory of an output, of runs of this
 * session's entries, also an output of one run and an input of the next, and what lies at the unit that smelt_input_unit or
 * smelt_output_unit says does not cross. It lasts until smelt_tensor_free or smelt_close. */
int32_t smelt_input_unit(const smelt_session *s, size_t i);
int32_t smelt_output_unit(const smelt_session *s, size_t i);
smelt_status smelt_tensor(smelt_session *s, int32_t unit, uint64_t bytes, DLTensor *out);
smelt_status smelt_tensor_free(smelt_session *s, DLTensor *tensor);
/* Between the host and a unit, or two tensors, of as many bytes; waits. */
smelt_status smelt_tensor_copy(smelt_session *s, const DLTensor *to, const DLTensor *from);
/* The memory of such a tensor as other libraries know it, by DLPack: *out gets data, device and byte_offset. Device type 1 (host) and 2
 * (CUDA) have an address as data, 4 (OpenCL) a cl_mem, 7 (Vulkan) a VkBuffer; their contexts are the session's, CUDA's is the
 * device's primary one. The session has no work there when this returns; it must not be given any while another library works there. */
smelt_status smelt_tensor_export(smelt_session *s, const DLTensor *tensor, DLTensor *out);
/* A tensor at a unit (or 0, the host) whose memory is another library's, as DLPack tells it: `theirs` has data, device and byte_offset, and
 * at least so many bytes there. Nothing is copied. It has to stay until smelt_tensor_free. CUDA takes memory (device types 2 and 13)
 * of its device and of the primary context; all else is refused. */
smelt_status smelt_tensor_import(smelt_session *s, int32_t unit, uint64_t bytes, const DLTensor *theirs, DLTensor *out);

/* Why the session runs on the CPU although the model was compiled for another unit: the error of smelt_open or of a run that ended
 * that; NULL: it does not. A model that was compiled with a fallback has the code for it. A session turns to it where smelt_open fails at
 * a unit (no driver, no device, no room for the weights), or where a call of the driver fails in a run, which is then done again by the CPU;
 * but not where a run's memory is short, nor while tensors of smelt_tensor lie on a unit, nor where a state lies there and cannot be read
 * back: that run fails. It does not turn back. */
const char *smelt_fallback(const smelt_session *s);
/* Of a model that was compiled for several processors: the one, of those that this processor can stand for, whose code the session
 * runs. smelt_open takes the best. */
const char *smelt_variant(const smelt_session *s);

/* Of a model that was compiled with a choice of units, or a fallback: bind each run to one of them. What smelt_open gives is
 * SMELT_POLICY_STATIC: the first that works, until it fails. The others open a unit when a run is first bound to it, and keep it open:
 *   LOAD     the unit that is expected to take the least time, by what runs of these shapes took. Of any 32 runs at most one is to find
 *            out how long another unit takes now, and such runs cost at most a sixteenth of the time of all.
 *   THERMAL  the same, but a unit is left while its thermal zone is above the limit, until it has cooled.
 *   BATTERY  on mains the same as LOAD; on battery the unit whose runs take the least energy, where the system counts that, else the first in
 *            the order of the target. Where the system does not tell, as LOAD.
 * Results agree within the tolerance of floats, and are not the same bits. State moves with the session, which costs time that is counted;
 * where a unit does not give it back, where tensors of smelt_tensor lie on a unit, and while the session is profiled or probed, it stays
 * where it is. A unit that fails in a run is left for good and that run is done again by another; one that lacks memory for these shapes is
 * left for some runs. What units are left is as with smelt_fallback. Sessions of smelt_fork have the policy and what it knows. */
smelt_status smelt_policy(smelt_session *s, const smelt_policy_options *how);
const char *smelt_policy_note(smelt_session *s); /* what keeps the policy from its work, or what it goes by; NULL: nothing. Until the next call */
size_t smelt_share_count(const smelt_session *s);
smelt_status smelt_share(smelt_session *s, size_t i, smelt_unit_share *out);

smelt_status smelt_memory_stats(const smelt_session *s, smelt_memory *out);
smelt_status smelt_trim(smelt_session *s); /* give back all that runs made but for the value of a state: arenas, session-owned
                                            * outputs (they are no longer valid), copies of inputs, the memory of a state that is
                                            * at its start, what open reserved; the next run asks anew */
/* Per-kernel totals since the last smelt_profile(s, 1): nanoseconds and launches by kernel id. names live as long as the
 * library. On a device every launch is then waited for, so the sum is more than a run without profile takes. */
smelt_status smelt_profile(smelt_session *s, int32_t enable);
size_t smelt_kernel_count(const smelt_session *s);
smelt_status smelt_kernel_stats(const smelt_session *s, size_t i, const char **name, uint64_t *ns, uint64_t *launches);
/* The same by the events of the device that ran them: ns without the launch and the wait, and of how many launches the device told;
 * 0 of them: it ran on the CPU, or the device has no events. */
smelt_status smelt_kernel_device_stats(const smelt_session *s, size_t i, uint64_t *ns, uint64_t *launches);
/* Code of a unit may have a kernel in several forms, each for devices that can do more. *form: what the one that it has got asks of the
 * device ("" for nothing), NULL where there is one form alone, or where the session has not opened that unit. *why: what keeps it from
 * each better one, "" where there is none. Both stay until the next call. */
smelt_status smelt_kernel_form(const smelt_session *s, size_t i, const char **form, const char **why);
/* For tools that look inside runs: after each launch of a kernel or library function, and before any other, a run calls fn; fn NULL
 * ends that. site: which launch of the entry's program it is (the manifest's `sites`). args: n_buffers addresses, then the kernel's dims.
 * What fn returns other than 0 ends the run, and smelt_run returns SMELT_DEVICE. Runs with a probe leave the state as it was; those without
 * do nothing for it. smelt_peek copies from such an address to the host; it may be called by fn alone, for as many bytes as lie there. */
smelt_status smelt_probe(smelt_session *s, smelt_probe_fn fn, void *context);
smelt_status smelt_peek(smelt_session *s, int64_t address, void *to, uint64_t bytes);
/* From any thread: ask a running session to stop before its next kernel; that smelt_run returns SMELT_DEVICE. */
void smelt_cancel(smelt_session *s);

/* Streams: stages that work at once, each on another item, in a thread of its own: models, functions of the caller's, on whatever
 * units. What is pushed first is popped first. An item's tensors lie in one of `depth` slots from its push until the pop after its own;
 * where all slots are taken, push waits. Memory of slots is taken at open where its size is bounded, and grows to its high-water mark
 * elsewhere. A stage may be of any model: det_as_stage and rec_as_stage make stages of one stream, which the functions of
 * either model run; it is closed by those that opened it. The reason of a call that failed is smelt_error(NULL)'s.
 *
 * A stage that runs this entry: all fields but inputs, which the caller points at as many wires as n_inputs says. Two stages cannot
 * share a session (smelt_fork makes another one), and while the stream is open nobody else runs it. */
smelt_status smelt_as_stage(smelt_session *s, smelt_stage *out);
/* Stages, wires and names are copied; what contexts point at has to stay until smelt_end_stream. */
smelt_status smelt_start_stream(const smelt_stream_options *options, smelt_stream **out);
/* Copy an item's tensors (of host memory, compact) into the stream. wait_ns: how long to wait for room, 0 not at all, negative for
 * ever; SMELT_AGAIN: there was none. One thread at a time pushes, and one, the same or another, pops. */
smelt_status smelt_push(smelt_stream *stream, const DLTensor *tensors, size_t n, int64_t wait_ns);
/* The next item's tensors, which stay until the next pop; SMELT_AGAIN: not within wait_ns; SMELT_END: after smelt_finish_stream, there is no
 * more. Any other status is that of a stage which failed on this item, the only one that is lost: a pop after it gives the next one. */
smelt_status smelt_pop(smelt_stream *stream, DLTensor *tensors, size_t n, int64_t wait_ns);
smelt_status smelt_finish_stream(smelt_stream *stream); /* no more will be pushed; not while a push is under way */
smelt_status smelt_ask_stage(const smelt_stream *stream, size_t stage, smelt_stage_stats *out);
/* Runs under way are cancelled and waited for, and items dropped; no other call may be under way. NULL: nothing happens. In a child of
 * a fork the stream can only be closed. */
void smelt_end_stream(smelt_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
