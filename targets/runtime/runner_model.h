/* runner_model.h: a bundle -> the functions of its model, linked into the runner or opened as a library. */
#ifndef RUNNER_MODEL_H
#define RUNNER_MODEL_H
#include "runner_frames.h"
#ifndef SMELT_PREFIX
#define SMELT_PREFIX smelt /* the model of a static runner keeps the names that it was compiled with */
#endif
#include "smelt.h"

#define MODEL_API(X)                                                                                                     \
  X(open) X(run) X(close) X(error) X(input_count) X(output_count) X(input_name) X(output_name) X(input_type)             \
  X(output_type) X(input_rank) X(output_rank) X(memory_stats) X(profile) X(kernel_count) X(kernel_stats)               \
  X(state_count) X(state_name) X(state_type) X(state_rank) X(reset) X(entry) X(entry_count) X(entry_name)        \
  X(fallback) X(variant) X(probe) X(peek) X(kernel_device_stats) X(kernel_form) X(policy) X(share_count) X(share)

typedef struct {
#define X(name) __typeof__(&smelt_##name) name;
  MODEL_API(X)
#undef X
} model_api;

#pragma GCC visibility push(hidden)

const char *status_name(smelt_status s);
/* Bind runs by the policy of this number (smelt_policy_kind) from now on; 0, or -1 with a text in why where the model cannot. */
int model_bind(const model_api *api, smelt_session *s, uint32_t policy, buffer *why);
/* The number of a policy's name; -1: there is none. */
int policy_of(const char *name);
const char *policy_name(uint32_t policy);
/* Fill api from the linked model or from the library in the bundle; 0, or -1 with a text in why. */
int model_load(model_api *api, const char *bundle, buffer *why);

/* The library's own name, and that of its file where the first is a link to it (a store keeps files under their hashes): a
 * crash is then still told under the first. */
enum { NAME_SIZE = 104 };
extern char library_name[NAME_SIZE], library_alias[NAME_SIZE];

#pragma GCC visibility pop
#endif
