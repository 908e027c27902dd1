/* policy.h: the private header of policies: what is known of each variant's runs and of the machine around them. */
#ifndef SMELT_POLICY_H
#define SMELT_POLICY_H
#include "rt.h"

/* ---- surroundings.c: what the system tells, below /sys or SMELT_SYSFS ---- */
enum { RT_NO_HEAT = INT32_MIN };
typedef struct {
  int32_t millidegrees; /* of the zone that is the furthest above its limit, or the nearest to it; RT_NO_HEAT: none tells */
  int32_t above;        /* its limit */
} rt_heat;
/* Of the zones whose type begins, in whatever case, with a prefix that `zones` has for `unit` ("cpu=cpu,soc;*=gpu"). limit: 0: each zone's
 * lowest passive trip point, at which the system begins to slow it down, and `otherwise` of zones without one. */
rt_heat rt_heat_of(const char *zones, const char *unit, int32_t limit, int32_t otherwise);

typedef enum { RT_POWER_UNKNOWN, RT_POWER_MAINS, RT_POWER_BATTERY } rt_power;
rt_power rt_power_now(void);

enum { RT_COUNTER_BYTES = 512 };
/* The folder of a counter of energy whose name begins with `prefix` and that can be read; 0: there is none. */
int rt_energy_find(const char *prefix, char folder[RT_COUNTER_BYTES]);
int rt_energy_read(const char *folder, const char *figure, uint64_t *microjoules); /* 0: it cannot be read any more */

/* ---- policy.c ---- */
/* What runs of one variant took at one key. */
typedef struct {
  uint64_t ns;        /* expected */
  uint64_t recent[2]; /* the runs before the last one, the later one first */
  uint64_t at;        /* which run of the session the last one was */
  uint32_t count;     /* runs; 0: nothing above means anything */
  uint32_t refused;   /* how often in turn the variant could not do it */
  uint64_t refused_at;
} rt_estimate;

/* Shapes of an entry's inputs and states, rounded: their runs are expected to take the same. */
typedef struct {
  uint64_t hash, work; /* work: bytes of the inputs and states, and 1 */
  uint64_t used;       /* which run had it last; 0: the row is free */
  uint32_t entry;
  rt_estimate *of;     /* per variant */
} rt_key;

/* Of a variant's runs of an entry, whatever the shapes. */
typedef struct {
  uint64_t microjoules, ns; /* of the latest runs whose energy was counted */
  uint32_t tried;           /* runs that were learnt from */
} rt_habit;

typedef struct {
  int32_t fits;      /* this processor has what the code wants */
  int32_t may;       /* it may be bound to now */
  int32_t spent;     /* it has failed in the run under way */
  int32_t hot;
  rt_heat heat;      /* at the last look */
  uint64_t explored_ns; /* what its explorations took more than the best would have */
  const char *unit;  /* "cpu", or the name of its first unit's driver */
} rt_candidate;

/* Why a session stays where it is bound. */
typedef enum { RT_STAYS_NOT, RT_STAYS_TENSORS, RT_STAYS_WATCHED, RT_STAYS_STATE } rt_stays;

enum { RT_KEYS = 64 }; /* that are kept; the oldest gives way */
enum { RT_ZONES_BYTES = 256, RT_ENERGY_BYTES = 64, RT_NOTE_BYTES = 2 * RT_WHY_BYTES };
struct rt_policy {
  int32_t kind, limit, cooled;
  char zones[RT_ZONES_BYTES], energy[RT_ENERGY_BYTES], counter[RT_COUNTER_BYTES], note[RT_NOTE_BYTES], kept_by[RT_WHY_BYTES];
  uint64_t counter_most;  /* after so many microjoules it begins at 0 again */
  uint32_t n_variants, n_entries;
  rt_candidate *ways;     /* per variant */
  rt_habit *habits;       /* per entry and variant */
  rt_key *keys;
  rt_power power;         /* at the last look */
  uint64_t looked;        /* when that was; 0: never */
  uint64_t clock;         /* runs that were bound */
  uint64_t total_ns;      /* of them */
  uint64_t explored_at;   /* the last one that was an exploration */
  uint64_t regret;        /* what staying has cost since the session was bound: see rt_policy_choose */
  uint64_t home_ns, home_bytes; /* how long states took to come back when they last did, and their bytes */
  /* Of the run under way: */
  rt_stays stays;
  rt_key *key;            /* NULL: its inputs are not those of the entry */
  rt_candidate *exploring, *explored; /* explored: by the run before it; NULL: it is none */
  uint64_t best_ns, moved_ns, began, microjoules;
  int32_t counted;        /* microjoules is what the counter said when it began */
};

uint64_t rt_policy_now(void);
void rt_policy_stay(rt_policy *p, rt_stays why, const char *text);
void rt_policy_moved(rt_policy *p, uint64_t ns, uint64_t bytes);
void rt_policy_begin(rt_policy *p, const smelt_rt *named, const DLTensor *inputs, size_t n);
/* The variant for the run, of those that may be; away: bytes of states that have to leave the one that it is bound to. 0: there is none. */
int rt_policy_choose(rt_policy *p, uint32_t bound, uint64_t away, uint32_t *to);
void rt_policy_start(rt_policy *p);
void rt_policy_refused(rt_policy *p, uint32_t variant);
void rt_policy_learn(rt_policy *p, uint32_t variant, int watched);
/* Of a run like the last one: ns and microjoules, 0: unknown; whether the variant is not tried because it could not do it. */
uint64_t rt_policy_expected(const rt_policy *p, uint32_t variant);
uint64_t rt_policy_energy(const rt_policy *p, uint32_t variant);
int rt_policy_refuses(const rt_policy *p, uint32_t variant);

/* ---- share.c ---- */
rt_policy *rt_policy_copy(const rt_policy *from); /* with what is known, for a session of the same model; NULL: no memory */
#endif
