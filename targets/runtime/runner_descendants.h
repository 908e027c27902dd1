/* runner_descendants.h: everything that this process has started, and what that has started -> killed and waited for.
 *
 * Process groups and sessions do not matter: once this process is a subreaper, what its descendants leave behind becomes its own
 * child, whatever they do. */
#ifndef RUNNER_DESCENDANTS_H
#define RUNNER_DESCENDANTS_H
#include "runner_sys.h"

#pragma GCC visibility push(hidden)

/* From now on orphans among the descendants are children of this process. */
void adopt_orphans(void);
/* Kill all descendants and wait for them, but no longer than limit_ms: a process can hang in the kernel. */
void end_descendants(int limit_ms);

#pragma GCC visibility pop
#endif
