/* Runs any bundle whose inputs are float32 from C, with every dynamic extent set to one number.
 *
 *   smelt compile model.onnx --name det -o out
 *   cc -DSMELT_PREFIX=det -Iout examples/run_model.c -o run_model -Lout -ldet -Wl,-rpath,$PWD/out
 *   ./run_model 1 3 64 64        (the extents of the first input; every input gets as many as it has axes)
 *
 * SMELT_PREFIX makes smelt_open mean det_open, so this file fits every model. A program for certain models includes their
 * headers (det.h, rec.h: as many as it likes) and calls det_open and rec_open. This file is C and C++.
 */
#include <stdio.h>
#include <stdlib.h>

#include "smelt.h"

enum { MOST = 16, AXES = 8 };

static int failed(const char *what, const smelt_session *s) {
  fprintf(stderr, "%s: %s\n", what, smelt_error(s));
  return 1;
}

/* A tensor of ones with the extents given on the command line. */
static int make_input(const smelt_session *s, size_t i, int argc, char **argv, DLTensor *t, int64_t *shape) {
  size_t n = 1;
  t->ndim = smelt_input_rank(s, i);
  t->dtype = smelt_input_type(s, i);
  if (t->ndim > AXES || t->ndim > argc - 1 || t->dtype.code != 2 || t->dtype.bits != 32) {
    fprintf(stderr, "input '%s' is not float32 with at most %d axes\n", smelt_input_name(s, i), argc - 1);
    return 1;
  }
  for (int a = 0; a < t->ndim; a++) n *= (size_t)(shape[a] = atoll(argv[1 + a]));
  t->shape = shape;
  t->device.device_type = 1; /* host memory */
  float *x = (float *)malloc((n ? n : 1) * sizeof *x);
  if (!x) return 1;
  for (size_t k = 0; k < n; k++) x[k] = 1.0f;
  t->data = x;
  return 0;
}

int main(int argc, char **argv) {
  smelt_session *s = NULL;
  smelt_options options = {sizeof options, 1, 0}; /* one thread, no check of the weights' whole hash */
  if (smelt_open(NULL, &options, &s)) return failed("open", NULL); /* NULL: the folder of libdet.so */

  static DLTensor in[MOST], out[MOST]; /* all zero; data NULL: the session keeps the outputs */
  int64_t in_shape[MOST][AXES], out_shape[MOST][AXES];
  size_t n_in = smelt_input_count(s), n_out = smelt_output_count(s);
  if (n_in > MOST || n_out > MOST) return 1;
  for (size_t i = 0; i < n_in; i++)
    if (make_input(s, i, argc, argv, &in[i], in_shape[i])) return 1;
  for (size_t i = 0; i < n_out; i++) {
    out[i].ndim = smelt_output_rank(s, i);
    out[i].dtype = smelt_output_type(s, i);
    out[i].device.device_type = 1;
    out[i].shape = out_shape[i];
  }
  if (smelt_run(s, in, n_in, out, n_out)) return failed("run", s);
  for (size_t i = 0; i < n_out; i++) {
    printf("%s: [", smelt_output_name(s, i));
    for (int a = 0; a < out[i].ndim; a++) printf("%s%lld", a ? ", " : "", (long long)out[i].shape[a]);
    printf("]");
    if (out[i].dtype.code == 2 && out[i].dtype.bits == 32) printf(" first value %g", ((float *)out[i].data)[0]);
    printf("\n");
  }
  for (size_t i = 0; i < n_in; i++) free(in[i].data);
  smelt_close(s);
  return 0;
}
