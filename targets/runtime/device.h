/* device.h: the private header of a session with units besides the CPU: its spaces, and what device.c and crossing.c call of each other. */
#ifndef SMELT_DEVICE_H
#define SMELT_DEVICE_H
#include "unit.h"

enum { RT_OFFSET_BITS = 48, RT_SPACE_MASK = (1 << 15) - 1, RT_HOST = 0 };

typedef struct {
  uint32_t unit;
  int32_t foreign;   /* not ours to give back: the model's weights on the host */
  void *memory;      /* the driver's, or the host's bytes */
  uint64_t capacity;
  char *mapped;      /* where the host sees a device's memory, between map and unmap, for one kernel of the CPU */
  /* As the host sees it: */
  char *shown;       /* mapped until the unit has work for it, where it shares its memory */
  rt_beside mirror;  /* the host's own copy, where it does not */
  uint64_t later_at, later; /* bytes that come down but have not been asked for yet, of a unit whose reads wait; and where */
  uint32_t partner;  /* of memory at the host, the unit to which and from which bytes are under way; 0: none */
  uint64_t sent, coming; /* the points of the unit after which bytes have gone up from the host's memory, and have come down to it */
  /* While a run uses a caller's tensor in its place: what is its own. */
  int32_t lent;
  void *own;
  uint64_t own_capacity;
} rt_space;

struct rt_device {
  uint32_t first_arena, first_state, n_spaces, n_units;
  uint32_t n_shown; /* spaces that are */
  rt_space *spaces;
  rt_unit *units; /* [unit - 1] */
  smelt_place *places; /* of the buffers of a launch */
};

static inline smelt_addr rt_address(uint32_t space) { return (smelt_addr)((uint64_t)space << RT_OFFSET_BITS); }
static inline uint64_t rt_offset_of(smelt_addr at) { return (uint64_t)at & (((uint64_t)1 << RT_OFFSET_BITS) - 1); }
static inline uint32_t rt_number_of(smelt_addr at) { return (uint32_t)((uint64_t)at >> RT_OFFSET_BITS) & RT_SPACE_MASK; }
static inline rt_space *rt_space_of(const smelt_rt *rt, smelt_addr at) {
  uint32_t i = rt_number_of(at);
  return &rt->session->device->spaces[i < rt->session->device->n_spaces ? i : 0];
}
static inline rt_unit *rt_unit_of(const smelt_rt *rt, const rt_space *space) { return &rt->session->device->units[space->unit - 1]; }
static inline smelt_place rt_place_of(const rt_space *space, smelt_addr at) { return (smelt_place){space->memory, rt_offset_of(at)}; }
static inline smelt_place rt_start_of(const rt_space *space) { return (smelt_place){space->memory, 0}; }

/* ---- crossing.c ---- */
/* A call of a unit's driver failed; `what` it was for. Writes the session's error; a status. */
int32_t rt_device_failed(smelt_rt *rt, rt_unit *u, const char *what, int32_t code);
/* Before the unit gets work that uses the space: the host no longer looks at it. A status. */
int32_t rt_space_use(smelt_rt *rt, rt_space *space);
/* Before the space becomes another memory, or somebody else looks at it: the same, and nothing is under way between its memory at the
 * host, its own or a copy, and a unit. */
int32_t rt_space_quiet(smelt_rt *rt, rt_space *space);
/* The host looks at nothing any more; what a driver says of that is left out. */
void rt_device_hide(smelt_rt *rt);
#endif
