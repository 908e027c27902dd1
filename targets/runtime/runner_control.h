/* runner_control.h: fixed conditions of measuring (governors, a frequency, processors), and the way back from them.
 *
 * What is changed in sysfs is first written into a record, which is locked while this runner lives and goes with a reboot, as
 * the changes do. The way back is taken when the runner ends, or by the next runner where this one was killed. */
#ifndef RUNNER_CONTROL_H
#define RUNNER_CONTROL_H
#include "runner_frames.h"

enum { CONTROL_CPUS = 1024 };

typedef struct { /* head of CONTROL; then the governor's name, which may be empty */
  uint32_t deadline_ms, zero;
  uint64_t khz;                   /* 0: frequencies are left to the governor */
  uint8_t cpus[CONTROL_CPUS / 8]; /* the processors of workers that start later, by bits; none: all */
} control_request;

#pragma GCC visibility push(hidden)

/* Go back to what was, then change what the request asks for; the answer's STATS: what was set, and what could not be. */
void control_apply(const char *sysfs, const control_request *r, const char *governor, size_t length, buffer *told);
/* At the start of a runner: what one that was killed has left changed is set back, unless another runner lives that did it. */
void control_recover(const char *sysfs);
/* At its end. */
void control_restore(void);
/* In a new worker: take the processors, and leave the record to the supervisor. */
void control_enter_worker(void);

#pragma GCC visibility pop
#endif
