/* runner_supervisor.c: the poll loop, the worker's life and the frames that pass between host and worker. */
#include "runner_supervisor.h"

#include "runner_control.h"
#include "runner_crash.h"
#include "runner_descendants.h"
#include "runner_facts.h"
#include "runner_fence.h"
#include "runner_worker.h"

enum { TAIL_MAX = 2048, LOG_MAX = 1 << 20, QUEUE_FULL = 4 << 20 };
static const uint64_t MILLI = 1000000, IDLE_DEFAULT_MS = 15 * 60 * 1000, SILENCE_BEFORE_HELLO_MS = 60 * 1000, NEVER = UINT64_MAX;

typedef struct { /* a frame on its way in */
  buffer bytes;
  frame head;
  const char *broken; /* what is wrong with the stream, once something is */
} reader;

typedef struct {
  const char *sysfs;
  reader host, child;
  fence_place place;
  buffer out, to_child; /* queues */
  int pid;              /* of the worker; 0: none */
  int ended, end_status; /* it has ended and was waited for */
  int in, answers, log, crash; /* the supervisor's ends of the worker's pipes, -1 when closed */
  int kernel_log;       /* -1: it may not be read */
  uint8_t busy;         /* the request that the worker is at; 0: none */
  uint64_t job, fence, highest_fence, deadline, memory_limit, logged, page_size;
  uint64_t last_heard, idle_ns;     /* when the last request came, and after how long without any the runner ends */
  uint64_t last_moved, silence_ns;  /* the same of bytes that pass from or to the host */
  uint64_t oom_kills;               /* of the system, when the worker began */
  char stage[64], tail[TAIL_MAX];
  size_t tail_len;
  buffer text;
  int done, exit_code;
} supervisor;

/* ---- to the host ---- */
static void tell(supervisor *s, uint8_t type, const void *payload, size_t len) {
  if (frame_add(&s->out, type, s->job, s->fence, payload, len)) {
    s->done = 1;
    s->exit_code = EXIT_PROTOCOL;
  }
}

static void answer(supervisor *s, const char *status, uint8_t request, const char *text) {
  buffer b = {0};
  end_text(&b, status, request, text, 0, 0);
  tell(s, FRAME_END, b.at, b.len);
  if (b.cap) sys_unmap(b.at, b.cap);
  s->busy = 0;
}

static const char *composed(supervisor *s) { /* s->text as a C string */
  buffer_add(&s->text, "", 1);
  s->text.len--;
  return (const char *)s->text.at;
}
static buffer *compose(supervisor *s) {
  s->text.pos = s->text.len = 0;
  return &s->text;
}

/* The stream cannot be followed any more: say so, and leave once it is written. */
static void give_up(supervisor *s, const char *why) {
  answer(s, "protocol", 0, why);
  s->done = 1;
  s->exit_code = EXIT_PROTOCOL;
}

/* ---- the worker's life ---- */
/* How many processes the system has killed for want of memory; 0 when it does not say. */
static uint64_t oom_kills(void) {
  static char text[32768];
  return read_small("/proc/vmstat", text, sizeof text) ? number_after(text, "\noom_kill ") : 0;
}

static void close_end(int *fd) {
  if (*fd >= 0) sys_close(*fd);
  *fd = -1;
}

static void child_start(supervisor *s, int ends[4][2], int parent) {
  fence_open(&s->place, NULL, 0); /* a lock lives as long as any copy of its descriptor */
  int keep[3] = {ends[0][0], ends[1][1], ends[3][1]}, null = sys_open("/dev/null", SYS_O_RDWR);
  sys_prctl(1 /* PR_SET_PDEATHSIG */, SYS_SIGKILL);
  sys_prctl(38 /* PR_SET_NO_NEW_PRIVS */, 1);
  if (sys_getppid() != parent) sys_exit(0);
  sys_setpgid(0, 0);
  sys_on_signal(SYS_SIGPIPE, NULL, 0);
  sys_on_signal(SYS_SIGCHLD, NULL, 0);
  if (null >= 0) sys_dup_to(null, 0);
  sys_dup_to(ends[2][1], 1); /* what the model prints becomes LOG; stdout carries frames only */
  sys_dup_to(ends[2][1], 2);
  for (int i = 0; i < 4; i++) sys_close(ends[i][i == 0]);
  sys_close(ends[2][1]);
  worker_main(keep[0], keep[1], keep[2], s->sysfs);
}

static int worker_start(supervisor *s) {
  int ends[4][2] = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}}; /* to the worker, its answers, its prints, its crash record */
  int self = sys_getpid(), made = 0;
  while (made < 4 && sys_pipe(ends[made]) >= 0) made++;
  int pid = made == 4 ? fork() : -1;
  if (pid < 0) {
    for (int i = 0; i < 8; i++) close_end(&ends[i / 2][i % 2]);
    return -1;
  }
  if (pid == 0) child_start(s, ends, self);
  sys_setpgid(pid, pid); /* here too: whoever comes first */
  s->pid = pid;
  s->ended = 0;
  s->in = ends[0][1];
  s->answers = ends[1][0];
  s->log = ends[2][0];
  s->crash = ends[3][0];
  sys_close(ends[0][0]);
  for (int i = 1; i < 4; i++) sys_close(ends[i][1]);
  sys_nonblocking(s->in);
  sys_nonblocking(s->answers);
  sys_nonblocking(s->log);
  sys_nonblocking(s->crash);
  sys_widen(s->in);
  sys_widen(s->answers);
  s->child = (reader){s->child.bytes, {0}, NULL};
  s->child.bytes.pos = s->child.bytes.len = s->to_child.pos = s->to_child.len = 0;
  s->stage[0] = 0;
  s->tail_len = 0;
  s->oom_kills = oom_kills();
  return 0;
}

/* Take what the model printed; at most LOG_MAX bytes a request are passed on, the tail is kept for a crash. */
static void pump_log(supervisor *s) {
  char piece[4096];
  long n;
  while (s->log >= 0 && s->out.len - s->out.pos < QUEUE_FULL && (n = sys_read(s->log, piece, sizeof piece)) != -SYS_EAGAIN) {
    if (n == -SYS_EINTR) continue;
    if (n <= 0) {
      close_end(&s->log);
      return;
    }
    size_t keep = TAIL_MAX - (size_t)n < s->tail_len && n < TAIL_MAX ? TAIL_MAX - (size_t)n : s->tail_len;
    if (n >= TAIL_MAX) keep = 0;
    memmove(s->tail, s->tail + s->tail_len - keep, keep);
    size_t fresh_bytes = n < TAIL_MAX ? (size_t)n : TAIL_MAX;
    memcpy(s->tail + keep, piece + (size_t)n - fresh_bytes, fresh_bytes);
    s->tail_len = keep + fresh_bytes;
    if (s->logged < LOG_MAX) tell(s, FRAME_LOG, piece, (size_t)n);
    s->logged += (uint64_t)n;
    if (n < (long)sizeof piece) return;
  }
}

/* Has the worker ended? Remembers its wait status. Orphans that it has left are waited for, too. */
static int worker_ended(supervisor *s) {
  int status, pid = 1;
  while (s->pid && !s->ended && pid > 0) {
    pid = sys_wait(-1, &status, SYS_WNOHANG);
    if (pid == s->pid) s->end_status = status;
    s->ended = pid == s->pid || (pid < 0 && pid != -SYS_EINTR);
  }
  return s->ended;
}

static void wait_for_worker(supervisor *s, int limit_ms) {
  for (int i = 0; i < limit_ms && !worker_ended(s); i += 2) sys_poll(NULL, 0, 2 * I(MILLI));
}

/* Kill the worker and all that it has started, and wait for them; the worker's wait status. force 0: its pipe is closed or it has
 * ended, so its own status tells more than our kill. One that hangs in the kernel is left. */
static int worker_reap(supervisor *s, int force) {
  s->end_status = s->ended ? s->end_status : 0;
  if (!s->pid) return 0;
  if (!force) wait_for_worker(s, 500);
  sys_kill(-s->pid, SYS_SIGKILL); /* what it may have forked, too */
  if (!s->ended) sys_kill(s->pid, SYS_SIGKILL);
  wait_for_worker(s, 5000);
  end_descendants(2000);
  s->pid = 0;
  fence_vacate(&s->place);
  close_end(&s->in);
  close_end(&s->answers);
  return s->end_status;
}

static void worker_drop(supervisor *s) {
  worker_reap(s, 1);
  close_end(&s->log);
  close_end(&s->crash);
  s->memory_limit = 0;
}

static void tell_crash(supervisor *s, int pid, int status, const char *reason, int killed) {
  crash_record r;
  memset(&r, 0, sizeof r);
  if (s->crash < 0 || sys_read(s->crash, &r, sizeof r) != sizeof r) memset(&r, 0, sizeof r);
  r.object[sizeof r.object - 1] = 0; /* the model can write into the pipe, too */
  uint64_t number = U(status & 127);
  buffer *b = compose(s);
  put_format(b, "{\"signal\":%u,\"exit_code\":%u,\"code\":%i,\"address\":%u,\"pc\":%u,\"object\":%q,\"offset\":%u", number,
             U(status >> 8 & 255), I(r.code), r.address, r.pc, r.object, r.offset);
  put_format(b, ",\"stage\":%q,\"reason\":%q,\"killed\":%s,\"request\":%u,\"pid\":%u,\"frames\":[", s->stage, reason,
             killed ? "true" : "false", U(s->busy), U(pid));
  for (uint64_t i = 0; i < r.count && i < CRASH_FRAMES; i++) put_format(b, "%s%u", i ? "," : "", r.frames[i]);
  put(b, "],\"tail\":");
  put_quoted_n(b, s->tail, s->tail_len);
  put(b, ",\"kernel_log\":");
  put_quoted_n(b, s->tail, kernel_log_read(s->kernel_log, s->tail, sizeof s->tail));
  put(b, "}");
  s->tail_len = 0;
  tell(s, FRAME_CRASH, b->at, b->len);
}

/* The worker is gone or has to go: CRASH, and END if a request waits for one. */
static void worker_lost(supervisor *s, const char *status_text, const char *reason, int force) {
  uint8_t request = s->busy;
  int pid = s->pid;
  pump_log(s);
  int status = worker_reap(s, force), killed = !force && (status & 127) == SYS_SIGKILL; /* not by us */
  pump_log(s);
  if (killed) {
    status_text = "killed";
    reason = oom_kills() > s->oom_kills ? "the system ran out of memory and killed the model's process"
                                        : "the model's process was killed from outside (signal 9)";
  }
  tell_crash(s, pid, status, reason, killed);
  close_end(&s->log);
  close_end(&s->crash);
  s->memory_limit = 0;
  s->to_child.pos = s->to_child.len = 0;
  if (!request) return;
  buffer *b = compose(s);
  if (reason[0]) put_format(b, "%s", reason);
  else if (status & 127) put_format(b, "the model died of signal %u", U(status & 127));
  else put_format(b, "the model ended its process with exit code %u", U(status >> 8 & 255));
  if (s->stage[0]) put_format(b, " in stage '%s'", s->stage);
  answer(s, status_text, request, composed(s));
}

/* ---- frames in ---- */
/* 1: a whole frame lies in r->bytes; 0: more is needed; -1: end of file; -2: r->broken says what is wrong. *moved: set to the time
 * when bytes have come. */
static int reader_step(reader *r, int fd, int check_payload, uint64_t *moved) {
  for (;;) {
    size_t want = FRAME_HEADER;
    if (r->bytes.len >= FRAME_HEADER) {
      if (r->bytes.len == FRAME_HEADER && (r->broken = header_read(r->bytes.at, &r->head))) return -2;
      want += (size_t)r->head.len + 4;
    }
    if (r->bytes.len == want && want > FRAME_HEADER) {
      uint32_t crc;
      memcpy(&crc, r->bytes.at + want - 4, 4);
      if (check_payload && crc != crc32_of(0, r->bytes.at + FRAME_HEADER, r->head.len)) {
        r->broken = "frame payload checksum differs";
        return -2;
      }
      return 1;
    }
    if (buffer_reserve(&r->bytes, want - r->bytes.len)) {
      r->broken = "no memory for a frame";
      return -2;
    }
    long n = sys_read(fd, r->bytes.at + r->bytes.len, want - r->bytes.len);
    if (n == -SYS_EINTR) continue;
    if (n == -SYS_EAGAIN) return 0;
    if (n <= 0) return -1;
    r->bytes.len += (size_t)n;
    if (moved) *moved = sys_now();
  }
}

static const uint8_t *payload_of(const reader *r) { return r->bytes.at + FRAME_HEADER; }

static void forward(supervisor *s) {
  if (buffer_add(&s->to_child, s->host.bytes.at, s->host.bytes.len)) give_up(s, "no memory to pass a frame on");
}

static const char STALE[] = "a newer lease holder has used this device; take a new lease";

/* Whether the request under way may be served; answers it otherwise. */
static int admitted(supervisor *s, uint8_t type) {
  int newest = s->fence >= s->highest_fence ? fence_admit(&s->place, s->fence) : 0;
  if (newest > 0) s->highest_fence = s->fence;
  else answer(s, newest ? "infra" : "stale", type, newest ? "the device's fence file cannot be written" : STALE);
  return newest > 0;
}

static void on_hello(supervisor *s) {
  uint32_t idle_ms = 0, silence_ms = 0, probe_units = 0, head = s->host.head.len;
  if (head >= 8) memcpy(&idle_ms, payload_of(&s->host) + 4, 4);
  if (head >= 12) memcpy(&silence_ms, payload_of(&s->host) + 8, 4);
  if (head >= 16) {
    memcpy(&probe_units, payload_of(&s->host) + 12, 4);
    if (s->pid) worker_drop(s); /* its lock is in the place that is left now */
    const char *wrong = fence_open(&s->place, payload_of(&s->host) + 16, head - 16);
    if (wrong) return answer(s, "infra", FRAME_HELLO, wrong);
    if (!admitted(s, FRAME_HELLO)) return;
  }
  s->idle_ns = (idle_ms ? idle_ms : IDLE_DEFAULT_MS) * MILLI;
  s->silence_ns = silence_ms ? silence_ms * MILLI : NEVER;
  put_facts(compose(s), s->sysfs, probe_units != 0);
  tell(s, FRAME_HELLO, s->text.at, s->text.len);
  answer(s, "ok", FRAME_HELLO, "");
}

static void on_load_request(supervisor *s) {
  worker_drop(s); /* each LOAD starts in a fresh process: nothing of the last model is left */
  if (fence_occupy(&s->place, s->fence)) return answer(s, "infra", FRAME_LOAD, "another runner still works on this device");
  if (worker_start(s)) {
    fence_vacate(&s->place);
    return answer(s, "infra", FRAME_LOAD, "no process or pipe for the worker");
  }
  if (s->host.head.len >= sizeof(load_request))
    memcpy(&s->memory_limit, payload_of(&s->host) + offsetof(load_request, memory_bytes), 8);
  forward(s);
}

static void on_control(supervisor *s) {
  control_request r;
  size_t len = s->host.head.len;
  if (len < sizeof r) return answer(s, "protocol", FRAME_CONTROL, "a CONTROL frame is shorter than its fixed part");
  memcpy(&r, payload_of(&s->host), sizeof r);
  control_apply(s->sysfs, &r, (const char *)payload_of(&s->host) + sizeof r, len - sizeof r, compose(s));
  tell(s, FRAME_STATS, s->text.at, s->text.len);
  answer(s, "ok", FRAME_CONTROL, "");
}

static void on_cancel(supervisor *s) {
  if (s->busy) return worker_lost(s, "cancelled", "cancelled by the host", 1);
  answer(s, "ok", FRAME_CANCEL, "nothing was under way");
}

static void on_ping(supervisor *s) {
  if (s->busy) tell(s, FRAME_PING, NULL, 0); /* a host that waits for no answer does not read */
}

static void on_host_frame(supervisor *s) {
  uint8_t type = s->host.head.type;
  uint32_t deadline_ms = 0;
  if (type == FRAME_PING) return on_ping(s);
  s->last_heard = sys_now();
  if (type == FRAME_DATA) { /* belongs to the SETIN under way; leftovers of one that failed are dropped */
    if (s->busy == FRAME_SETIN && s->host.head.job == s->job) forward(s);
    return;
  }
  if (type == FRAME_CANCEL) return on_cancel(s);
  if (s->busy) return give_up(s, "a request came while another was under way");
  s->job = s->host.head.job;
  s->fence = s->host.head.fence;
  if (!admitted(s, type)) return;
  if (s->host.head.len >= 4) memcpy(&deadline_ms, payload_of(&s->host), 4);
  s->deadline = deadline_ms ? sys_now() + deadline_ms * MILLI : NEVER;
  s->logged = 0;
  switch (type) {
    case FRAME_HELLO: return on_hello(s);
    case FRAME_CONTROL: return on_control(s);
    case FRAME_RESET: worker_drop(s); return answer(s, "ok", type, "");
    case FRAME_QUIT: answer(s, "ok", type, ""); s->done = 1; return;
    case FRAME_LOAD: s->busy = type; return on_load_request(s);
    case FRAME_SETIN: case FRAME_RUN: case FRAME_GETOUT: case FRAME_STATE: case FRAME_ENTRY: case FRAME_PROBE:
      if (!s->pid) return answer(s, "protocol", type, "no model is loaded");
      s->busy = type;
      return forward(s);
    default: return answer(s, "protocol", type, "this frame is not a request");
  }
}

static void on_child_frame(supervisor *s) {
  const frame *f = &s->child.head;
  if (!s->busy || f->job != s->job) return worker_lost(s, "crash", "the worker sent a frame that no request asked for", 1);
  if (f->type == FRAME_STAGE) {
    size_t n = f->len < sizeof s->stage - 1 ? f->len : sizeof s->stage - 1;
    memcpy(s->stage, payload_of(&s->child), n);
    s->stage[n] = 0;
  }
  if (f->type == FRAME_END) {
    pump_log(s);
    s->busy = 0;
  }
  if (buffer_add(&s->out, s->child.bytes.at, s->child.bytes.len)) give_up(s, "no memory to pass an answer on");
}

/* 1: the host's frames are taken. Not while a frame waits for the worker, and not while the host leaves answers unread:
 * each request makes some, so a host that only asks would fill the memory. */
static int host_may_speak(const supervisor *s) {
  return !s->done && s->to_child.pos == s->to_child.len && s->out.len - s->out.pos < QUEUE_FULL;
}

static void pump_host(supervisor *s) {
  while (host_may_speak(s)) {
    int got = reader_step(&s->host, 0, 1, &s->last_moved);
    if (got == 0) return;
    if (got == -1) { /* the host is gone: nothing is left to do for anybody */
      s->done = 1;
      s->out.pos = s->out.len = 0;
      return;
    }
    if (got == -2) return give_up(s, s->host.broken);
    on_host_frame(s);
    s->host.bytes.len = 0;
  }
}

/* 1 when nothing more can be read from the worker now. */
static int pump_child(supervisor *s) {
  while (s->pid && s->out.len - s->out.pos < QUEUE_FULL) {
    int got = reader_step(&s->child, s->answers, 0, NULL);
    if (got == 0) return 1;
    if (got == -1) worker_lost(s, "crash", "", 0);
    else if (got == -2) worker_lost(s, "crash", s->child.broken, 1);
    else on_child_frame(s);
    s->child.bytes.len = 0;
  }
  return 0;
}

/* Write what the pipe takes; -1 when its reader is gone. *moved: set to the time when it took some. */
static int pump_queue(buffer *queue, int fd, uint64_t *moved) {
  while (queue->pos < queue->len) {
    long n = sys_write(fd, queue->at + queue->pos, queue->len - queue->pos);
    if (n == -SYS_EINTR) continue;
    if (n == -SYS_EAGAIN) return 0;
    if (n <= 0) return -1;
    queue->pos += (size_t)n;
    if (moved) *moved = sys_now();
  }
  queue->pos = queue->len = 0;
  return 0;
}

/* RLIMIT_AS does nothing under user-mode emulation, so the resident size is watched as well. */
static uint64_t resident_bytes(const supervisor *s) {
  char path[64], value[128];
  buffer p = {(uint8_t *)path, 0, 0, sizeof path};
  put_format(&p, "/proc/%u/statm", U(s->pid));
  path[p.len] = 0;
  if (!read_small(path, value, sizeof value)) return 0;
  const char *second = value;
  while (*second && *second != ' ') second++;
  return number_after(second, "") * s->page_size;
}

static void watch(supervisor *s, uint64_t now) {
  /* a process that the model forked may hold the pipes open, so the worker's end is not always an end of file */
  if (worker_ended(s) && pump_child(s)) worker_lost(s, "crash", "", 0);
  if (s->pid && fence_passed(&s->place, s->fence)) return worker_lost(s, "stale", STALE, 1);
  if (s->busy && now >= s->deadline) return worker_lost(s, "timeout", "the deadline has passed", 1);
  if (s->pid && s->memory_limit && resident_bytes(s) > s->memory_limit)
    return worker_lost(s, "crash", "the model used more memory than its limit", 1);
  /* while only the worker's pipe is full, the host cannot show that it lives */
  if (s->to_child.pos < s->to_child.len && s->out.pos == s->out.len) s->last_moved = now;
  if (now - s->last_moved > s->silence_ns) { /* the host is dead, or the link to it: nobody reads an answer */
    s->done = 1;
    s->out.pos = s->out.len = 0;
  }
  if (!s->busy && now - s->last_heard > s->idle_ns) s->done = 1;
  if (s->busy && s->deadline == NEVER && now - s->last_heard > s->idle_ns)
    worker_lost(s, "timeout", "nothing was heard from the host for the idle time", 1);
}

static int64_t nap(const supervisor *s, uint64_t now) { /* ns until `watch` has something to do */
  uint64_t until = s->busy && s->deadline != NEVER ? s->deadline : s->last_heard + s->idle_ns + MILLI;
  if (s->silence_ns != NEVER && until > s->last_moved + s->silence_ns + MILLI) until = s->last_moved + s->silence_ns + MILLI;
  if (s->pid && s->memory_limit && until > now + 50 * MILLI) until = now + 50 * MILLI;
  if (s->pid && until > now + 250 * MILLI) until = now + 250 * MILLI; /* SIGCHLD may come just before the sleep */
  return until > now ? I(until - now) : 0;
}

static void on_child_signal(int number, void *info, void *context) { /* its only effect is to end the poll */
  (void)number;
  (void)info;
  (void)context;
}

int serve(const char *sysfs) {
  static supervisor state;
  supervisor *s = &state;
  s->sysfs = sysfs;
  s->in = s->answers = s->log = s->crash = s->place.file = s->place.busy = -1;
  s->idle_ns = IDLE_DEFAULT_MS * MILLI;
  s->silence_ns = SILENCE_BEFORE_HELLO_MS * MILLI;
  s->last_heard = s->last_moved = sys_now();
  s->page_size = auxiliary(6);
  control_recover(sysfs);
  adopt_orphans();
  s->kernel_log = kernel_log_open();
  sys_on_signal(SYS_SIGPIPE, (void (*)(int, void *, void *))1 /* SIG_IGN */, 0);
  sys_on_signal(SYS_SIGCHLD, on_child_signal, 4 /* SA_SIGINFO */);
  sys_nonblocking(0);
  sys_nonblocking(1);
  while (!s->done || s->out.pos < s->out.len) {
    uint64_t now = sys_now(), waiting = s->out.len - s->out.pos;
    short room = waiting < QUEUE_FULL ? SYS_POLLIN : 0;
    sys_pollfd fds[5] = {
        {s->done || !room ? -1 : 0, s->to_child.pos == s->to_child.len ? SYS_POLLIN : 0, 0},
        {1, waiting ? SYS_POLLOUT : 0, 0},
        {s->to_child.pos < s->to_child.len ? s->in : -1, SYS_POLLOUT, 0},
        {room ? s->answers : -1, room, 0},
        {room ? s->log : -1, room, 0},
    };
    sys_poll(fds, 5, s->done ? I(5000 * MILLI) : nap(s, now));
    if (fds[1].revents && pump_queue(&s->out, 1, &s->last_moved)) break;
    if (s->done && !fds[1].revents) break; /* the host does not read its last answer */
    if (s->done) continue;
    if (fds[0].revents & (SYS_POLLIN | SYS_POLLHUP | SYS_POLLERR)) {
      if (s->to_child.pos == s->to_child.len) pump_host(s);
      else break; /* hung up while the worker was being fed */
    }
    if (s->to_child.pos < s->to_child.len && s->in >= 0) pump_queue(&s->to_child, s->in, NULL); /* its end is seen below */
    if (fds[4].revents) pump_log(s);
    if (fds[3].revents) pump_child(s);
    watch(s, sys_now());
  }
  if (s->pid) worker_drop(s);
  control_restore();
  return s->exit_code;
}
