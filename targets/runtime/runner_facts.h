/* runner_facts.h: facts about the device (procfs, sysfs, auxiliary vector) -> JSON. */
#ifndef RUNNER_FACTS_H
#define RUNNER_FACTS_H
#include "runner_frames.h"

#pragma GCC visibility push(hidden)

/* The first digits after key on its line of text; 0 without them. */
uint64_t number_after(const char *text, const char *key);
/* The kernel's value for this AT_ number; 0 without one. */
uint64_t auxiliary(unsigned long key);

/* The payload of HELLO. sysfs is the root of the tree (normally /sys). probe_units: with the devices of OpenCL, Vulkan and CUDA, for
 * which drivers are loaded. */
void put_facts(buffer *b, const char *sysfs, int probe_units);

#pragma GCC visibility pop
#endif
