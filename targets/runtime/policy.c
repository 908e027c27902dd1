/* policy.c: how long the runs of each variant took, and what the machine tells, in; the variant that the next run is bound to out.
 *
 * Expected is a decayed mean of medians of three runs, per entry and shapes: one run that somebody disturbed changes nothing, and a
 * unit that others have loaded is known after two. Shapes are rounded, so that a state that grows comes back to what is known; of
 * shapes that are new it is what lies between the nearest that are known, by the bytes of the inputs.
 *
 * What is not run is not known: a unit that was loaded is tried again. Of any EVERY runs one is such an exploration at most. What
 * explorations take beyond what the best variant would have is one part in SHARE of the time of all runs at most, which the units divide: none
 * of a unit begins while those before have used its part up. So the time that they cost is bounded, however slow the units are, and a
 * very slow one does not keep others from being tried.
 *
 * A state has to come back from a unit before another one can read it, which takes time. The session moves once what it has lost by
 * staying is as much as that, so that it never loses more than twice what the best foresight would have (the rule for renting skis). */
#include "policy.h"

enum {
  TRIALS = 2,       /* runs of each variant before any is preferred: the first one takes memory and records lists */
  EVERY = 32,
  SHARE = 16,
  DECAY = 4,        /* a new median counts for a quarter */
  MOST_DOUBLINGS = 10,
  ENERGY_NS = 10000000,   /* counters go up once in 1 ms (Intel SDM 15.10.3): so much run time tells power to a tenth */
  LOOK_NS = 1000000000,   /* between two looks at heat and power; the kernel asks a battery no more often itself */
  HOTTEST = 85000,        /* millidegrees, of a zone that names no limit */
  APART_BELOW = 8         /* extents below are told apart, larger ones by their first three bits */
};
static const uint64_t NEVER = UINT64_MAX, LONGEST_NS = (uint64_t)1 << 43;

/* Tests have a clock of their own. */
#ifdef SMELT_TEST_CLOCK
uint64_t smelt_test_now(void);
uint64_t rt_policy_now(void) { return smelt_test_now(); }
#else
uint64_t rt_policy_now(void) { return sm_now(); }
#endif

/* ---- keys ---- */
static uint64_t rounded(int64_t extent) {
  uint64_t n = extent > 0 ? (uint64_t)extent : 0, unit = 1;
  while (n / unit >= APART_BELOW) unit *= 2;
  return n / unit * unit;
}

typedef struct {
  uint64_t hash, work;
} measure;

/* One tensor more. */
static void add(measure *m, DLDataType type, int32_t rank, const int64_t *shape) {
  uint64_t bytes = 0;
  for (int32_t i = 0; i < rank; i++) m->hash = (m->hash ^ rounded(shape[i])) * 0x9E3779B97F4A7C15u, m->hash ^= m->hash >> 29;
  if (rt_tensor_bytes(type, rank, shape, &bytes) && bytes < UINT64_MAX - m->work) m->work += bytes;
}

/* Of the inputs of a run and the states that it reads; 0: they are not those of the entry, which the run will say. */
static int measured(const smelt_rt *named, const DLTensor *inputs, size_t n, measure *m) {
  const smelt_entry_desc *e = named->entry;
  *m = (measure){0, 1};
  if (n != rt_fed(e) || (n && !inputs)) return 0;
  for (uint32_t i = 0; i < n; i++) {
    if (inputs[i].ndim != e->inputs[i].rank || (inputs[i].ndim && !inputs[i].shape)) return 0;
    add(m, e->inputs[i].dtype, inputs[i].ndim, inputs[i].shape);
  }
  for (uint32_t i = rt_fed(e); i < e->n_inputs; i++) {
    const rt_state *state = rt_read_state(named, i);
    if (state->begun) add(m, e->inputs[i].dtype, e->inputs[i].rank, state->shape);
  }
  return 1;
}

/* The row of these shapes, a new one if need be. */
static rt_key *row_of(rt_policy *p, uint32_t entry, const measure *m) {
  rt_key *oldest = &p->keys[0];
  for (uint32_t i = 0; i < RT_KEYS; i++) {
    rt_key *k = &p->keys[i];
    if (k->used && k->hash == m->hash && k->entry == entry) return k;
    if (k->used < oldest->used) oldest = k;
  }
  rt_estimate *of = oldest->of;
  memset(of, 0, p->n_variants * sizeof *of);
  *oldest = (rt_key){.hash = m->hash, .work = m->work, .entry = entry, .of = of};
  return oldest;
}

void rt_policy_begin(rt_policy *p, const smelt_rt *named, const DLTensor *inputs, size_t n) {
  measure m;
  p->clock++;
  p->explored = p->exploring, p->exploring = NULL;
  p->best_ns = p->moved_ns = 0;
  for (uint32_t v = 0; v < p->n_variants; v++) p->ways[v].spent = 0;
  p->key = measured(named, inputs, n, &m) ? row_of(p, (uint32_t)(named - named->session->views), &m) : NULL;
  if (p->key) p->key->used = p->clock;
}

/* ---- what is expected ---- */
/* ns * n / of, for any numbers, roughly. */
static uint64_t part(uint64_t ns, uint64_t n, uint64_t of) {
  while ((n | of) >> 20) n >>= 1, of >>= 1;
  return (ns < LONGEST_NS ? ns : LONGEST_NS) * n / (of ? of : 1);
}

static uint64_t expected(const rt_policy *p, const rt_key *k, uint32_t v) {
  const rt_key *below = NULL, *above = NULL;
  if (k->of[v].count) return k->of[v].ns;
  for (uint32_t i = 0; i < RT_KEYS; i++) {
    const rt_key *r = &p->keys[i];
    if (!r->used || r->entry != k->entry || !r->of[v].count) continue;
    if (r->work <= k->work && (!below || r->work > below->work)) below = r;
    if (r->work >= k->work && (!above || r->work < above->work)) above = r;
  }
  if (!below && !above) return NEVER;
  if (!below || !above) return part((below ? below : above)->of[v].ns, k->work, (below ? below : above)->work);
  uint64_t low = below->of[v].ns, high = above->of[v].ns, step = k->work - below->work, of = above->work - below->work;
  return high >= low ? low + part(high - low, step, of) : low - part(low - high, step, of);
}

uint64_t rt_policy_expected(const rt_policy *p, uint32_t v) {
  uint64_t ns = p->key ? expected(p, p->key, v) : NEVER;
  return ns == NEVER ? 0 : ns;
}

static rt_habit *habit_of(const rt_policy *p, uint32_t entry, uint32_t v) { return &p->habits[entry * p->n_variants + v]; }

uint64_t rt_policy_energy(const rt_policy *p, uint32_t v) {
  const rt_habit *h = p->key ? habit_of(p, p->key->entry, v) : NULL;
  return h && h->ns >= ENERGY_NS ? part(rt_policy_expected(p, v), h->microjoules, h->ns) : 0;
}

static int by_energy(const rt_policy *p) { return p->kind == SMELT_POLICY_BATTERY && p->power == RT_POWER_BATTERY && p->counter[0]; }
static int by_order(const rt_policy *p) { return p->kind == SMELT_POLICY_BATTERY && p->power == RT_POWER_BATTERY && !p->counter[0]; }

/* What the policy counts: ns, or the microjoules of so many ns of this variant. */
static uint64_t cost(const rt_policy *p, const rt_key *k, uint32_t v, uint64_t ns) {
  const rt_habit *h = habit_of(p, k->entry, v);
  return !by_energy(p) || ns == NEVER ? ns : part(ns, h->microjoules, h->ns);
}

/* ---- which ---- */
/* Has it failed at these shapes so lately that it is not tried? Longer after each failure. */
static int is_refused(const rt_policy *p, const rt_key *k, uint32_t v) {
  const rt_estimate *e = &k->of[v];
  uint32_t doublings = e->refused < MOST_DOUBLINGS ? e->refused : MOST_DOUBLINGS;
  return e->refused && p->clock - e->refused_at < (uint64_t)EVERY << doublings;
}

/* May it be taken, with so many of the objections put aside? */
static int may(const rt_policy *p, const rt_key *k, uint32_t v, int aside) {
  const rt_candidate *c = &p->ways[v];
  return c->may && !c->spent && (aside > 0 || !c->hot) && (aside > 1 || !is_refused(p, k, v));
}

/* How many objections have to be put aside so that one may be taken; 3: none may. */
static int put_aside(const rt_policy *p, const rt_key *k) {
  for (int aside = 0; aside < 3; aside++)
    for (uint32_t v = 0; v < p->n_variants; v++)
      if (may(p, k, v, aside)) return aside;
  return 3;
}

/* Is too little known of it to be compared? */
static int is_untried(const rt_policy *p, const rt_key *k, uint32_t v) {
  const rt_habit *h = habit_of(p, k->entry, v);
  return h->tried < TRIALS || expected(p, k, v) == NEVER || (by_energy(p) && h->ns < ENERGY_NS);
}

/* That which was run the longest ago at these shapes, if that is long enough, of those that may and have time left for it; n_variants: none. */
static uint32_t forgotten(const rt_policy *p, const rt_key *k, uint32_t best, int aside) {
  uint32_t found = p->n_variants, others = 0;
  uint64_t before = p->clock > EVERY ? p->clock - EVERY : 0;
  for (uint32_t v = 0; v < p->n_variants; v++) others += v != best && may(p, k, v, aside);
  for (uint32_t v = 0; v < p->n_variants; v++) {
    uint64_t at = k->of[v].count ? k->of[v].at : 0;
    if (v != best && may(p, k, v, aside) && at < before && p->ways[v].explored_ns <= p->total_ns / SHARE / others) before = at, found = v;
  }
  return found;
}

/* Is it time to move from `bound` to `best`, given how long the states take that have to come back, and go up again? An exploration ends
 * at once: that way back was part of its price. */
static int is_worth_it(rt_policy *p, const rt_key *k, uint32_t bound, uint32_t best, uint64_t away, int bound_may) {
  if (!away || !bound_may || !p->home_bytes || p->explored || by_order(p)) return 1;
  uint64_t here = cost(p, k, bound, expected(p, k, bound)), there = cost(p, k, best, expected(p, k, best));
  if (here == NEVER) return 1;
  p->regret = here > there ? p->regret + (here - there) : 0;
  return p->regret >= 2 * cost(p, k, bound, part(p->home_ns, away, p->home_bytes));
}

static void look(rt_policy *p) {
  uint64_t now = rt_policy_now();
  if ((p->kind != SMELT_POLICY_THERMAL && p->kind != SMELT_POLICY_BATTERY) || (p->looked && now - p->looked < LOOK_NS)) return;
  p->looked = now ? now : 1;
  if (p->kind == SMELT_POLICY_BATTERY) p->power = rt_power_now();
  for (uint32_t v = 0; p->kind == SMELT_POLICY_THERMAL && v < p->n_variants; v++) {
    rt_candidate *c = &p->ways[v];
    c->heat = rt_heat_of(p->zones, c->unit, p->limit, HOTTEST);
    c->hot = c->heat.millidegrees != RT_NO_HEAT && c->heat.above > (c->hot ? -p->cooled : 0);
  }
}

static uint32_t best_of(const rt_policy *p, const rt_key *k, int aside) {
  uint32_t best = p->n_variants;
  uint64_t least = NEVER;
  for (uint32_t v = 0; v < p->n_variants; v++) {
    if (!may(p, k, v, aside)) continue;
    uint64_t own = cost(p, k, v, expected(p, k, v));
    if (best == p->n_variants || own < least) best = v, least = own;
    if (by_order(p)) return best;
  }
  return best;
}

int rt_policy_choose(rt_policy *p, uint32_t bound, uint64_t away, uint32_t *to) {
  const rt_key *k = p->key;
  p->exploring = NULL;
  if (!k) return 0;
  look(p);
  int aside = put_aside(p, k);
  if (aside == 3) return 0;
  for (*to = 0; !by_order(p) && *to < p->n_variants; ++*to)
    if (may(p, k, *to, aside) && is_untried(p, k, *to)) return 1;
  uint32_t best = best_of(p, k, aside), again = p->n_variants;
  p->best_ns = expected(p, k, best);
  if (!by_order(p) && p->clock - p->explored_at >= EVERY) again = forgotten(p, k, best, aside);
  if (again < p->n_variants) p->exploring = &p->ways[again], p->explored_at = p->clock, *to = again;
  else *to = best == bound || is_worth_it(p, k, bound, best, away, may(p, k, bound, aside)) ? best : bound;
  if (*to == best) p->regret = 0;
  return 1;
}

/* ---- a run ---- */
int rt_policy_refuses(const rt_policy *p, uint32_t v) { return p->key && is_refused(p, p->key, v); }

void rt_policy_stay(rt_policy *p, rt_stays why, const char *text) {
  p->stays = why;
  snprintf(p->kept_by, sizeof p->kept_by, "%s", text);
}

void rt_policy_moved(rt_policy *p, uint64_t ns, uint64_t bytes) {
  p->moved_ns += ns;
  p->home_ns = ns, p->home_bytes = bytes;
}

void rt_policy_start(rt_policy *p) {
  p->counted = by_energy(p) && rt_energy_read(p->counter, "energy_uj", &p->microjoules);
  if (by_energy(p) && !p->counted) p->counter[0] = 0; /* it tells no more */
  p->began = rt_policy_now();
}

void rt_policy_refused(rt_policy *p, uint32_t v) {
  rt_estimate *e = &p->key->of[v];
  p->ways[v].spent = 1;
  e->refused++, e->refused_at = p->clock;
}

static uint64_t median(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t low = a < b ? a : b, high = a < b ? b : a;
  return c < low ? low : c > high ? high : c;
}

/* What was last seen long ago, or but once, is not what a faster run now is measured by. */
static void learn(rt_estimate *e, uint64_t ns, uint64_t clock) {
  int anew = !e->count || (ns < e->ns && (e->count == 1 || clock - e->at >= EVERY / 2));
  if (anew) e->ns = e->recent[0] = e->recent[1] = ns;
  else {
    uint64_t m = median(ns, e->recent[0], e->recent[1]);
    e->ns = m > e->ns ? e->ns + (m - e->ns) / DECAY : e->ns - (e->ns - m) / DECAY;
  }
  e->recent[1] = e->recent[0], e->recent[0] = ns;
  e->at = clock, e->refused = 0;
  e->count += e->count < UINT32_MAX;
}

/* The energy of a run; what was counted long ago counts for less. */
static void count_energy(rt_policy *p, rt_habit *h, uint64_t ns) {
  uint64_t now;
  if (!p->counted || !rt_energy_read(p->counter, "energy_uj", &now)) return;
  uint64_t used = now >= p->microjoules ? now - p->microjoules : p->counter_most > p->microjoules ? p->counter_most - p->microjoules + now : now;
  if (h->ns >= (uint64_t)SHARE * ENERGY_NS) h->ns /= 2, h->microjoules /= 2;
  h->ns += ns, h->microjoules += used;
}

void rt_policy_learn(rt_policy *p, uint32_t v, int watched) {
  uint64_t end = rt_policy_now(), ns = end > p->began ? end - p->began : 1;
  rt_candidate *explored = p->exploring ? p->exploring : p->explored; /* the state's way back is its, too */
  if (!p->key || watched) return;
  rt_habit *h = habit_of(p, p->key->entry, v);
  count_energy(p, h, ns);
  h->tried += h->tried < UINT32_MAX;
  learn(&p->key->of[v], ns, p->clock);
  if (explored) explored->explored_ns += p->moved_ns + (p->exploring && ns > p->best_ns ? ns - p->best_ns : 0);
  p->total_ns += ns + p->moved_ns;
}
