/* runner_worker.h: requests of the supervisor -> calls of the model; the only process of the runner that runs model code.
 *
 * It reads frames from one pipe and writes frames to another; where the model crashes, hangs or exits, the
 * supervisor notices. */
#ifndef RUNNER_WORKER_H
#define RUNNER_WORKER_H
#include "runner_model.h"

enum { RANK_MAX = 64, TENSOR_LIMIT = 4096 };

typedef struct {
  DLTensor tensor;
  int64_t dims[RANK_MAX];
  void *memory;
  size_t capacity;
  int set;
} slot;

typedef struct {
  int in, out; /* pipes from and to the supervisor */
  const char *sysfs;
  frame request;
  buffer payload, reply, text;
  model_api api;
  smelt_session *session; /* the entry that requests are about */
  uint32_t policy;        /* that binds its runs: a smelt_policy_kind */
  slot *inputs;
  DLTensor *arguments, *outputs;
  size_t n_inputs, n_outputs;
  int ran;                /* outputs are valid */
  int afresh;             /* each run begins at the start of a state that there is, so that all do the same */
  uint64_t sent;          /* payload bytes of this request's OUT and DATA frames, and their checksum */
  uint32_t sent_crc;
} worker;

#pragma GCC visibility push(hidden)

/* ---- what the runner for people shares ---- */
/* Bytes of a compact tensor; UINT64_MAX when a dim is negative or the product leaves 63 bits. */
uint64_t tensor_bytes(DLDataType t, const int64_t *dims, size_t rank);
/* Memory of at least so many bytes for a slot; 0, or -1 without. */
int slot_reserve(slot *s, uint64_t bytes);
/* The tables of inputs and outputs of an open session's entry, in the place of another one's; 0, or -1 without memory. */
int worker_slots(worker *w);
/* Whether each run is to begin at the start of the state. */
void begin_afresh(worker *w, int yes);
/* One run on the slots' tensors, and how long it took: without the way back to the start of the state. */
smelt_status run_once(worker *w, uint64_t *ns);
/* The session's memory and the process's, as JSON. */
void put_memory(worker *w, buffer *b);

/* What each unit has done for the session, as JSON; of the policy static nothing. */
void put_shares(worker *w, buffer *b);

/* ---- answers, which the files of single requests share ---- */
void reply_send(worker *w, uint8_t type, const void *payload, size_t len);
void reply_text(worker *w, uint8_t type); /* the text of `fresh` */
void stage(worker *w, const char *name);
buffer *fresh(worker *w);                 /* for the next text, empty */
void finish(worker *w, const char *status, const char *text); /* END */
void finish_with(worker *w, const char *status);              /* END with the text of `fresh` */
void finish_model(worker *w, smelt_status s);                 /* END with the model's own words */
void send_data(worker *w, const uint8_t *from, uint64_t bytes); /* DATA */
/* Whether all inputs are set; else END has said which is not. */
int inputs_set(worker *w);

/* The worker's life: one request after the other until the supervisor closes the pipe. Does not return. */
__attribute__((noreturn)) void worker_main(int in, int out, int crash, const char *sysfs);

#pragma GCC visibility pop
#endif
