/* driver.h: the table of functions that a driver of a GPU or an NPU gives the runtime; the driver lies in its target's folder. */
#ifndef SMELT_DRIVER_H
#define SMELT_DRIVER_H
#include "smelt_abi.h"

/* A launch, or (kernel -1) a copy of `groups` bytes from buffers[1] to buffers[0]. */
typedef struct {
  int32_t kernel;
  int64_t groups;
  const smelt_place *buffers;
  const int64_t *dims;
} smelt_command;

/* When bytes that come down are to be at the host: when `finish` returns, and not written there before, since what a device that hangs
 * does later must not be seen; when `finish` returns, or as soon as the work before has ended, since the memory is the session's; at
 * once, so that the call waits. */
enum { SMELT_LAST = 0, SMELT_NOW = 1, SMELT_SOON = 2 };
/* Not; while the host looks at some of it (from `map` to `unmap`) the unit has no work; or none that uses the same memory; not, and every
 * download to memory that is not locked waits for all work before it, so that it is asked for when its bytes are needed. */
enum { SMELT_SHARES_NOT = 0, SMELT_SHARES_IDLE = 1, SMELT_SHARES_APART = 2, SMELT_READS_WAIT = 3 };

/* Errors. A function that returns a code gives 0 for success, or the device's own number, which the runtime puts into its message
 * with what the table's `told` says of it. One that returns a status has called rt_error. */
struct smelt_driver {
  const char *name;  /* "OpenCL" */
  /* What a number of its own says, or where that is explained, and what to do: "see CL_* in CL/cl.h, or compile without +opencl". */
  const char *(*told)(int32_t code);

  /* Load the vendor's library, choose a device, and make the kernels of `unit` ready from its code. *state is what the other
   * functions get; it is set as soon as `close` has something to give back, also on failure. Returns a status. */
  int32_t (*open)(smelt_rt *rt, uint32_t unit, void **state);
  /* Give everything back. Not called in a child of fork: drivers do not survive that. */
  void (*close)(void *state);
  /* The device's name, for people. */
  const char *(*device)(const void *state);

  /* Memory of at least 1 byte, its contents undefined or those of `contents`: weights, which nobody writes, and which stay where they
   * are until `release`, so that a device that shares the host's memory need not copy them. NULL and *code on failure.
   * `release` may come before work that uses the memory has ended. */
  void *(*allocate)(void *state, size_t bytes, const void *contents, int32_t *code);
  void (*release)(void *state, void *memory);

  /* In the order in which they are asked for, after and before the launches around them. An upload that waits has read `host` when it
   * returns; of one that does not, `host` stays as it is until `finish`. */
  int32_t (*upload)(void *state, void *memory, size_t offset, const void *host, size_t bytes, int wait);
  /* wait: one of SMELT_LAST, SMELT_SOON, SMELT_NOW. */
  int32_t (*download)(void *state, void *memory, size_t offset, void *host, size_t bytes, int wait);
  /* Within the device; the ranges do not overlap. */
  int32_t (*copy)(void *state, void *to, size_t to_offset, void *from, size_t from_offset, size_t bytes);
  /* The first `bytes` of a memory as the host sees them, after all work before, until `unmap`, which stands before all work after it;
   * NULL and *code on failure. */
  void *(*map)(void *state, void *memory, size_t bytes, int writes, int32_t *code);
  int32_t (*unmap)(void *state, void *memory, void *mapped);

  /* Start kernel `id` of the model. buffers: memory and offset of each; dims: the kernel's sizes. */
  int32_t (*launch)(void *state, int32_t id, const smelt_place *buffers, const int64_t *dims, int64_t groups);
  /* Wait until everything is done. */
  int32_t (*finish)(void *state);

  /* ---- optional, NULL where a device has no such thing ---- */
  /* Whether the memory is the host's, so that `map` gives it itself and copies nothing: SMELT_SHARES_NOT, .. NULL: it is not. */
  int32_t (*shares)(const void *state);
  /* In eighths, how much of what `chain_groups` lets a group do a launch is worth on this device; 0: it has no kernels that do several
   * others in one launch, since its compiler refused them. NULL: all. */
  int32_t (*chains)(const void *state);
  /* Start what has been asked for since; NULL: each launch, copy and transfer starts when it is asked for. `finish`, `map`,
   * `reach` and transfers that wait start it, too. */
  int32_t (*flush)(void *state);
  /* Launches and copies that run one after the other, made ready to be started by one call of `submit`, again and again, also while
   * the last time is under way. What it is given is gone after the call; the memory stays until `forget`. NULL: this device, or
   * this list, cannot be recorded, and the runtime does not ask again. The three are there, or none. */
  void *(*record)(void *state, const smelt_command *commands, uint32_t n);
  int32_t (*submit)(void *state, void *list);
  /* Give a list back, of which no submission is under way. */
  void (*forget)(void *state, void *list);
  /* The device's own times of launches. `clock` begins to take them (on) or ends, while nothing is under way; other than 0: this device
   * has none. `elapsed`, after `finish`: the ns of the launches since it was last asked, by the device's events; -1: it does not tell.
   * It waits for nothing. Both are there, or neither. */
  int32_t (*clock)(void *state, int on);
  int64_t (*elapsed)(void *state);
  /* Points in what was asked for, numbered from 1 on in a row. `mark`: point `number` is behind all that was asked for until now.
   * `reach`: start all that has been asked for, and wait until what is before a point has ended, its downloads of SMELT_SOON among it,
   * while the rest goes on; a driver that no longer knows a point waits for a later one. Both are there, or neither: then the runtime waits for everything. */
  int32_t (*mark)(void *state, uint64_t number);
  int32_t (*reach)(void *state, uint64_t number);
  /* Memory of the host that the device reaches by itself (page-locked): what goes up from there, and SMELT_SOON down to it, is not
   * waited for by the call. NULL: it gives none. `unlock`: it is given back, and nothing is under way there. Both, or neither. */
  void *(*lock)(void *state, size_t bytes);
  void (*unlock)(void *state, void *host);
  /* Where the unit's code has kernel `id` in several forms, each for devices that can do more: what the one that it has got asks of the
   * device, "" where it asks nothing; *why: what keeps it from each better one, "" where there is none. Both stay until the next call.
   * NULL: the kernel has one form alone. */
  const char *(*form)(void *state, int32_t id, const char **why);
  /* What other libraries know a memory by, as DLPack has it: where it lies goes to *device, the `data` there is the result. */
  void *(*known)(void *state, void *memory, DLDevice *device);
  /* The first `bytes` from *data on, memory of another library, which has ended what it did there by its default stream; it stays that
   * library's, and `release` lets go of it. NULL, and *why, where this unit cannot use it. */
  void *(*adopt)(void *state, DLDevice device, void *data, size_t bytes, const char **why);
};

/* ---- what the runtime has for drivers ---- */
/* The code of a wait that took longer than smelt_rt_patience. After it the driver gives this code to every call at once, and `release`
 * and `close` leave with the device what it may be using. */
enum { SMELT_HANGS = -20001 };
/* How long to wait for a device, in ns: SMELT_DEVICE_SECONDS, else ten minutes; UINT64_MAX: for ever, which is its 0. */
uint64_t smelt_rt_patience(void);
/* Ask until the answer is no longer above 0, but no longer than that; the answer, or SMELT_HANGS. */
int32_t smelt_rt_poll(int32_t (*ask)(void *), void *state);
/* The same without taking a processor meanwhile, for a driver whose work is done by processors: `told` is a 32-bit word of 0, which
 * becomes another and is woken when the answer has changed; it is also asked now and then. */
int32_t smelt_rt_sleep(int32_t (*ask)(void *), void *state, const void *told);
/* Code that a device refused, and the driver's log, go to files of the cache folder, for whoever wants to find out why. told: what an
 * error says of that, "" where there is no such folder. ending: of the file with the code. */
void smelt_rt_refused(const char *ending, const void *code, size_t n, const char *log, char *told, size_t room);
/* What this driver, in this or another process, gave smelt_rt_cache for the code of the unit and an equal key; NULL: nothing. To
 * be freed. key: all else that it depends on: the device, the versions of driver and compiler, options. */
void *smelt_rt_cached(smelt_rt *rt, uint32_t unit, const char *key, size_t *bytes);
/* What was found was of no use after all, as after an update that no version tells of; the driver makes it again. */
void smelt_rt_useless(smelt_rt *rt);
void smelt_rt_cache(smelt_rt *rt, uint32_t unit, const char *key, const void *bytes, size_t n);
#endif
