/* tensor.c: memory at a unit, asked for by a caller, in; tensors that runs read and write where they lie out. */
#include "rt.h"

rt_tensor *rt_find_tensor(const smelt_rt *rt, const DLTensor *t) {
  rt_tensor *found = rt->session->tensors;
  while (found && found != t->data) found = found->next;
  return found && t->device.device_id == (int32_t)found->unit ? found : NULL;
}

static void release(smelt_rt *rt, rt_tensor *t) {
  if (t->unit) rt_device_release_tensor(rt, t);
  else if (!t->foreign) rt_block_free(&(rt_block){t->memory, t->bytes});
  free(t);
}

void rt_free_all_tensors(smelt_rt *rt) {
  while (rt->session->tensors) {
    rt_tensor *t = rt->session->tensors;
    rt->session->tensors = t->next;
    release(rt, t);
  }
}

static smelt_status enter(smelt_rt *rt, const void *tensor, const char *call) { return rt_enter(rt, tensor ? NULL : "the tensor is NULL", call); }

/* DLPack's device types of memory that the host sees: the CPU's, what CUDA has locked, what it manages. */
static int at_host(DLDevice device) { return device.device_type == 1 || device.device_type == 3 || device.device_type == 13; }

/* Of the host's own, or (theirs) what another library has there. */
static int32_t take_at_host(smelt_rt *rt, rt_tensor *t, const DLTensor *theirs) {
  rt_block block = {0};
  if (theirs && !at_host(theirs->device))
    return rt_error(rt, SMELT_INVALID, "smelt_tensor_import: memory of DLPack device type %d, device %d, is not the host's, where the tensor is to be; copy it to the host",
                    (int)theirs->device.device_type, (int)theirs->device.device_id);
  if (theirs) return t->memory = (char *)theirs->data + theirs->byte_offset, t->foreign = 1, SMELT_OK;
  if (!rt_block_grow(rt, &block, t->bytes))
    return rt_error(rt, SMELT_DEVICE, "smelt_tensor: %llu bytes wanted, the system has no more memory", (unsigned long long)t->bytes);
  t->memory = block.data, t->bytes = block.capacity;
  return SMELT_OK;
}

/* theirs: NULL, or the memory that it is to have. */
static int32_t make(smelt_rt *rt, int32_t unit, uint64_t bytes, const DLTensor *theirs, DLTensor *out) {
  if (unit < 0 || (uint32_t)unit > rt->model->n_units)
    return rt_error(rt, SMELT_INVALID, "smelt_tensor: unit %d, model '%s' has units 0 (the host) to %u; see smelt_input_unit", (int)unit,
                    rt->model->name, (unsigned)rt->model->n_units);
  if (theirs && bytes && (!theirs->data || !rt_is_compact(theirs)))
    return rt_error(rt, SMELT_INVALID, "smelt_tensor_import: %s; make it compact first", theirs->data ? "its strides are not those of a compact tensor" : "its data is NULL");
  if (!rt->session->device) unit = 0; /* it has fallen back, or is bound to the CPU: all is at the host */
  if (unit && !rt_has_unit(rt, (uint32_t)unit))
    return rt_error(rt, SMELT_INVALID, "smelt_tensor: unit %d is not one that the session is bound to; see smelt_input_unit", (int)unit);
  if (!bytes) theirs = NULL; /* nothing, wherever it is */
  rt_tensor *t = calloc(1, sizeof *t);
  int32_t status = t ? SMELT_OK : rt_error(rt, SMELT_DEVICE, "smelt_tensor: the system has no memory; close other sessions");
  if (!status) t->unit = (uint32_t)unit, t->bytes = bytes;
  if (!status) status = !unit ? take_at_host(rt, t, theirs) : theirs ? rt_device_import(rt, t, theirs) : rt_device_new_tensor(rt, t);
  if (status) return free(t), status;
  t->next = rt->session->tensors;
  rt->session->tensors = t;
  out->device = unit ? (DLDevice){SMELT_ON_UNIT, unit} : (DLDevice){1, 0};
  out->data = unit ? (void *)t : t->memory;
  out->byte_offset = 0;
  return SMELT_OK;
}

smelt_status smelt_tensor(smelt_session *s, int32_t unit, uint64_t bytes, DLTensor *out) {
  smelt_rt *rt = (smelt_rt *)s;
  smelt_status status = enter(rt, out, "smelt_tensor");
  return status ? status : rt_leave(rt, make(rt, unit, bytes, NULL, out));
}

smelt_status smelt_tensor_import(smelt_session *s, int32_t unit, uint64_t bytes, const DLTensor *theirs, DLTensor *out) {
  smelt_rt *rt = (smelt_rt *)s;
  smelt_status status = enter(rt, theirs ? out : NULL, "smelt_tensor_import");
  return status ? status : rt_leave(rt, make(rt, unit, bytes, theirs, out));
}

smelt_status smelt_tensor_export(smelt_session *s, const DLTensor *tensor, DLTensor *out) {
  smelt_rt *rt = (smelt_rt *)s;
  smelt_status status = enter(rt, tensor ? out : NULL, "smelt_tensor_export");
  if (status) return status;
  if (tensor->device.device_type != SMELT_ON_UNIT) {
    out->data = tensor->data, out->device = (DLDevice){1, 0}, out->byte_offset = tensor->byte_offset;
    return rt_leave(rt, SMELT_OK);
  }
  const rt_tensor *t = rt_find_tensor(rt, tensor);
  if (!t) return rt_leave(rt, rt_error(rt, SMELT_INVALID, "smelt_tensor_export: this is no tensor that smelt_tensor made for this session"));
  return rt_leave(rt, rt_device_export(rt, t, out));
}

smelt_status smelt_tensor_free(smelt_session *s, DLTensor *tensor) {
  smelt_rt *rt = (smelt_rt *)s;
  smelt_status status = enter(rt, tensor, "smelt_tensor_free");
  if (status) return status;
  for (rt_tensor **at = &rt->session->tensors; *at; at = &(*at)->next) {
    rt_tensor *t = *at;
    if (tensor->data != (t->unit ? (void *)t : t->memory)) continue;
    *at = t->next;
    release(rt, t);
    tensor->data = NULL;
    return rt_leave(rt, SMELT_OK);
  }
  return rt_leave(rt, rt_error(rt, SMELT_INVALID, "smelt_tensor_free: this is no tensor that smelt_tensor made for this session"));
}

/* The bytes of a caller's tensor of any type, checked as those of runs are. */
static int32_t check(smelt_rt *rt, const char *role, const DLTensor *t, uint64_t *bytes) {
  const smelt_tensor_desc same = {role, t->dtype, t->ndim};
  return rt_check_tensor(rt, "tensor", &same, t, bytes);
}

static int32_t copy(smelt_rt *rt, const DLTensor *to, const DLTensor *from) {
  uint64_t bytes = 0, other = 0;
  int32_t status = check(rt, "to", to, &bytes);
  if (!status) status = check(rt, "from", from, &other);
  if (status) return status;
  if (bytes != other)
    return rt_error(rt, SMELT_SHAPE, "smelt_tensor_copy: %llu bytes to %llu", (unsigned long long)other, (unsigned long long)bytes);
  if (!bytes) return SMELT_OK;
  const rt_tensor *a = to->device.device_type == SMELT_ON_UNIT ? rt_find_tensor(rt, to) : NULL;
  const rt_tensor *b = from->device.device_type == SMELT_ON_UNIT ? rt_find_tensor(rt, from) : NULL;
  if (a || b) return rt_device_copy_tensor(rt, a, (char *)to->data + to->byte_offset, b, (const char *)from->data + from->byte_offset, bytes);
  memmove((char *)to->data + to->byte_offset, (const char *)from->data + from->byte_offset, (size_t)bytes);
  return SMELT_OK;
}

smelt_status smelt_tensor_copy(smelt_session *s, const DLTensor *to, const DLTensor *from) {
  smelt_rt *rt = (smelt_rt *)s;
  smelt_status status = enter(rt, to && from ? to : NULL, "smelt_tensor_copy");
  return status ? status : rt_leave(rt, copy(rt, to, from));
}
