/* runner_fence.h: a file in the device's store and a lease's fencing token -> whether this runner may still work.
 *
 * The file has the highest token that any runner here has seen: u64, then the crc32 of these 8 bytes; a file that is damaged counts
 * as one without a token. Beside it, with '.busy' at the end, lies a file that the runner with a worker keeps locked; its pid and
 * token are in it. So two runners never work at once, and one that hangs is ended by a newer lease. */
#ifndef RUNNER_FENCE_H
#define RUNNER_FENCE_H
#include "runner_frames.h"

typedef struct {
  int file, busy; /* -1: not open */
} fence_place;

#pragma GCC visibility push(hidden)

/* Open or make both files; NULL, or what went wrong. path: of n bytes, not terminated; 0 bytes: no file, and all tokens are let in. */
const char *fence_open(fence_place *p, const uint8_t *path, size_t n);
/* 1: the token is as new as any that was seen, and is the highest now; 0: a newer one was seen; -1: the file cannot be used. */
int fence_admit(fence_place *p, uint64_t token);
/* Whether a newer token than this one has been seen since. */
int fence_passed(const fence_place *p, uint64_t token);
/* Lock the device for this runner's worker, which `token` has been admitted for. A runner of an older token sees the newer one and
 * leaves, or is killed. 0, or -1 where it is still in use after a while: by a runner of the same lease, for one. */
int fence_occupy(fence_place *p, uint64_t token);
void fence_vacate(fence_place *p);

#pragma GCC visibility pop
#endif
