/* runner_gauge.h: what this process was given of the processors and what it was refused; telemetry of the device between samples. */
#ifndef RUNNER_GAUGE_H
#define RUNNER_GAUGE_H
#include "runner_condition.h"

enum { TASKS_MAX = 64, READINGS_MAX = 256 };

typedef struct { /* of SAMPLES frames: the time of `inner` runs, and what happened to the process meanwhile */
  uint64_t ns;
  uint64_t cpu_ns;    /* processor time of all its threads */
  uint64_t wait_ns;   /* that threads were ready to run and had no processor; UINT64_MAX: the kernel does not say */
  uint32_t preempted; /* how often another program took the processor of one */
  uint32_t cpu;       /* the processor on which the sample ended */
} sample;

typedef struct {
  int fds[TASKS_MAX];
  uint64_t waited[TASKS_MAX];
  size_t n;
} gauge;

typedef struct {
  uint64_t cpu_ns, wait_ns, preempted;
} usage;

typedef struct { /* one reading of the telemetry; ticks since the first one */
  uint64_t at_ns;
  uint32_t sample; /* how many samples were taken by then */
  uint32_t busy[CPUS_MAX], stolen[CPUS_MAX];
  glance seen;
} reading;

typedef struct {
  hardware parts;
  cpu_ticks first, now;
  reading *readings; /* READINGS_MAX of them */
  size_t n;
  uint64_t start, next, step; /* ns */
} telemetry;

#pragma GCC visibility push(hidden)

/* Follow the threads that the process has now. Those that start later count for cpu_ns and preempted alone. */
void gauge_open(gauge *g);
void gauge_close(gauge *g);
void gauge_read(gauge *g, usage *u);
void sample_end(gauge *g, const usage *before, sample *s);

/* 0, or -1 without memory. The first reading is taken at once. */
int telemetry_start(telemetry *t, const char *sysfs);
/* Between two samples: a reading, if it is time for one. Of long runs every second one is dropped, again and again. */
void telemetry_tick(telemetry *t, uint64_t now, size_t samples);
void telemetry_take(telemetry *t, size_t samples);
void put_telemetry(buffer *b, const telemetry *t);
void telemetry_end(telemetry *t);

#pragma GCC visibility pop
#endif
