/* runner_condition.h: sysfs and procfs -> what may slow the device down now: heat, frequencies, cooling, other programs. */
#ifndef RUNNER_CONDITION_H
#define RUNNER_CONDITION_H
#include "runner_frames.h"

enum { PARTS_MAX = 256, CPUS_MAX = 256 };

typedef struct { /* what the device has, by the numbers in its names; listed once, since a look has to be short */
  const char *sysfs;
  uint32_t zones[PARTS_MAX], policies[PARTS_MAX], coolers[PARTS_MAX];
  size_t n_zones, n_policies, n_coolers;
  int by_cpu; /* an old kernel: its policies lie in the folders of the processors */
} hardware;

typedef struct { /* one look; NONE where the device does not say */
  int64_t millidegrees; /* of the hottest zone */
  int64_t khz;          /* of the processor that asks */
  int64_t limits_khz;   /* the sum over all policies: it falls when any of them is throttled */
  int64_t cooling;      /* the sum of the levels to which processors are slowed down */
} glance;

typedef struct { /* ticks of 10 ms since the device has started; of what a hypervisor took, and of all other work */
  size_t n;
  uint64_t busy[CPUS_MAX], stolen[CPUS_MAX];
} cpu_ticks;

#pragma GCC visibility push(hidden)

extern const int64_t NONE; /* below every real figure */

/* The numbers N of the entries "<prefix>N" of a folder, in ascending order; how many, at most `most`. */
size_t list_numbers(const char *folder, const char *prefix, uint32_t *numbers, size_t most);

/* sysfs is the root of the tree, normally /sys; the text must stay. */
void hardware_list(hardware *h, const char *sysfs);
void look(const hardware *h, uint32_t cpu, glance *g);
void read_ticks(cpu_ticks *t);

/* All zones, policies and cooling devices, as JSON. */
void put_condition(buffer *b, const char *sysfs);

#pragma GCC visibility pop
#endif
