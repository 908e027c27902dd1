/* two_stages.c: a function and two models, one from a shared library and one from a static one, as stages of one stream; C and C++.
 *
 * usage: two_stages ITEMS REC_DIR; item i has 1 + i % 3 rows, x[k] = i + k; prints item by item what det made of twice x, and rec of
 * the first column of that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "det.h"
#include "rec.h"

enum { MOST = 12 };

typedef struct {
  float values[MOST];
  int64_t shape[2];
} memory;

static DLTensor floats(memory *m, int64_t rows) {
  DLTensor t;
  memset(&t, 0, sizeof t);
  m->shape[0] = rows, m->shape[1] = 4;
  t.data = m->values, t.shape = m->shape, t.ndim = 2, t.dtype = det_input_type(NULL, DET_INPUT_X), t.device.device_type = 1;
  return t;
}

static smelt_status twice(void *context, const DLTensor *in, size_t n_in, DLTensor *out, size_t n_out) {
  memory *m = (memory *)context;
  int64_t rows = in[0].shape[0];
  for (int64_t k = 0; k < rows * 4; k++) m->values[k] = 2 * ((const float *)in[0].data)[k];
  (void)n_in, (void)n_out;
  out[0] = floats(m, rows);
  return SMELT_OK;
}

/* rec takes 4 columns: the one that det gave, four times. */
static smelt_status widen(void *context, const DLTensor *in, size_t n_in, DLTensor *out, size_t n_out) {
  memory *m = (memory *)context;
  int64_t rows = in[0].shape[0];
  for (int64_t k = 0; k < rows * 4; k++) m->values[k] = ((const float *)in[0].data)[k / 4 * 3];
  (void)n_in, (void)n_out;
  out[0] = floats(m, rows);
  return SMELT_OK;
}

static void show(const DLTensor *t) {
  for (int64_t i = 0; i < t->shape[0] * 3; i++) printf(" %.9g", (double)((const float *)t->data)[i]);
}

static int push(smelt_stream *stream, int item) {
  memory m;
  for (int k = 0; k < MOST; k++) m.values[k] = (float)(item + k);
  DLTensor x = floats(&m, 1 + item % 3);
  return (int)det_push(stream, &x, 1, 0);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  int items = atoi(argv[1]), pushed = 0;
  smelt_session *det = NULL, *rec = NULL;
  if (det_open(NULL, NULL, &det) || rec_open(argv[2], NULL, &rec)) return printf("%s %s\n", det_error(NULL), rec_error(NULL)), 1;
  memory first, second;
  smelt_stage_calls doubles, widens;
  smelt_stage stages[4];
  smelt_stream_options options;
  memset(&doubles, 0, sizeof doubles), memset(&widens, 0, sizeof widens);
  memset(stages, 0, sizeof stages), memset(&options, 0, sizeof options);
  doubles.struct_size = widens.struct_size = (int32_t)sizeof doubles;
  doubles.run = twice, widens.run = widen;
  const smelt_wire pushed_x[1] = {{-1, 0}}, wires[3][1] = {{{0, 0}}, {{1, 0}}, {{2, 0}}}, popped[2] = {{1, 0}, {3, 0}};
  stages[0].calls = &doubles, stages[0].context = &first, stages[0].inputs = pushed_x, stages[0].n_inputs = stages[0].n_outputs = 1;
  stages[2].calls = &widens, stages[2].context = &second, stages[2].inputs = wires[1], stages[2].n_inputs = stages[2].n_outputs = 1;
  if (det_as_stage(det, &stages[1]) || rec_as_stage(rec, &stages[3])) return 1;
  stages[1].inputs = wires[0], stages[3].inputs = wires[2];
  options.struct_size = (int32_t)sizeof options, options.stage_size = (int32_t)sizeof *stages;
  options.stages = stages, options.n_stages = 4, options.n_pushed = 1, options.popped = popped, options.n_popped = 2;
  smelt_stream *stream = NULL;
  if (det_start_stream(&options, &stream)) return printf("%s\n", det_error(NULL)), 1;
  for (DLTensor out[2];;) {
    while (pushed < items && push(stream, pushed) == SMELT_OK) pushed++; /* as many as there is room for */
    if (pushed == items) det_finish_stream(stream);
    smelt_status status = det_pop(stream, out, 2, -1);
    if (status == SMELT_END) break;
    if (status) return printf("%s\n", det_error(NULL)), 1;
    show(&out[0]), printf(" |"), show(&out[1]), printf("\n");
  }
  det_end_stream(stream);
  det_close(det);
  rec_close(rec);
  return 0;
}
