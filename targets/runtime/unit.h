/* unit.h: the private header of a unit besides the CPU: its driver's functions as the rest of the runtime calls them. */
#ifndef SMELT_UNIT_H
#define SMELT_UNIT_H
#include "driver.h"
#include "rt.h"

enum { RT_PARTS = 16 };

/* What a run asked a unit to do between two points where the host has to look: launches and copies, as words of 64 bits. */
typedef struct {
  int64_t *words;
  size_t n_words, room; /* room: of the memory at `words` */
  uint32_t n_commands, n_launches; /* what waits, and what of it the driver has been given as launches */
  int32_t first, last;             /* kernels */
  void *list;      /* the driver's record of it; NULL: it came once, or is refused */
  int32_t refused; /* the driver cannot record it */
  uint64_t hash, used; /* used: when it came last, by rt_unit.clock */
} rt_part;

/* Memory of the host beside a unit, of which a driver may say that its device reaches it by itself. */
typedef struct {
  rt_block block;
  int32_t locked; /* it is the driver's */
} rt_beside;

/* Where bytes of another unit stay until this one has them. */
typedef struct {
  rt_beside memory;
  uint64_t sent; /* the point after which they may be others */
} rt_relay;

typedef struct {
  const smelt_driver *driver;
  void *state;
  rt_session *session; /* whose counters go up */
  const smelt_model_desc *model;
  rt_part pending, kept[RT_PARTS];
  uint64_t clock;
  int32_t refusals;  /* parts that it would not record, without one that it did: after some nobody asks */
  int32_t chains;    /* some of its kernels are parts of chains, for which launches wait in any case: as smelt_driver.chains */
  int32_t queued;        /* the driver has been given something since it was last told to start */
  int32_t busy;          /* it may be working */
  int32_t failed_kernel; /* which one a failure was about; -1: none */
  int32_t shares;        /* SMELT_SHARES_NOT, .._IDLE, .._APART */
  int32_t reads_wait;    /* downloads that can wait are asked for when somebody wants the bytes */
  uint64_t points;       /* how many have been marked */
  uint64_t ended;        /* all up to this one have been reached */
  int32_t steps;         /* each kernel is waited for, so that a failure names it */
  int32_t hung;          /* it has not ended in time */
  uint32_t started;      /* steps since it was last known to be idle; the kernels of the first and the last of them */
  int32_t first_started, last_started;
  int32_t late;          /* the code of a failure that nobody could be told; rt_unit_finish does */
  int32_t clocked;       /* the driver takes the device's times */
  char *staging;         /* what is uploaded from here stays until the unit is done */
  size_t staged;
  rt_relay relays[2];    /* in turns */
  uint32_t turn;
} rt_unit;

int32_t rt_unit_open(rt_unit *u, smelt_rt *rt, uint32_t number);
void rt_unit_close(rt_unit *u); /* after all its memory has been released */

/* Neighbours that are parts of one chain become one command; returns how many there are then. share: as smelt_driver.chains.
 * *memory: to be freed after them. */
uint32_t rt_chain(const smelt_model_desc *model, smelt_command *all, uint32_t n, int32_t share, void **memory);
void rt_chain_free(void *memory);

/* Each returns 0 or the device's number for the failure. */
int32_t rt_unit_launch(rt_unit *u, int32_t kernel, const smelt_place *places, const int64_t *dims, int64_t groups);
int32_t rt_unit_copy(rt_unit *u, smelt_place to, smelt_place from, size_t bytes);
/* stays: the bytes at `host` stay as they are until rt_unit_finish. */
int32_t rt_unit_upload(rt_unit *u, smelt_place to, const void *host, size_t bytes, int stays);
int32_t rt_unit_download(rt_unit *u, smelt_place from, void *host, size_t bytes, int wait); /* SMELT_LAST, .. */
int32_t rt_unit_ask(rt_unit *u, smelt_place from, void *host, size_t bytes); /* SMELT_SOON, begun with what is started next */
void *rt_unit_map(rt_unit *u, void *memory, size_t bytes, int writes, int32_t *code);
int32_t rt_unit_unmap(rt_unit *u, void *memory, void *mapped, size_t bytes, int writes);
int32_t rt_unit_start(rt_unit *u);  /* what waits */
int32_t rt_unit_finish(rt_unit *u); /* everything is done, or given up */
void rt_unit_clock(rt_unit *u, int on);
const char *rt_unit_form(const rt_unit *u, int32_t kernel, const char **why); /* as smelt_driver.form */
int64_t rt_unit_elapsed(rt_unit *u); /* ns of the launches since it was last asked, by the device's events; -1: nobody tells */
void rt_unit_forget(rt_unit *u);    /* what has not been started, and then as above */

/* The point behind all that was asked for goes to *point; then wait until all before one has ended, and no more than that. */
int32_t rt_unit_mark(rt_unit *u, uint64_t *point);
int32_t rt_unit_reach(rt_unit *u, uint64_t point);
/* Bytes of `from` to `to`, by way of the host; neither unit ends what else it does. from_unit: NULL where `from` is the host's memory.
 * *failed: which one a code is about. */
int32_t rt_unit_relay(rt_unit *to_unit, smelt_place to, rt_unit *from_unit, smelt_place from, size_t bytes, rt_unit **failed);
int32_t rt_unit_relays(rt_unit *u); /* takes the memory for that; 0: there is none */

/* Memory beside the unit for so many bytes, keeping what it holds; 0: the system gives none. Nothing is under way there. */
int rt_beside_extend(rt_unit *u, rt_beside *beside, uint64_t bytes);
void rt_beside_free(rt_unit *u, rt_beside *beside);

void *rt_unit_allocate(rt_unit *u, size_t bytes, const void *contents, int32_t *code);
void rt_unit_release(rt_unit *u, void *memory);
#endif
