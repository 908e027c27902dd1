/* bind.c: the variants of a model in, each a way to run all of its entries; the one that a run is bound to, its units open, out.
 *
 * Without a policy a session has the first variant that works until a call of its driver fails, and then a later one. With one, all
 * that work may be open at once, each with memory of its own at its units, and each run is bound anew; what binds it is policy.c's to
 * say, and what forbids it is said here: tensors of the caller that lie on a unit, a state that a unit does not give back, a profile or
 * a probe, a fork. */
#include "policy.h"

/* ---- which there are ---- */
/* The first variant from `from` on whose code this processor can run and that has not been left; n_variants: there is none. */
static uint32_t variant_from(const smelt_rt *rt, uint32_t from) {
  char missing[RT_ERROR_BYTES / 2];
  while (from < rt->model->n_variants &&
         (rt->session->ways[from].left || rt_cpu_lacks(rt->model->variants[from].cpu_features, missing, sizeof missing)))
    from++;
  return from;
}

int32_t rt_bind_check(smelt_rt *rt) {
  const smelt_model_desc *m = rt->model;
  char missing[RT_ERROR_BYTES / 2] = "";
  if (variant_from(rt, 0) < m->n_variants) return SMELT_OK;
  rt_cpu_lacks(m->variants[m->n_variants - 1].cpu_features, missing, sizeof missing);
  return rt_error(rt, SMELT_DEVICE, "model '%s' was compiled for processors that have %s, which this one or its system lacks; compile it for this one",
                  m->name, missing);
}

/* ---- one of them ---- */
static void turn(rt_session *all, uint32_t variant) {
  all->variant = variant;
  all->device = all->ways[variant].device;
}

static int is_open(const smelt_rt *rt, uint32_t variant) { return !rt->model->variants[variant].units || rt->session->ways[variant].device; }

/* Bind to a variant whose units are not open yet. */
static int32_t open_variant(smelt_rt *rt, uint32_t variant) {
  turn(rt->session, variant);
  int32_t status = is_open(rt, variant) ? SMELT_OK : rt_device_open(rt);
  if (status && rt->session->device) rt_device_close(rt);
  rt->session->ways[variant].device = rt->session->device;
  return status;
}

/* The session is bound to it. */
static void close_variant(smelt_rt *rt) {
  if (rt->session->device) rt_device_close(rt);
  rt->session->ways[rt->session->variant].device = NULL;
}

static void leave(rt_session *all, uint32_t variant, const char *why) {
  all->ways[variant].left = 1;
  snprintf(all->ways[variant].why, sizeof all->ways[variant].why, "%s", why);
}

/* One more reason why the session does not run at earlier units. */
static void fall(rt_session *all, const char *why) {
  size_t n = strlen(all->fallen);
  snprintf(all->fallen + n, sizeof all->fallen - n, "%s%s", n ? "; " : "", why);
}

int32_t rt_bind_first(smelt_rt *rt, uint32_t from) {
  uint32_t next = variant_from(rt, from);
  int32_t status = SMELT_DEVICE;
  while (next < rt->model->n_variants) {
    status = open_variant(rt, next);
    if (status != SMELT_DEVICE && status != SMELT_UNSUPPORTED) break;
    uint32_t after = variant_from(rt, next + 1);
    if (after == rt->model->n_variants) break;
    leave(rt->session, next, rt->error);
    fall(rt->session, rt->error);
    next = after;
  }
  return status;
}

int32_t rt_bind_like(smelt_rt *rt, const smelt_rt *from) {
  rt_session *all = rt->session, *other = from->session;
  memcpy(all->fallen, other->fallen, sizeof all->fallen);
  for (uint32_t v = 0; v < rt->model->n_variants; v++)
    if (other->ways[v].left) leave(all, v, other->ways[v].why);
  if (other->policy && !(all->policy = rt_policy_copy(other->policy)))
    return rt_error(rt, SMELT_DEVICE, "smelt_fork: the system has no memory for a policy; close other sessions");
  return rt_bind_first(rt, other->variant);
}

void rt_bind_each(smelt_rt *rt, void (*fn)(smelt_rt *, void *), void *context) {
  uint32_t bound = rt->session->variant;
  for (uint32_t v = 0; v < rt->model->n_variants; v++) {
    if (!rt->session->ways[v].device) continue;
    turn(rt->session, v);
    fn(rt, context);
  }
  if (rt->session->variant != bound) turn(rt->session, bound);
}

static void close_units(smelt_rt *rt, void *unused) {
  (void)unused;
  close_variant(rt);
}

void rt_bind_close(smelt_rt *rt) {
  rt_bind_each(rt, close_units, NULL);
  free(rt->session->policy);
  rt->session->policy = NULL;
}

/* ---- from one to another ---- */
static int on_units(const rt_session *all) {
  for (const rt_tensor *t = all->tensors; t; t = t->next)
    if (t->unit) return 1;
  return 0;
}

/* Bytes of states that lie at units: what has to come back before another variant can read it. */
static uint64_t away(const smelt_rt *rt) {
  uint64_t bytes = 0;
  for (uint32_t k = 0; k < rt->model->n_states; k++) {
    const rt_state *state = &rt->session->states[k];
    if (state->begun && state->resident) bytes += state->bytes;
  }
  return bytes;
}

/* Bind to another variant, with the states. 0: it does not open, and is left, or a state cannot be read back, and the session stays. */
static int move(smelt_rt *rt, rt_policy *p, uint32_t to) {
  rt_session *all = rt->session;
  uint32_t from = all->variant;
  if (!is_open(rt, to) && open_variant(rt, to)) {
    leave(all, to, rt->error);
    fall(all, rt->error);
    turn(all, from);
    return 0;
  }
  turn(all, from);
  uint64_t bytes = away(rt), begin = rt_policy_now();
  if (rt_state_home(rt)) {
    rt_policy_stay(p, RT_STAYS_STATE, rt->error);
    return 0;
  }
  if (bytes) rt_policy_moved(p, rt_policy_now() - begin, bytes);
  turn(all, to);
  rt_reserve_bounded(rt); /* what it lacks the run will say */
  return 1;
}

/* Why the session cannot be bound to another variant now. */
static rt_stays forbidden(const rt_session *all) {
  return on_units(all) ? RT_STAYS_TENSORS : all->watched ? RT_STAYS_WATCHED : RT_STAYS_NOT;
}

/* Which variants a run may be bound to at all: of those for the CPU alone, the best one; in a child of a fork no other. */
static void candidates(const smelt_rt *rt, rt_policy *p) {
  int child = rt->session->pid != sm_getpid(), alone = 0;
  for (uint32_t v = 0; v < p->n_variants; v++) {
    int of_cpu = !rt->model->variants[v].units;
    p->ways[v].may = p->ways[v].fits && !rt->session->ways[v].left && !(of_cpu ? alone : child);
    alone |= of_cpu && p->ways[v].may;
  }
}

void rt_bind_run(smelt_rt *named, const DLTensor *inputs, size_t n) {
  rt_session *all = named->session;
  rt_policy *p = all->policy;
  if (!p) return;
  rt_policy_stay(p, forbidden(all), "");
  rt_policy_begin(p, named, inputs, n);
  for (uint32_t to; !p->stays;) {
    candidates(named, p);
    if (!rt_policy_choose(p, all->variant, away(named), &to) || to == all->variant || move(named, p, to)) break;
  }
  all->broken = 0;
  rt_policy_start(p);
}

/* A run has failed where a later variant may do it, and all after it. */
static int falls_back(smelt_rt *rt, const char *why) {
  rt_session *all = rt->session;
  uint32_t next = variant_from(rt, all->variant + 1);
  if (next == rt->model->n_variants || rt_state_home(rt) || atomic_load(&all->cancel)) return 0;
  close_variant(rt);
  leave(all, all->variant, why);
  int32_t gone = rt_bind_first(rt, next);
  all->fallen[0] = 0, fall(all, why);
  if (gone) return 0;
  if (rt_reserve_bounded(rt)) rt_error(rt, SMELT_DEVICE, "%s", why); /* the run will say what it lacks */
  return 1;
}

/* The same with a policy: of the variants that have not failed in this run, that which it wants. One whose driver failed is left for good, one
 * whose memory was short for a while. */
static int binds_another(smelt_rt *rt, rt_policy *p, const char *why) {
  rt_session *all = rt->session;
  uint32_t failed = all->variant, to;
  int broken = all->broken && all->device;
  if (p->stays || all->probe || !p->key) return 0;
  rt_policy_refused(p, failed);
  for (;;) {
    candidates(rt, p);
    if (!rt_policy_choose(p, failed, away(rt), &to)) return 0;
    if (move(rt, p, to)) break;
    if (p->stays) return 0;
  }
  if (broken) {
    turn(all, failed);
    close_variant(rt);
    leave(all, failed, why);
    fall(all, why);
    turn(all, to);
  }
  rt_policy_start(p);
  return 1;
}

int rt_bind_again(smelt_rt *named, int32_t status) {
  rt_session *all = named->session;
  smelt_rt *rt = rt_running(named);
  rt_policy *p = all->policy;
  char why[RT_ERROR_BYTES];
  if (!status) {
    all->ways[all->variant].runs++;
    if (p) all->ways[all->variant].explorations += p->exploring != 0;
    if (p) rt_policy_learn(p, all->variant, all->watched);
    return 0;
  }
  if (status != SMELT_DEVICE || on_units(all) || atomic_load(&all->cancel) || (!p && !(all->device && all->broken))) return 0;
  memcpy(why, rt->error, sizeof why);
  uint32_t failed = all->variant;
  int again = p ? binds_another(named, p, why) : falls_back(named, why);
  if (!again) memcpy(rt_running(named)->error, why, sizeof why);
  if (!again && all->variant != failed && p) turn(all, failed);
  return again;
}
