/* runner_probe.c: one run with a probe in it, which notes launches or copies values; it leaves outputs and state as they were. */
#include "runner_probe.h"

enum { PROBE_HEAD = 8, WISH_BYTES = 24 };
static const uint64_t NOTES_MAX = 48 << 20; /* bytes of notes about launches: some millions */

typedef struct {
  worker *w;
  const uint8_t *wishes; /* in the frame, unaligned */
  uint32_t count, next;
  uint64_t launches;
  buffer bytes; /* notes, or the values */
  int cut;
  const char *why; /* what is wrong with the request, or with the run for it; NULL: nothing */
} probe_state;

static probe_wish wish_of(const probe_state *p, uint32_t i) {
  probe_wish wish;
  memcpy(&wish, p->wishes + (size_t)i * WISH_BYTES, sizeof wish);
  return wish;
}

static int32_t stop(probe_state *p, const char *why) {
  p->why = why;
  return 1;
}

static int32_t note(probe_state *p, int32_t site, const int64_t *dims, int32_t n_dims) {
  uint32_t head[2] = {(uint32_t)site, (uint32_t)n_dims};
  if (p->bytes.len + sizeof head + 8 * (size_t)n_dims > NOTES_MAX) {
    p->cut = 1;
    return stop(p, NULL);
  }
  if (buffer_add(&p->bytes, head, sizeof head) || buffer_add(&p->bytes, dims, 8 * (size_t)n_dims)) return stop(p, "no memory for the list of launches");
  return 0;
}

static int32_t copy(probe_state *p, uint64_t launch, int32_t site, const int64_t *args, int32_t n_buffers) {
  for (; p->next < p->count; p->next++) {
    probe_wish wish = wish_of(p, p->next);
    if (wish.launch != launch) return wish.launch < launch ? stop(p, "a PROBE frame's wishes are not in the order of the launches") : 0;
    if (wish.site != (uint32_t)site) return stop(p, "the run takes another path than the one before");
    if (wish.buffer >= (uint32_t)n_buffers) return stop(p, "a PROBE frame names a buffer that its launch has not");
    if (wish.bytes > SIZE_MAX / 2 || buffer_reserve(&p->bytes, (size_t)wish.bytes)) return stop(p, "no memory for the values");
    if (p->w->api.peek(p->w->session, args[wish.buffer], p->bytes.at + p->bytes.len, wish.bytes) != SMELT_OK)
      return stop(p, "a value could not be read from where it lies");
    p->bytes.len += (size_t)wish.bytes;
  }
  return stop(p, NULL);
}

static int32_t on_launch(void *context, int32_t site, const int64_t *args, int32_t n_buffers, int32_t n_dims) {
  probe_state *p = context;
  uint64_t launch = p->launches++;
  return p->count ? copy(p, launch, site, args, n_buffers) : note(p, site, args + n_buffers, n_dims);
}

/* The status of the answer to a run that has ended so. */
static const char *outcome(probe_state *p, smelt_status s) {
  if (p->why) return "internal";
  if (p->count ? p->next == p->count : p->cut) return "ok"; /* it has stopped the run itself */
  if (s != SMELT_OK) return status_name(s);
  if (!p->count) return "ok";
  p->why = "the run has fewer launches than the one before";
  return "internal";
}

void on_probe(worker *w) {
  probe_state p = {.w = w};
  uint64_t unused;
  if (w->payload.len < PROBE_HEAD) return finish(w, "protocol", "a PROBE frame is shorter than its fixed part");
  memcpy(&p.count, w->payload.at + 4, 4);
  if (w->payload.len != PROBE_HEAD + WISH_BYTES * (size_t)p.count)
    return finish(w, "protocol", "a PROBE frame's length does not fit its number of wishes");
  if (!w->session) return finish(w, "protocol", "no model is loaded");
  if (!inputs_set(w)) return;
  p.wishes = w->payload.at + PROBE_HEAD;
  w->ran = 0;
  begin_afresh(w, 0);
  stage(w, "probe");
  smelt_status s = w->api.probe(w->session, on_launch, &p);
  if (s == SMELT_OK) s = run_once(w, &unused);
  w->api.probe(w->session, NULL, NULL);
  const char *status = outcome(&p, s);
  if (p.why) {
    finish(w, status, p.why);
  } else if (strcmp(status, "ok")) {
    finish_model(w, s);
  } else {
    send_data(w, p.bytes.at, p.bytes.len);
    put_format(fresh(w), "{\"kind\":\"probe\",\"launches\":%u,\"bytes\":%u,\"cut\":%s}", p.launches, U(p.bytes.len), p.cut ? "true" : "false");
    reply_text(w, FRAME_STATS);
    finish(w, "ok", "");
  }
  if (p.bytes.at) sys_unmap(p.bytes.at, p.bytes.cap);
}
