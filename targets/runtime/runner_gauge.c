/* runner_gauge.c: clocks, schedstat and rusage of this process -> what each sample was refused; telemetry between samples. */
#include "runner_gauge.h"

#include "runner_facts.h"

static const uint64_t STEP = 100000000; /* ns between readings at first; the kernel's ticks are 10 ms */

void gauge_open(gauge *g) {
  static buffer path;
  uint32_t tasks[TASKS_MAX];
  size_t n = list_numbers("/proc/self/task", "", tasks, TASKS_MAX);
  g->n = 0;
  for (size_t i = 0; i < n; i++) {
    path.len = 0;
    put_format(&path, "/proc/self/task/%u/schedstat", U(tasks[i]));
    put_n(&path, "", 1);
    int fd = sys_open((const char *)path.at, SYS_O_RDONLY);
    if (fd < 0) continue;
    g->waited[g->n] = 0;
    g->fds[g->n++] = fd;
  }
}

void gauge_close(gauge *g) {
  for (size_t i = 0; i < g->n; i++) sys_close(g->fds[i]);
  g->n = 0;
}

void gauge_read(gauge *g, usage *u) {
  long counts[18];
  char text[96];
  memset(counts, 0, sizeof counts);
  u->wait_ns = 0;
  for (size_t i = 0; i < g->n; i++) { /* "ran waited slices"; a thread that has ended keeps what it had */
    long got = sys(NR_pread64, g->fds[i], (long)text, sizeof text - 1, 0, 0, 0);
    text[got > 0 ? got : 0] = 0;
    const char *p = text;
    while (*p && *p != ' ') p++;
    uint64_t waited = *p ? number_after(p, "") : 0;
    if (waited > g->waited[i]) g->waited[i] = waited;
    u->wait_ns += g->waited[i];
  }
  sys(NR_getrusage, 0, (long)counts, 0, 0, 0, 0);
  u->preempted = U(counts[17]);
  u->cpu_ns = sys_clock(SYS_CLOCK_PROCESS);
}

void sample_end(gauge *g, const usage *before, sample *s) {
  usage after;
  uint32_t cpu = 0;
  gauge_read(g, &after);
  sys(NR_getcpu, (long)&cpu, 0, 0, 0, 0, 0);
  s->cpu_ns = after.cpu_ns - before->cpu_ns;
  s->wait_ns = g->n ? after.wait_ns - before->wait_ns : UINT64_MAX;
  s->preempted = (uint32_t)(after.preempted - before->preempted);
  s->cpu = cpu;
}

/* ---- telemetry ---- */
int telemetry_start(telemetry *t, const char *sysfs) {
  memset(t, 0, sizeof *t);
  t->readings = sys_map(READINGS_MAX * sizeof *t->readings);
  if (!t->readings) return -1;
  hardware_list(&t->parts, sysfs);
  read_ticks(&t->first);
  t->step = STEP;
  t->start = sys_now();
  telemetry_take(t, 0);
  return 0;
}

static void thin_out(telemetry *t) { /* the first reading stays, since ticks count from there */
  for (size_t i = 1; 2 * i < t->n; i++) t->readings[i] = t->readings[2 * i];
  t->n = (t->n + 1) / 2;
  t->step *= 2;
}

void telemetry_take(telemetry *t, size_t samples) {
  uint32_t cpu = 0;
  if (t->n == READINGS_MAX) thin_out(t);
  reading *r = &t->readings[t->n++];
  sys(NR_getcpu, (long)&cpu, 0, 0, 0, 0, 0);
  read_ticks(&t->now);
  for (size_t i = 0; i < t->now.n && i < t->first.n; i++) {
    r->busy[i] = (uint32_t)(t->now.busy[i] - t->first.busy[i]);
    r->stolen[i] = (uint32_t)(t->now.stolen[i] - t->first.stolen[i]);
  }
  look(&t->parts, cpu, &r->seen);
  r->sample = (uint32_t)samples;
  uint64_t now = sys_now();
  r->at_ns = now - t->start;
  t->next = now + t->step;
}

void telemetry_tick(telemetry *t, uint64_t now, size_t samples) {
  if (now >= t->next) telemetry_take(t, samples);
}

void put_telemetry(buffer *b, const telemetry *t) {
  put(b, "[");
  for (size_t i = 0; i < t->n; i++) {
    const reading *r = &t->readings[i];
    put_format(b, "%s{\"at_ns\":%u,\"sample\":%u,\"millidegrees\":%i,\"khz\":%i,\"limits_khz\":%i,\"cooling\":%i", i ? "," : "", r->at_ns,
               U(r->sample), r->seen.millidegrees, r->seen.khz, r->seen.limits_khz, r->seen.cooling);
    for (int stolen = 0; stolen < 2; stolen++) {
      put(b, stolen ? ",\"stolen\":[" : ",\"busy\":[");
      for (size_t k = 0; k < t->first.n; k++) put_format(b, "%s%u", k ? "," : "", U(stolen ? r->stolen[k] : r->busy[k]));
      put(b, "]");
    }
    put(b, "}");
  }
  put(b, "]");
}

void telemetry_end(telemetry *t) {
  if (t->readings) sys_unmap(t->readings, READINGS_MAX * sizeof *t->readings);
  t->readings = NULL;
}
