/* runner_probe.h: the request PROBE -> what a run launches, or what lies in memory right after some of its launches. */
#ifndef RUNNER_PROBE_H
#define RUNNER_PROBE_H
#include "runner_worker.h"

#pragma GCC visibility push(hidden)

void on_probe(worker *w);

#pragma GCC visibility pop
#endif
