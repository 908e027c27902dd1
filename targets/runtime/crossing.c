/* crossing.c: addresses at a unit and as the host sees them in; what the host reads and writes there out, copied only where it must be.
 *
 * A value that the host and one unit read and write has one place, at the unit. An address with the sign means it as the host sees it.
 * A unit that shares the host's memory maps the place, until it has work for it; handing a value over is then an order of steps and no
 * copy. Of any other unit the host has a mirror, and handing over is a copy between the two, which is asked for and not waited for: the
 * host waits when it reads what comes, or is about to write where bytes are still to go up from. */
#include "device.h"

/* A step of a unit, for people. */
static const char *step(const smelt_rt *rt, int32_t kernel) { return kernel < 0 ? "a copy" : rt->model->kernels[kernel].name; }

/* What waited is started by a call that may be about something else: the kernel that failed is named then, or, where the driver tells
 * only that something has failed, the first and the last of those that it may have been. */
int32_t rt_device_failed(smelt_rt *rt, rt_unit *u, const char *what, int32_t code) {
  enum { WHAT_BYTES = 300 };
  char text[WHAT_BYTES];
  rt->session->broken = 1;
  if (u->failed_kernel >= 0) what = rt->model->kernels[u->failed_kernel].name;
  else if (u->started == 1) what = step(rt, u->first_started);
  else if (u->started) {
    snprintf(text, sizeof text, "%s: one of %u steps, from %.100s to %.100s,", what, (unsigned)u->started, step(rt, u->first_started), step(rt, u->last_started));
    what = text;
  }
  u->failed_kernel = -1;
  u->started = 0;
  if (code == SMELT_HANGS)
    return rt_error(rt, SMELT_DEVICE,
                    "%s device '%s': %s has not ended within %llu s; close the session, which is lost, and give it more time (SMELT_DEVICE_SECONDS), "
                    "or learn which kernel it is (SMELT_DEVICE_STEPS=1), or place that on the cpu", u->driver->name, u->driver->device(u->state), what,
                    (unsigned long long)(smelt_rt_patience() / 1000000000u));
  return rt_error(rt, SMELT_DEVICE, "%s device '%s': %s failed with code %d; %s", u->driver->name, u->driver->device(u->state), what, (int)code,
                  u->driver->told(code));
}


/* ---- the host's view of a unit's memory ---- */
static int32_t hide(smelt_rt *rt, rt_space *space) {
  rt_unit *u = rt_unit_of(rt, space);
  char *shown = space->shown;
  space->shown = NULL;
  rt->session->device->n_shown--;
  int32_t code = rt_unit_unmap(u, space->memory, shown, (size_t)space->capacity, 1);
  return code ? rt_device_failed(rt, u, "unmapping memory", code) : SMELT_OK;
}

int32_t rt_space_use(smelt_rt *rt, rt_space *space) {
  rt_device *d = rt->session->device;
  int32_t status = SMELT_OK;
  if (!d->n_shown || space->unit == RT_HOST) return SMELT_OK;
  if (rt_unit_of(rt, space)->shares != SMELT_SHARES_IDLE) return space->shown ? hide(rt, space) : SMELT_OK;
  for (uint32_t i = 0; i < d->n_spaces && !status; i++)
    if (d->spaces[i].shown && d->spaces[i].unit == space->unit) status = hide(rt, &d->spaces[i]);
  return status;
}

void rt_device_hide(smelt_rt *rt) {
  rt_device *d = rt->session->device;
  for (uint32_t i = 0; i < d->n_spaces; i++) {
    rt_space *space = &d->spaces[i];
    space->later = 0; /* nobody has read it */
    if (!space->shown) continue;
    rt_unit_unmap(rt_unit_of(rt, space), space->memory, space->shown, (size_t)space->capacity, 1);
    space->shown = NULL, d->n_shown--;
  }
}

/* Ask for what was left for later: before anything else is done at the host's copy, so that what nobody reads any more is over it, too. */
static int32_t fetch(smelt_rt *rt, rt_space *space) {
  rt_unit *u = rt_unit_of(rt, space);
  uint64_t bytes = space->later;
  if (!bytes) return SMELT_OK;
  space->later = 0;
  char *host = (char *)space->mirror.block.data + space->later_at;
  int32_t code = rt_unit_download(u, (smelt_place){space->memory, space->later_at}, host, (size_t)bytes, SMELT_SOON);
  if (!code) code = rt_unit_mark(u, &space->coming);
  return code ? rt_device_failed(rt, u, "copy to the host", code) : SMELT_OK;
}

/* Until what comes to the host's memory of a space is there, and (writes) what goes up from there has gone; for nothing else. */
static int32_t await(smelt_rt *rt, rt_space *space, int writes) {
  uint32_t unit = space->unit == RT_HOST ? space->partner : space->unit;
  if (!unit) return SMELT_OK;
  rt_unit *u = &rt->session->device->units[unit - 1];
  int32_t code = rt_unit_reach(u, writes && space->sent > space->coming ? space->sent : space->coming);
  return code ? rt_device_failed(rt, u, "waiting for what the host reads", code) : SMELT_OK;
}

/* The unit to which, or from which, bytes of memory at the host go next: one at a time. */
static int32_t pair(smelt_rt *rt, rt_space *space, uint32_t unit) {
  int32_t status = space->partner == unit ? SMELT_OK : await(rt, space, 1);
  if (!status && space->partner != unit) space->partner = unit, space->sent = space->coming = 0;
  return status;
}

int32_t rt_space_quiet(smelt_rt *rt, rt_space *space) {
  if (space->shown) return hide(rt, space);
  if (space->unit != RT_HOST && fetch(rt, space)) return SMELT_DEVICE;
  return await(rt, space, 1);
}

/* The host's copy of a space, which grows with it; NULL after rt_error. */
static char *mirror(smelt_rt *rt, rt_space *space) {
  rt_block *block = &space->mirror.block;
  if (block->data && block->capacity >= space->capacity) return block->data;
  if (rt_space_quiet(rt, space)) return NULL;
  if (rt_beside_extend(rt_unit_of(rt, space), &space->mirror, space->capacity)) return block->data;
  rt_error(rt, SMELT_DEVICE, "memory of the host beside a unit: %llu bytes wanted, the system has no more; use smaller shapes or close other sessions",
           (unsigned long long)space->capacity);
  return NULL;
}

/* Where the host sees the space; writes: it may change what lies there. NULL after rt_error. */
static char *seen(smelt_rt *rt, rt_space *space, int writes) {
  rt_unit *u = rt_unit_of(rt, space);
  if (u->shares) {
    int32_t code = 0;
    if (space->shown) return space->shown;
    space->shown = rt_unit_map(u, space->memory, (size_t)space->capacity, 1, &code);
    rt->session->device->n_shown += space->shown != NULL;
    if (!space->shown) rt_device_failed(rt, u, "mapping memory for the host", code);
    return space->shown;
  }
  return fetch(rt, space) || await(rt, space, writes) ? NULL : mirror(rt, space);
}

/* From how the host sees a place to the unit, or (down) back. */
static int32_t hand_over(smelt_rt *rt, rt_space *space, smelt_addr at, uint64_t bytes, int down) {
  rt_unit *u = rt_unit_of(rt, space);
  int32_t code = 0;
  if (u->shares) {
    rt->session->shared++, rt->session->shared_bytes += bytes;
    if (down) code = rt_unit_start(u);
    return code ? rt_device_failed(rt, u, "handing over to the host", code) : SMELT_OK;
  }
  rt->session->crossings++, rt->session->crossed_bytes += bytes;
  char *host = mirror(rt, space);
  if (!host || (down && fetch(rt, space))) return SMELT_DEVICE;
  host += rt_offset_of(at);
  if (down && u->reads_wait && !space->mirror.locked) {
    space->later_at = rt_offset_of(at), space->later = bytes;
    code = rt_unit_start(u);
  } else {
    code = down ? rt_unit_download(u, rt_place_of(space, at), host, (size_t)bytes, SMELT_SOON) : rt_unit_upload(u, rt_place_of(space, at), host, (size_t)bytes, 1);
    if (!code) code = rt_unit_mark(u, down ? &space->coming : &space->sent);
  }
  return code ? rt_device_failed(rt, u, down ? "copy to the host" : "copy from the host", code) : SMELT_OK;
}

/* ---- bytes ---- */
static int is_seen(smelt_addr at) { return at < 0; }
static smelt_addr unseen(smelt_addr at) { return (smelt_addr)((uint64_t)at & ~((uint64_t)1 << 63)); }
/* The unit whose work, or the host if its own, reads and writes at an address. */
static uint32_t side_of(const smelt_rt *rt, smelt_addr at) { return is_seen(at) ? RT_HOST : rt_space_of(rt, at)->unit; }

/* All but the weights. */
static int is_written(const smelt_rt *rt, uint32_t space) { return space >= rt->session->device->first_arena; }

/* Where the host sees an address, until rt_device_unmap; NULL after rt_error. */
static char *host_view(smelt_rt *rt, smelt_addr at, int writes) {
  rt_space *space = rt_space_of(rt, at);
  if (space->unit == RT_HOST) return await(rt, space, writes) ? NULL : (char *)space->memory + rt_offset_of(at);
  char *start = is_seen(at) ? seen(rt, space, writes) : space->shown ? space->shown : space->mapped;
  if (start) return start + rt_offset_of(at);
  if (is_seen(at)) return NULL;
  rt_unit *u = rt_unit_of(rt, space);
  int32_t code = 0;
  space->mapped = rt_unit_map(u, space->memory, (size_t)space->capacity, is_written(rt, rt_number_of(at)), &code);
  if (space->mapped) return space->mapped + rt_offset_of(at);
  rt_device_unmap(rt);
  rt_device_failed(rt, u, "mapping memory for the host", code);
  return NULL;
}

static int32_t download(smelt_rt *rt, smelt_addr at, void *to, uint64_t bytes, const char *what) {
  rt_space *space = rt_space_of(rt, at);
  if (side_of(rt, at) == RT_HOST) {
    const char *host = host_view(rt, at, 0);
    if (host) memcpy(to, host, (size_t)bytes);
    return host ? SMELT_OK : SMELT_DEVICE;
  }
  rt_unit *u = rt_unit_of(rt, space);
  int32_t status = rt_space_use(rt, space);
  if (status) return status;
  int32_t code = rt_unit_download(u, rt_place_of(space, at), to, (size_t)bytes, SMELT_NOW);
  return code ? rt_device_failed(rt, u, what, code) : SMELT_OK;
}

/* stays: nothing of the run writes to `from` later. */
static int32_t upload(smelt_rt *rt, smelt_addr at, const void *from, uint64_t bytes, int stays, const char *what) {
  rt_space *space = rt_space_of(rt, at);
  if (side_of(rt, at) == RT_HOST) {
    char *host = host_view(rt, at, 1);
    if (host) memcpy(host, from, (size_t)bytes);
    return host ? SMELT_OK : SMELT_DEVICE;
  }
  rt_unit *u = rt_unit_of(rt, space);
  int32_t status = rt_space_use(rt, space);
  if (status) return status;
  int32_t code = rt_unit_upload(u, rt_place_of(space, at), from, (size_t)bytes, stays);
  return code ? rt_device_failed(rt, u, what, code) : SMELT_OK;
}

int32_t rt_device_read(smelt_rt *rt, smelt_addr at, void *to, uint64_t bytes) { return download(rt, at, to, bytes, "read of an element"); }
int32_t rt_device_read_state(smelt_rt *rt, uint32_t state, void *to, uint64_t bytes) {
  return download(rt, rt_address(rt->session->device->first_state + 2 * state), to, bytes, "read of a state");
}
int32_t rt_device_write(smelt_rt *rt, smelt_addr at, const void *from, uint64_t bytes) {
  return upload(rt, at, from, bytes, 0, "write of an element");
}

/* To memory at the host, which waits for it when it reads it; what is a caller's has it at once. */
static int32_t bring(smelt_rt *rt, smelt_addr to, smelt_addr from, uint64_t bytes) {
  rt_space *here = rt_space_of(rt, to), *there = rt_space_of(rt, from);
  if (is_seen(to) || here->lent) {
    char *host = host_view(rt, to, 1);
    return host ? download(rt, from, host, bytes, "copy to the host") : SMELT_DEVICE;
  }
  rt_unit *u = rt_unit_of(rt, there);
  int32_t status = pair(rt, here, there->unit);
  if (!status) status = await(rt, here, 1);
  if (!status) status = rt_space_use(rt, there);
  if (status) return status;
  int32_t code = rt_unit_ask(u, rt_place_of(there, from), (char *)here->memory + rt_offset_of(to), (size_t)bytes);
  if (!code) code = rt_unit_mark(u, &here->coming);
  return code ? rt_device_failed(rt, u, "copy to the host", code) : SMELT_OK;
}

/* From memory at the host, which waits for it before it is written again. */
static int32_t send_up(smelt_rt *rt, smelt_addr to, smelt_addr from, uint64_t bytes) {
  rt_space *here = rt_space_of(rt, from);
  rt_unit *u = rt_unit_of(rt, rt_space_of(rt, to));
  const char *host = pair(rt, here, rt_space_of(rt, to)->unit) ? NULL : host_view(rt, from, 0);
  if (!host || upload(rt, to, host, bytes, 1, "copy from the host")) return SMELT_DEVICE;
  int32_t code = rt_unit_mark(u, &here->sent);
  return code ? rt_device_failed(rt, u, "copy from the host", code) : SMELT_OK;
}

/* From one device to another, or from where the host sees the memory of one. */
static int32_t relay(smelt_rt *rt, smelt_addr to, smelt_addr from, uint64_t bytes) {
  rt_space *a = rt_space_of(rt, to), *b = rt_space_of(rt, from);
  rt_unit *failed = NULL, *u = is_seen(from) ? NULL : rt_unit_of(rt, b);
  smelt_place source = u ? rt_place_of(b, from) : (smelt_place){host_view(rt, from, 0), 0};
  if (!source.memory) return SMELT_DEVICE;
  int32_t status = rt_space_use(rt, a);
  if (!status && u) status = rt_space_use(rt, b);
  if (status) return status;
  int32_t code = rt_unit_relay(rt_unit_of(rt, a), rt_place_of(a, to), u, source, (size_t)bytes, &failed);
  return code ? rt_device_failed(rt, failed, "copy from another unit", code) : SMELT_OK;
}

/* From one unit to another: for the bytes that cross alone is waited, and no earlier than they are needed. */
static int32_t cross(smelt_rt *rt, smelt_addr to, smelt_addr from, uint64_t bytes) {
  rt->session->crossings++, rt->session->crossed_bytes += bytes;
  if (side_of(rt, to) == RT_HOST) return bring(rt, to, from, bytes);
  return rt_space_of(rt, from)->unit == RT_HOST ? send_up(rt, to, from, bytes) : relay(rt, to, from, bytes);
}

int32_t rt_device_copy(smelt_rt *rt, smelt_addr to, smelt_addr from, uint64_t bytes) {
  rt_space *a = rt_space_of(rt, to), *b = rt_space_of(rt, from);
  if (to != from && unseen(to) == unseen(from)) return hand_over(rt, a, unseen(to), bytes, is_seen(to));
  int one = a->unit != RT_HOST && a->unit == b->unit && rt_unit_of(rt, a)->shares; /* the unit sees what the host does */
  if (one) to = unseen(to), from = unseen(from);
  if (side_of(rt, to) != side_of(rt, from)) return cross(rt, to, from, bytes);
  uint64_t distance = to > from ? (uint64_t)to - (uint64_t)from : (uint64_t)from - (uint64_t)to;
  if (side_of(rt, to) == RT_HOST || distance < bytes) { /* overlapping, which drivers refuse: on the host then */
    char *target = host_view(rt, to, 1), *source = target ? host_view(rt, from, 0) : NULL;
    if (!source) return SMELT_DEVICE;
    memmove(target, source, (size_t)bytes);
    return rt_device_unmap(rt);
  }
  rt_unit *u = rt_unit_of(rt, a);
  int32_t status = rt_space_use(rt, a);
  if (!status) status = rt_space_use(rt, b);
  if (status) return status;
  int32_t code = rt_unit_copy(u, rt_place_of(a, to), rt_place_of(b, from), (size_t)bytes);
  return code ? rt_device_failed(rt, u, "copy", code) : SMELT_OK;
}

/* ---- kernels of the CPU ---- */
int32_t rt_device_map(smelt_rt *rt, const int64_t *args, int32_t n_read, int32_t n_buffers, int32_t n_dims) {
  for (int32_t i = 0; i < n_buffers; i++) {
    const int there = args[i] && rt_space_of(rt, args[i])->memory;
    char *host = there ? host_view(rt, args[i], i >= n_read) : NULL;
    if (there && !host) return SMELT_DEVICE;
    rt->session->mapped_args[i] = (int64_t)(intptr_t)host;
  }
  if (n_dims) memcpy(rt->session->mapped_args + n_buffers, args + n_buffers, (size_t)n_dims * sizeof *args);
  return SMELT_OK;
}

int32_t rt_device_unmap(smelt_rt *rt) {
  rt_device *d = rt->session->device;
  int32_t status = SMELT_OK;
  for (uint32_t i = 0; i < d->n_spaces; i++) {
    rt_space *space = &d->spaces[i];
    if (!space->mapped) continue;
    rt_unit *u = rt_unit_of(rt, space);
    int32_t code = rt_unit_unmap(u, space->memory, space->mapped, (size_t)space->capacity, is_written(rt, i));
    space->mapped = NULL;
    if (code && !status) status = rt_device_failed(rt, u, "unmapping memory", code);
  }
  return status;
}
