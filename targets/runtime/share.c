/* share.c: what a caller wants of a session's policy in; the policy set, and what each variant's share of the runs is, out. */
#include "driver.h"
#include "policy.h"

enum { LARGEST_HOW = 4096, MOST_MILLIDEGREES = 1000000, COOLED = 5000 };
static const char ZONES[] = "cpu=cpu,x86_pkg_temp;*=gpu", ENERGY[] = "psys";

/* ---- a policy's memory: one block ---- */
static size_t lay_out(rt_policy *p, uint32_t n_variants, uint32_t n_entries) {
  size_t at = (sizeof *p + 63) / 64 * 64;
  char *base = (char *)p;
  rt_candidate *ways = rt_carve(base, &at, n_variants, sizeof *ways);
  rt_habit *habits = rt_carve(base, &at, (size_t)n_entries * n_variants, sizeof *habits);
  rt_key *keys = rt_carve(base, &at, RT_KEYS, sizeof *keys);
  rt_estimate *of = rt_carve(base, &at, (size_t)RT_KEYS * n_variants, sizeof *of);
  if (!p) return at;
  p->ways = ways, p->habits = habits, p->keys = keys;
  p->n_variants = n_variants, p->n_entries = n_entries;
  for (uint32_t i = 0; i < RT_KEYS; i++) keys[i].of = of + i * n_variants;
  return at;
}

rt_policy *rt_policy_copy(const rt_policy *from) {
  size_t bytes = lay_out(NULL, from->n_variants, from->n_entries);
  rt_policy *p = malloc(bytes);
  if (!p) return NULL;
  memcpy(p, from, bytes);
  lay_out(p, from->n_variants, from->n_entries);
  p->key = NULL, p->exploring = p->explored = NULL;
  return p;
}

/* Of the first unit besides the CPU, which is all that a choice among devices has. */
static const char *unit_of(const smelt_rt *rt, uint32_t v) {
  uint64_t units = rt->model->variants[v].units;
  return units ? rt->model->units[__builtin_ctzll(units)].driver->name : "cpu";
}

static rt_policy *create(const smelt_rt *rt) {
  const smelt_model_desc *m = rt->model;
  char missing[RT_ERROR_BYTES / 2];
  rt_policy *p = calloc(1, lay_out(NULL, m->n_variants, rt_named_entries(m)));
  if (!p) return NULL;
  lay_out(p, m->n_variants, rt_named_entries(m));
  for (uint32_t v = 0; v < m->n_variants; v++) {
    p->ways[v].fits = !rt_cpu_lacks(m->variants[v].cpu_features, missing, sizeof missing);
    p->ways[v].unit = unit_of(rt, v);
  }
  return p;
}

/* ---- setting it ---- */
/* Why these options are none; NULL: they are. The struct may be an earlier version's, without its last fields. */
static const char *unfit(const smelt_policy_options *how) {
  if (how->struct_size < (int32_t)(offsetof(smelt_policy_options, policy) + sizeof how->policy) || how->struct_size > LARGEST_HOW)
    return "how->struct_size is no size of a struct; set it to sizeof(smelt_policy_options)";
  if (how->policy < SMELT_POLICY_STATIC || how->policy > SMELT_POLICY_BATTERY) return "how->policy is none; see smelt_policy_kind";
  return NULL;
}

static const char *unfit_values(const smelt_policy_options *how) {
  if (how->limit < 0 || how->cooled < 0 || how->limit > MOST_MILLIDEGREES || how->cooled > MOST_MILLIDEGREES)
    return "how->limit or how->cooled is no number of millidegrees, wanted 0 (the default) to 1000000";
  if (how->zones && strlen(how->zones) >= RT_ZONES_BYTES) return "how->zones is longer than 255 characters; name fewer prefixes";
  if (how->energy && strlen(how->energy) >= RT_ENERGY_BYTES) return "how->energy is longer than 63 characters; name the beginning of the counter's name";
  return NULL;
}

static void set(rt_policy *p, const smelt_policy_options *how) {
  p->kind = how->policy, p->limit = how->limit;
  p->cooled = how->cooled ? how->cooled : COOLED;
  snprintf(p->zones, sizeof p->zones, "%s", how->zones ? how->zones : ZONES);
  snprintf(p->energy, sizeof p->energy, "%s", how->energy ? how->energy : ENERGY);
  p->looked = 0, p->power = RT_POWER_UNKNOWN, p->counter[0] = 0, p->regret = 0;
  for (uint32_t v = 0; v < p->n_variants; v++) p->ways[v].hot = 0, p->ways[v].heat = (rt_heat){RT_NO_HEAT, 0};
  for (uint32_t i = 0; i < p->n_entries * p->n_variants; i++) p->habits[i].ns = p->habits[i].microjoules = 0; /* another counter's */
  if (how->policy == SMELT_POLICY_BATTERY && rt_energy_find(p->energy, p->counter) &&
      !rt_energy_read(p->counter, "max_energy_range_uj", &p->counter_most))
    p->counter_most = 0;
}

smelt_status smelt_policy(smelt_session *s, const smelt_policy_options *how) {
  smelt_rt *rt = (smelt_rt *)s;
  const char *why = how ? unfit(how) : "how is NULL, wanted a policy";
  smelt_policy_options all = {0};
  if (!why) {
    memcpy(&all, how, (size_t)how->struct_size < sizeof all ? (size_t)how->struct_size : sizeof all);
    why = unfit_values(&all);
  }
  smelt_status status = rt_enter(rt, why, "smelt_policy");
  if (status) return status;
  rt_session *session = rt->session;
  if (all.policy == SMELT_POLICY_STATIC) {
    free(session->policy);
    session->policy = NULL;
    return rt_leave(rt, SMELT_OK);
  }
  if (!session->policy && !(session->policy = create(rt)))
    return rt_leave(rt, rt_error(rt, SMELT_DEVICE, "smelt_policy: the system has no memory; close other sessions"));
  set(session->policy, &all);
  return rt_leave(rt, SMELT_OK);
}

/* ---- asking ---- */
size_t smelt_share_count(const smelt_session *s) { return s && rt_is_foreign((const smelt_rt *)s) ? 0 : smelt_model.n_variants; }

/* Why a run would not be bound to the variant, whatever it takes. */
static const char *objection(smelt_rt *rt, uint32_t v, char text[RT_WHY_BYTES]) {
  const rt_way *way = &rt->session->ways[v];
  const rt_candidate *c = rt->session->policy ? &rt->session->policy->ways[v] : NULL;
  char missing[RT_WHY_BYTES / 2];
  if (way->left) return way->why;
  text[0] = 0;
  if (rt_cpu_lacks(rt->model->variants[v].cpu_features, missing, sizeof missing)) snprintf(text, RT_WHY_BYTES, "this processor lacks %s", missing);
  else if (c && c->hot)
    snprintf(text, RT_WHY_BYTES, "its thermal zone was at %d.%d degrees, limit %d.%d", (int)(c->heat.millidegrees / 1000),
             (int)(c->heat.millidegrees % 1000 / 100), (int)((c->heat.millidegrees - c->heat.above) / 1000),
             (int)((c->heat.millidegrees - c->heat.above) % 1000 / 100));
  else if (c && rt_policy_refuses(rt->session->policy, v)) snprintf(text, RT_WHY_BYTES, "it could not do a run of these shapes");
  return text;
}

smelt_status smelt_share(smelt_session *s, size_t i, smelt_unit_share *out) {
  smelt_rt *rt = (smelt_rt *)s;
  const char *why = !out ? "out is NULL, wanted where to put the numbers" : i >= smelt_model.n_variants ? "there is no share of this number; see smelt_share_count" : NULL;
  smelt_status status = rt_enter(rt, why, "smelt_share");
  if (status) return status;
  const rt_policy *p = rt->session->policy;
  rt_way *way = &rt->session->ways[i];
  char text[RT_WHY_BYTES];
  const char *against = objection(rt, (uint32_t)i, text);
  if (against == text) memcpy(way->why, text, sizeof text);
  *out = (smelt_unit_share){.unit = unit_of(rt, (uint32_t)i), .processor = rt->model->variants[i].name,
                            .why = way->why, .runs = way->runs, .explorations = way->explorations,
                            .expected_ns = p ? rt_policy_expected(p, (uint32_t)i) : 0, .expected_uj = p ? rt_policy_energy(p, (uint32_t)i) : 0,
                            .millidegrees = p ? p->ways[i].heat.millidegrees : RT_NO_HEAT, .bound = rt->session->variant == i,
                            .open = !rt->model->variants[i].units || way->device};
  return rt_leave(rt, SMELT_OK);
}

/* One sentence more. */
static void say(rt_policy *p, const char *head, const char *text) {
  size_t n = strlen(p->note);
  snprintf(p->note + n, sizeof p->note - n, "%s%s%s", n ? "; " : "", head, text);
}

static void say_stays(rt_policy *p) {
  static const char *const whys[] = {[RT_STAYS_TENSORS] = "it stays at its unit, where tensors of smelt_tensor lie",
                                     [RT_STAYS_WATCHED] = "it stays at its unit while it is profiled or probed",
                                     [RT_STAYS_STATE] = "it stays at its unit, which does not give the state back: "};
  if (p->stays) say(p, whys[p->stays], p->kept_by);
}

static void say_heat(rt_policy *p) {
  uint32_t may = 0, hot = 0;
  for (uint32_t v = 0; v < p->n_variants; v++) {
    const rt_candidate *c = &p->ways[v];
    if (c->may && c->heat.millidegrees == RT_NO_HEAT) say(p, "no thermal zone tells the heat of ", c->unit);
    may += c->may != 0, hot += c->may && c->hot;
  }
  if (may && hot == may) say(p, "all units are above their limits, and none is left for that", "");
}

static void say_power(rt_policy *p) {
  if (p->power == RT_POWER_UNKNOWN) say(p, "the system does not tell whether a battery feeds it, so that it acts as load does", "");
  else if (p->power == RT_POWER_MAINS) say(p, "on mains, as load", "");
  else if (p->counter[0]) say(p, "on battery, by the energy of ", p->counter);
  else say(p, "on battery, in the bundle's order, since no counter of energy can be read that begins with ", p->energy);
}

const char *smelt_policy_note(smelt_session *s) {
  smelt_rt *rt = (smelt_rt *)s;
  if (rt_enter(rt, NULL, "smelt_policy_note")) return NULL;
  rt_policy *p = rt->session->policy;
  if (p) p->note[0] = 0;
  if (p) say_stays(p);
  if (p && p->kind == SMELT_POLICY_THERMAL && p->looked) say_heat(p);
  if (p && p->kind == SMELT_POLICY_BATTERY && p->looked) say_power(p);
  const char *note = p && p->note[0] ? p->note : NULL;
  rt_leave(rt, SMELT_OK);
  return note;
}
