/* runner_machine.h: what the board is: emulated or not, its processors, their caches -> JSON. */
#ifndef RUNNER_MACHINE_H
#define RUNNER_MACHINE_H
#include "runner_frames.h"

#pragma GCC visibility push(hidden)

/* Where `word` begins in `in`; NULL where it is not. */
const char *find_text(const char *in, const char *word);
/* The members "emulation" and "hypervisor": why this program does not run on a processor of its own architecture, and which
 * hypervisor runs it; "" where nothing says so. An emulator may hide every sign. cpuinfo: the text of /proc/cpuinfo. */
void put_emulation(buffer *b, const char *sysfs, const char *cpuinfo);
/* The member "clusters": runs of equal processors, each with its caches. */
void put_clusters(buffer *b, const char *sysfs);

#pragma GCC visibility pop
#endif
