/* runner.c: main of smelt_run. `smelt_run --serve` exchanges frames on stdin and stdout; `smelt_run BUNDLE` prints text;
 * `smelt_run --hash FILE...` prints what sha256sum would, for devices that have none.
 *
 * Two builds: SMELT_STATIC has the model linked in and takes only the weights from the bundle; the other one opens
 * the lib*.so in the bundle. It needs no libc header, and of libc only what runner_sys.h declares. */
#include "runner_gauge.h"
#include "runner_supervisor.h"
#include "runner_worker.h"
#include "sha256.h"

static const char USAGE[] =
    "usage: smelt_run BUNDLE_DIR [--info] [--entry NAME] [--shape NAME:1x3x224x224]... [--repeat N] [--threads N] [--policy NAME] [--zero]\n"
    "       smelt_run --serve [--sysfs DIR]\n"
    "       smelt_run --hash FILE...\n"
    "Runs the model, or one of its entries, on random inputs (the same ones every time) and prints times in microseconds.\n"
    "Dims that no --shape gives are 1. Policies, which bind each run to a unit: static (the first one), load, thermal, battery.\n";

typedef struct {
  const char *bundle, *sysfs, *entry;
  const char *shapes[64];
  size_t n_shapes;
  int64_t repeat;
  int32_t threads;
  int policy;
  int info, serve, zero;
} command;

static int show(int fd, buffer *b) {
  int failed = write_all(fd, b->at + b->pos, b->len - b->pos);
  b->pos = b->len = 0;
  return failed;
}

static int complain(buffer *b, const char *status) {
  put_format(b, " (%s)\n", status);
  show(2, b);
  return 1;
}

enum { REPEAT_MAX = 10000000, THREADS_MAX = 1024 };

/* The digits at *s as a number up to `most`, *s after them; -1 without a digit or beyond. */
static int64_t to_number(const char **s, int64_t most) {
  int64_t value = 0;
  const char *start = *s;
  for (; **s >= '0' && **s <= '9'; ++*s) {
    if (value > (most - (**s - '0')) / 10) return -1;
    value = value * 10 + (**s - '0');
  }
  return *s == start ? -1 : value;
}

/* The whole text as a number up to `most`; -1 after a message when it is none. */
static int64_t option_number(const char *option, const char *text, int64_t most) {
  const char *end = text;
  int64_t value = to_number(&end, most);
  if (value >= 0 && !*end) return value;
  buffer b = {0};
  put_format(&b, "%s %q: wanted a whole number from 0 to %i", option, text, most);
  complain(&b, "invalid");
  return -1;
}

/* The number of a policy; -1 after a message when there is none of that name. */
static int option_policy(const char *name) {
  int policy = policy_of(name);
  buffer b = {0};
  if (policy >= 0) return policy;
  put_format(&b, "--policy %q: wanted static, load, thermal or battery", name);
  complain(&b, "invalid");
  return -1;
}

/* 0, or -1 when the usage is to be shown, after a message or without one. */
static int parse(command *c, int argc, char **argv) {
  *c = (command){.sysfs = "/sys", .repeat = 10};
  for (int i = 1; i < argc; i++) {
    const char *a = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
    if (!strcmp(a, "--serve")) c->serve = 1;
    else if (!strcmp(a, "--info")) c->info = 1;
    else if (!strcmp(a, "--zero")) c->zero = 1;
    else if (a[0] != '-' && !c->bundle) c->bundle = a;
    else if (a[0] != '-' || !value) return -1;
    else if (i++, !strcmp(a, "--sysfs")) c->sysfs = value;
    else if (!strcmp(a, "--entry")) c->entry = value;
    else if (!strcmp(a, "--repeat")) {
      if ((c->repeat = option_number(a, value, REPEAT_MAX)) < 0) return -1;
    } else if (!strcmp(a, "--threads")) {
      if ((c->threads = (int32_t)option_number(a, value, THREADS_MAX)) < 0) return -1;
    } else if (!strcmp(a, "--policy")) {
      if ((c->policy = option_policy(value)) < 0) return -1;
    } else if (!strcmp(a, "--shape") && c->n_shapes < 64) c->shapes[c->n_shapes++] = value;
    else return -1;
  }
  return c->serve || c->bundle ? 0 : -1;
}

static void put_dims(buffer *b, const DLTensor *t) {
  static const char *const kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  put_format(b, "%s%u[", t->dtype.code < 7 ? kinds[t->dtype.code] : "type", U(t->dtype.bits));
  for (int32_t d = 0; d < t->ndim; d++) put_format(b, "%s%i", d ? ", " : "", I(t->shape[d]));
  put(b, "]");
}

static void put_port(buffer *b, const char *role, const char *name, DLDataType type, int32_t rank) {
  DLTensor shown = {.dtype = type};
  put_format(b, "%s %s: ", role, name);
  put_dims(b, &shown);
  b->len -= 2;
  put_format(b, " of rank %i\n", I(rank));
}

static void put_info(worker *w, buffer *b) {
  const model_api *api = &w->api;
  const smelt_session *s = w->session;
  for (size_t i = 0; api->entry_count(s) > 1 && i < api->entry_count(s); i++) put_format(b, "entry  %s\n", api->entry_name(s, i));
  for (size_t i = 0; i < w->n_inputs; i++) put_port(b, "input ", api->input_name(s, i), api->input_type(s, i), api->input_rank(s, i));
  for (size_t i = 0; i < w->n_outputs; i++) put_port(b, "output", api->output_name(s, i), api->output_type(s, i), api->output_rank(s, i));
  for (size_t i = 0; i < api->state_count(s); i++) put_port(b, "state ", api->state_name(s, i), api->state_type(s, i), api->state_rank(s, i));
}

/* What stands after "NAME:" when this --shape names the input; else NULL. A name may have a ':' in it. */
static const char *dims_of(const char *shape, const char *name) {
  size_t n = strlen(name);
  return strlen(shape) > n && !memcmp(shape, name, n) && shape[n] == ':' ? shape + n + 1 : NULL;
}

/* Dims of the --shape that names this input; 1 everywhere without one. 0, or EXIT_USAGE or 1 after a message. */
static int shape_for(const command *c, const char *name, int32_t rank, int64_t *dims, buffer *b) {
  for (int32_t d = 0; d < rank; d++) dims[d] = 1;
  for (size_t i = 0; i < c->n_shapes; i++) {
    const char *p = dims_of(c->shapes[i], name);
    int32_t d = 0;
    if (!p) continue;
    for (int more = *p != 0; more; d++) {
      int64_t dim = to_number(&p, INT64_MAX);
      more = *p == 'x' || *p == ',';
      if (dim < 0 || (*p && !more)) {
        put_format(b, "--shape %q: wanted NAME:1x3x224x224 with whole numbers", c->shapes[i]);
        complain(b, "invalid");
        return EXIT_USAGE;
      }
      if (d < rank) dims[d] = dim;
      p += more;
    }
    if (d == rank) return 0;
    put_format(b, "input '%s' has rank %i; its --shape does not fit", name, I(rank));
    return complain(b, "shape");
  }
  return 0;
}

static int shapes_have_inputs(worker *w, const command *c, buffer *b) {
  for (size_t i = 0; i < c->n_shapes; i++) {
    size_t k = 0;
    while (k < w->n_inputs && !dims_of(c->shapes[i], w->api.input_name(w->session, k))) k++;
    if (k < w->n_inputs) continue;
    put_format(b, "--shape %q: wanted NAME:DIMS with the name of an input; --info lists them", c->shapes[i]);
    complain(b, "invalid");
    return 0;
  }
  return 1;
}

/* Floats in [0, 1), bools 0 or 1, integers 0 or 1 (an index that is valid for any dim above 1). */
static void fill(const DLTensor *t, uint64_t bytes, uint32_t *seed) {
  uint8_t *at = t->data;
  int floats = t->dtype.code == 2 && t->dtype.bits == 32;
  size_t width = t->dtype.bits >= 8 ? t->dtype.bits / 8u : 1;
  if (t->dtype.code == 2 && !floats) return; /* other floats stay zero */
  for (uint64_t i = 0; i + width <= bytes; i += width) {
    *seed = *seed * 1664525u + 1013904223u;
    float value = (float)(*seed >> 8) / 16777216.0f;
    if (floats) memcpy(at + i, &value, 4);
    else at[i] = (uint8_t)(*seed >> 31); /* little endian: the rest of the element stays zero */
  }
}

static int prepare_inputs(worker *w, const command *c, buffer *b) {
  uint32_t seed = 1;
  if (!shapes_have_inputs(w, c, b)) return EXIT_USAGE;
  for (size_t i = 0; i < w->n_inputs; i++) {
    slot *s = &w->inputs[i];
    int32_t rank = w->api.input_rank(w->session, i);
    const char *name = w->api.input_name(w->session, i);
    if (rank < 0 || rank > RANK_MAX) {
      put_format(b, "input '%s' has rank %i, more than %i", name, I(rank), I(RANK_MAX));
      return complain(b, "unsupported");
    }
    int wrong = shape_for(c, name, rank, s->dims, b);
    if (wrong) return wrong;
    s->tensor = (DLTensor){NULL, {1, 0}, rank, w->api.input_type(w->session, i), s->dims, NULL, 0};
    uint64_t bytes = tensor_bytes(s->tensor.dtype, s->dims, (size_t)rank);
    if (bytes == UINT64_MAX) {
      put_format(b, "input '%s': its dims multiply to more bytes than there are addresses", name);
      return complain(b, "shape");
    }
    if (slot_reserve(s, bytes)) {
      put_format(b, "no memory for input '%s' of %u bytes", name, bytes);
      return complain(b, "device");
    }
    s->tensor.data = s->memory;
    if (!c->zero) fill(&s->tensor, bytes, &seed);
  }
  return 0;
}

static void sort_times(uint64_t *ns, size_t n) { /* heap sort: no recursion, no libc */
  for (size_t i = n / 2, end = n; end > 1;) {
    if (i) i--;
    else {
      uint64_t last = ns[--end];
      ns[end] = ns[0];
      ns[0] = last;
    }
    for (size_t at = i, child; (child = 2 * at + 1) < end; at = child) {
      if (child + 1 < end && ns[child + 1] > ns[child]) child++;
      if (ns[at] >= ns[child]) break;
      uint64_t swap = ns[at];
      ns[at] = ns[child];
      ns[child] = swap;
    }
  }
}

static int run_and_time(worker *w, const command *c, buffer *b) {
  size_t repeat = (size_t)c->repeat;
  uint64_t first, *ns = sys_map((repeat + 1) * sizeof *ns);
  gauge g;
  usage before, after;
  begin_afresh(w, 1);
  smelt_status s = ns ? run_once(w, &first) : SMELT_DEVICE;
  gauge_open(&g); /* after the first run, which may start threads */
  gauge_read(&g, &before);
  for (size_t i = 0; ns && s == SMELT_OK && i < repeat; i++) s = run_once(w, &ns[i]);
  gauge_read(&g, &after);
  gauge_close(&g);
  if (!ns || s != SMELT_OK) {
    put_format(b, "%s", ns ? w->api.error(w->session) : "no memory for the times");
    return complain(b, status_name(s));
  }
  for (size_t i = 0; i < w->n_outputs; i++) {
    const DLTensor *t = &w->outputs[i];
    uint64_t bytes = tensor_bytes(t->dtype, t->shape, (size_t)t->ndim);
    put_format(b, "output %s: ", w->api.output_name(w->session, i));
    put_dims(b, t);
    put_format(b, " crc32 %x\n", U(crc32_of(0, (const uint8_t *)t->data + t->byte_offset, bytes)));
  }
  put_format(b, "first %u us", first / 1000);
  if (repeat) {
    sort_times(ns, repeat);
    put_format(b, ", then %u runs: min %u us, median %u us, max %u us", U(repeat), ns[0] / 1000, ns[repeat / 2] / 1000,
               ns[repeat - 1] / 1000);
    put_format(b, "\nunjudged: 'smelt bench' says what such times are worth; threads waited %u us for a processor, preempted %u times",
               (after.wait_ns - before.wait_ns) / 1000, after.preempted - before.preempted);
  }
  put(b, "\nmemory ");
  put_memory(w, b);
  put(b, "\n");
  if (w->policy) {
    put(b, "shares ");
    put_shares(w, b);
    put(b, "\n");
  }
  return show(1, b);
}

static int for_people(const command *c) {
  static worker w;
  smelt_options options = {.struct_size = sizeof options, .threads = c->threads};
  buffer b = {0};
  if (model_load(&w.api, c->bundle, &b)) return complain(&b, "invalid");
  uint64_t start = sys_now();
  smelt_status s = w.api.open(c->bundle, &options, &w.session);
  if (s != SMELT_OK) {
    put_format(&b, "%s", w.api.error(NULL));
    return complain(&b, status_name(s));
  }
  if (model_bind(&w.api, w.session, (uint32_t)c->policy, &b)) {
    w.api.close(w.session);
    return complain(&b, "invalid");
  }
  w.policy = (uint32_t)c->policy;
  smelt_session *entry = c->entry ? w.api.entry(w.session, c->entry) : w.session;
  if (!entry) {
    put_format(&b, "%s", w.api.error(NULL));
    w.api.close(w.session);
    return complain(&b, "invalid");
  }
  w.session = entry;
  if (worker_slots(&w)) return complain(&b, "device");
  put_info(&w, &b);
  put_format(&b, "runs %s\n", w.api.variant(w.session));
  put_format(&b, "opened in %u us\n", (sys_now() - start) / 1000);
  show(1, &b);
  int failed = c->info ? 0 : prepare_inputs(&w, c, &b);
  if (!c->info && !failed) failed = run_and_time(&w, c, &b);
  w.api.close(w.session);
  return failed;
}

/* The sha256 of a file as one line; 0, or 1 when it cannot be read. */
static int print_hash(const char *path) {
  static const char digits[] = "0123456789abcdef";
  static uint8_t piece[1 << 16];
  sha256_state state;
  uint8_t digest[32];
  buffer b = {0};
  int fd = sys_open(path, SYS_O_RDONLY);
  long n = fd;
  sha256_start(&state);
  while (fd >= 0 && (n = sys_read(fd, piece, sizeof piece)) != 0 && (n > 0 || n == -SYS_EINTR))
    if (n > 0) sha256_add(&state, piece, (uint64_t)n);
  if (fd >= 0) sys_close(fd);
  if (n < 0) {
    put_format(&b, "smelt_run: %s: cannot be read\n", path);
    show(2, &b);
    return 1;
  }
  sha256_end(&state, digest);
  for (size_t i = 0; i < sizeof digest; i++) {
    put_n(&b, digits + (digest[i] >> 4), 1);
    put_n(&b, digits + (digest[i] & 15), 1);
  }
  put_format(&b, "  %s\n", path);
  return show(1, &b) != 0;
}

static int print_hashes(int count, char **paths) {
  int failed = 0;
  for (int i = 0; i < count; i++) failed |= print_hash(paths[i]);
  return failed;
}

int main(int argc, char **argv) {
  command c;
  crc_start();
  if (argc > 2 && !strcmp(argv[1], "--hash")) return print_hashes(argc - 2, argv + 2);
  if (parse(&c, argc, argv)) {
    write_all(2, USAGE, sizeof USAGE - 1);
    return EXIT_USAGE;
  }
  return c.serve ? serve(c.sysfs) : for_people(&c);
}
