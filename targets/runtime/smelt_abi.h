/* smelt_abi.h: the ABI between generated code and the runtime. Not for users. */
#ifndef SMELT_ABI_H
#define SMELT_ABI_H
#ifndef SMELT_PREFIX
#define SMELT_PREFIX smelt /* the link gives each model's copy its own names */
#endif
#include "smelt.h"

#define SMELT_ABI_VERSION 16 /* that of the object and of the runtime, which are linked together, are the same */

typedef struct smelt_rt smelt_rt; /* the runtime's side of one entry of a session */

/* An address in generated code is an int64: a pointer in a model that runs on the CPU alone; (space << 48 | byte offset) in one
 * with other units, where a space is one piece of memory at one unit (device.c). Generated code only ever adds byte offsets to
 * it. Weights, arenas and session-owned outputs start on 64 bytes at least; an input or a caller's output is aligned to its
 * element (the runtime copies one that is not). At a unit besides the CPU every buffer of a kernel starts on 64 bytes.
 *
 * The sign says that a place at such a unit is meant as the host sees it: kernels of the CPU get no other address of the unit's. What
 * lies there is the same once smelt_rt_copy has handed it over, from the one address to the other: where the unit's memory is the
 * host's these are the same bytes, else the host has a copy of the space. */
typedef int64_t smelt_addr;

/* An address as a driver gets it. */
typedef struct {
  void *memory;
  uint64_t offset;
} smelt_place;

/* What runs a unit's kernels: see driver.h. */
typedef struct smelt_driver smelt_driver;

/* A unit besides the CPU. The object that has kernels for it names the driver, so that linking takes that in. */
typedef struct {
  const smelt_driver *driver;
  const void *code; /* of all its kernels; what it is (OpenCL C, SPIR-V, PTX) is between target and driver */
  uint64_t code_bytes;
  uint64_t weights_at, weights_bytes; /* the part of the weights that its kernels read; their addresses count from its start */
} smelt_unit_desc;

/* One parallel region of a kernel. args: the buffers' addresses, then the kernel's dims, all int64.
 * Runs groups lo..hi-1 of its outermost (flattened) group space. place: which of the places that threads have in
 * the kernel's workspace is this one's; below the groups of the launch and below SMELT_MAX_THREADS. */
enum { SMELT_MAX_THREADS = 128 };
typedef void (*smelt_kernel_fn)(const int64_t *args, int64_t lo, int64_t hi, int64_t place);

/* A kernel that does one and its neighbours in one launch of one group, as that one finds it: at its dim `dim` is 1 where the part takes
 * part, else 0. at: for each buffer of the part which of the chain's buffers is the memory, and which dim the offset there; then for each
 * dim of the part which one of the chain. Parts run in the order of `dim`; what they have in common they must be given alike. */
typedef struct {
  int32_t kernel;
  int32_t dim;
  const int32_t *at;
} smelt_chain_part;

typedef struct {
  const char *name;
  smelt_kernel_fn fn;      /* CPU; on other units NULL, or what the driver calls */
  int32_t unit;            /* 0 the CPU, k the k-th of the model's units */
  int32_t n_buffers;       /* the first n_read of them are read alone */
  int32_t n_read;
  int32_t n_dims;
  int32_t lane_count;      /* work-items of a group, 1 on the CPU */
  int32_t grain;           /* least groups that are worth a claim by a thread */
  int32_t group_bytes;     /* memory of a group that its code does not declare, to be asked for at each launch */
  int32_t n_chains;        /* what this one is a part of */
  const smelt_chain_part *chains;
  int64_t chain_groups;    /* a launch of more groups is one of its own; that of devices where launches are cheap, of less */
} smelt_kernel_desc;

typedef struct {
  const char *name;
  DLDataType dtype;
  int32_t rank;
} smelt_tensor_desc;

/* A run-time check: `text` has the whole message, with names in it: {got}, {want}, {slot 7} for the number in slot
 * 7 and {check 3} for the text of check 3, in which no further check is named. */
typedef struct {
  int32_t status;          /* smelt_status */
  int32_t reserved;
  const char *text;
} smelt_check_desc;

/* A function of a library that the device may have. Loaded at its first call, never before. */
enum { SMELT_LIBRARY_SGEMM = 1 }; /* args: a, b, c, m, n, k: f32 c[m, n] = a[m, k] * b[k, n], all row-major and compact */
typedef struct {
  const char *files;       /* file names to try, ';' between them */
  const char *symbol;
  int32_t adapter;         /* SMELT_LIBRARY_*: how args become the function's arguments */
  int32_t reserved;
} smelt_library_desc;

/* What runs leave for later ones: inputs of entries that outputs of entries replace. */
typedef struct {
  const char *name;        /* of the inputs that read it */
  DLDataType dtype;
  int32_t rank;
  uint32_t reserved;
  int32_t axis;            /* along which it has room: in memory this extent is always `room`, with the value's rows in front */
  uint64_t most;           /* bytes that it may have, whatever the dims are within their bounds; 0: nobody knows */
  int64_t room;            /* rows; 0: no axis has room, the value is compact */
} smelt_state_desc;

/* A function of the model: a graph with inputs and outputs of its own. */
typedef struct {
  const char *name;
  uint32_t n_inputs, n_outputs, n_checks;
  uint32_t n_slots;        /* int64 that plan and run keep: symbols, sizes, offsets */
  uint32_t arena;          /* of the model's arenas, that which `run` is given */
  /* The last so many inputs are state, and the last so many outputs replace state (state.c): the states' numbers. */
  uint32_t n_reads, n_writes;
  const uint32_t *reads, *writes;
  /* Per replaced state, whether the run writes rows behind those that it reads, in the same memory; NULL: none. */
  const uint32_t *in_place;
  const smelt_tensor_desc *inputs, *outputs;
  const smelt_check_desc *checks;
  /* The unit in whose memory each input and output is, one after the other; NULL: all at unit 1, if there is one. */
  const uint32_t *homes;
  /* Whether the host looks at it there; NULL: at none. */
  const uint32_t *seen;
  /* The most bytes that each input and output may take, whatever the dims are within their bounds, one after the other; 0: nobody
   * knows. NULL: of none. smelt_open reserves them where they are the session's, and those of arenas and states. */
  const uint64_t *most;
  /* Bind symbols from the input shapes, check them, compute sizes and offsets into slots. Pure: no launch.
   * Returns 0, or a status after smelt_rt_fail. slots[0] = bytes of its first arena. Called when an input shape changed. */
  int32_t (*plan)(smelt_rt *rt, const int64_t *const *shapes, int64_t *slots);
  /* Launch everything. arena = address of its first arena; weights: those in the memory of that arena's unit. */
  int32_t (*run)(smelt_rt *rt, int64_t *slots, const smelt_addr *inputs, smelt_addr weights, smelt_addr arena);
} smelt_entry_desc;

/* A way to run all entries: code of its own for each of them. */
typedef struct {
  const char *name;         /* the processor that it was compiled for, for people */
  const char *cpu_features; /* that its code uses, LLVM's names with ',' between them; NULL: none */
  uint64_t units;           /* whose kernels it launches: bit k is unit k + 1; 0: those of the CPU alone */
  const uint32_t *states;   /* the unit in whose memory each state is; NULL: all at the CPU */
} smelt_variant_desc;

typedef struct smelt_model_desc {
  uint32_t abi_version;
  uint32_t n_entries;      /* of all variants: those of the first, then as many of the second, in the same order */
  uint32_t n_variants;     /* smelt_open takes the first that fits the processor and whose units are there */
  uint32_t n_kernels, n_arenas, n_states, n_libraries, n_units;
  int32_t default_threads; /* 0: as many as the machine has */
  int32_t keep_subnormals; /* 0: subnormal operands and results of floats are 0, where a unit can do that */
  const char *name;        /* for people */
  const char *prefix;      /* "det": its functions are det_open and so on, its weights lie in det.weights */
  const smelt_entry_desc *entries; /* of different names in a variant; smelt_open gives the first */
  const smelt_variant_desc *variants;
  const smelt_kernel_desc *kernels;
  const smelt_state_desc *states;
  const smelt_library_desc *libraries;
  const smelt_unit_desc *units;    /* units 1 .. n_units */
  const uint32_t *homes;           /* the unit of each arena; NULL: all at unit 1, if there is one */
  const uint32_t *seen;            /* whether the host looks at each arena there; NULL: at none */
  const uint64_t *most;            /* the most bytes of each arena, as those of tensors above */
  uint64_t weights_bytes;          /* 0: none; else the file has these, and then their hash */
  uint8_t weights_sha256[32];
  uint64_t weights_sums[4];        /* of all bytes, and of samples: see weights.c */
} smelt_model_desc;

extern const smelt_model_desc smelt_model; /* defined by the generated object */

/* ---- what generated code calls; each is defined in the runtime. After an address 0 return any status: the runtime knows
 * the right one. A launch after a failure does nothing but return it. ---- */
/* In plan: a state that has no value yet starts with this extent at this axis, which shapes has from then on; of others nothing
 * changes. Returns 0 or a status. */
int32_t smelt_rt_start(smelt_rt *rt, int32_t input, int32_t axis, int64_t extent);
/* Launch kernel `id` over `groups` groups (0: nothing to do). site: which of the entry's launches and library calls this is, from 0 in
 * the order of its program. Returns 0 or a status. */
int32_t smelt_rt_launch(smelt_rt *rt, int32_t id, const int64_t *args, int64_t groups, int32_t site);
/* A check failed, or a size overflowed: format its text. Returns the check's status, to be returned by the caller. */
int32_t smelt_rt_fail(smelt_rt *rt, int32_t check, int64_t got, int64_t want);
/* A further arena (1 ..), whose size is only known in the middle of a run. 0 on failure. What it held is lost when it grows. */
smelt_addr smelt_rt_reserve(smelt_rt *rt, int32_t arena, int64_t bytes);
/* The same, and what it held stays when it grows; it grows by half at least. */
smelt_addr smelt_rt_grow(smelt_rt *rt, int32_t arena, int64_t bytes);
/* Where output i of this shape is to be written (the caller's memory or the session's). 0 on failure. */
smelt_addr smelt_rt_output(smelt_rt *rt, int32_t i, const int64_t *shape);
/* One integer element read back by the host; width 1, 2, 4 or 8 bytes, is_signed 0 or 1. Waits for the device. */
int64_t smelt_rt_read(smelt_rt *rt, smelt_addr at, int32_t width, int32_t is_signed);
/* One integer element written by the host; width 1, 2, 4 or 8 bytes. */
int32_t smelt_rt_write(smelt_rt *rt, smelt_addr at, int64_t value, int32_t width);
/* Round `round` (from 0) of a loop begins. A status when the run was cancelled, or at SMELT_MAX_ROUNDS: a loop that never
 * ends must not take the caller with it. */
#ifndef SMELT_MAX_ROUNDS
#define SMELT_MAX_ROUNDS 100000000
#endif
int32_t smelt_rt_round(smelt_rt *rt, int64_t round);
/* A loop that nothing ends earlier begins: a status where it has more rounds than that. */
int32_t smelt_rt_rounds(smelt_rt *rt, int64_t rounds);
/* Another number each time, 0 .. 2^62 - 1; no two sessions start alike. */
int64_t smelt_rt_random(smelt_rt *rt);
/* Where the weights are in the memory of a unit. 0 on failure. */
smelt_addr smelt_rt_weights(smelt_rt *rt, int32_t unit);
/* Copy between two addresses, of one unit or of two; or hand over, from a place at a unit to how the host sees it, or back. */
int32_t smelt_rt_copy(smelt_rt *rt, smelt_addr to, smelt_addr from, int64_t bytes);
/* An external library function was chosen for a node (library call): args as for a kernel. */
int32_t smelt_rt_library(smelt_rt *rt, int32_t id, const int64_t *args, int32_t site);
#endif
