/* runner_facts.h: facts about the device (procfs, sysfs, auxiliary vector) -> JSON. */
#ifndef RUNNER_FACTS_H
#define RUNNER_FACTS_H
#include "runner_frames.h"

#pragma GCC visibility push(hidden)

/* The first digits after key on its line of text; 0 without them. */
uint64_t number_after(const char *text, const char *key);
/* The kernel's value for this AT_ number; 0 without one. */
uint64_t auxiliary(unsigned long key);

/* What may change while a run goes on, so that the host can judge whether its times are valid. -1: the device does not say.
 * sysfs is the root of the tree (normally /sys). */
void put_condition(buffer *b, const char *sysfs);
/* The payload of HELLO. probe_units: with the devices of OpenCL, Vulkan and CUDA, for which drivers are loaded. */
void put_facts(buffer *b, const char *sysfs, int probe_units);

#pragma GCC visibility pop
#endif
