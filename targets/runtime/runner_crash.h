/* runner_crash.h: a fatal signal of the model -> a record of where it came from, written to the supervisor. */
#ifndef RUNNER_CRASH_H
#define RUNNER_CRASH_H
#include "runner_model.h"

enum { CRASH_FRAMES = 32 };

/* object, offset: the file that holds pc, and where in it. frames: offsets into the model's own code that lie on the stack, from the
 * innermost out. */
typedef struct {
  int32_t number, code;
  uint64_t address, pc, offset, count, frames[CRASH_FRAMES];
  char object[NAME_SIZE];
} crash_record;

#pragma GCC visibility push(hidden)

/* From now on each fatal signal writes a crash_record to this pipe, then kills the process. */
void catch_fatal(int pipe);

/* The system's log from now on; -1 where it may not be read. */
int kernel_log_open(void);
/* What it has got since, up to the last `cap` bytes. */
size_t kernel_log_read(int fd, char *to, size_t cap);

#pragma GCC visibility pop
#endif
