/* runner_crash.h: a fatal signal of the model -> a record of where it came from, written to the supervisor. */
#ifndef RUNNER_CRASH_H
#define RUNNER_CRASH_H
#include "runner_model.h"

typedef struct { int32_t number, code; uint64_t address, pc, offset; char object[NAME_SIZE]; } crash_record;

#pragma GCC visibility push(hidden)

/* From now on each fatal signal writes a crash_record to this pipe, then kills the process. */
void catch_fatal(int pipe);

#pragma GCC visibility pop
#endif
