/* many_models.c: four models in one program, two from shared libraries (det, rec) and two from static ones (ocr, cls); C and C++.
 *
 * usage: many_models ROWS OCR_DIR CLS_DIR REC_DIR; prints what each model makes of x[i] = i + 1 twice, then what is refused. */
#include <stdio.h>
#include <stdlib.h>

#include "cls.h"
#include "det.h"
#include "ocr.h"
#include "rec.h"

typedef struct {
  const char *name;
  smelt_status (*open)(const char *, const smelt_options *, smelt_session **);
  smelt_status (*run)(smelt_session *, const DLTensor *, size_t, DLTensor *, size_t);
  const char *(*error)(const smelt_session *);
  void (*close)(smelt_session *);
} model;
#define MODEL(name) {#name, name##_open, name##_run, name##_error, name##_close}

static void show(const model *m, smelt_session *s, int64_t rows) {
  float x[64];
  int64_t shape[2], room[2];
  static DLTensor in, out;
  for (int i = 0; i < 64; i++) x[i] = (float)(i + 1);
  shape[0] = rows, shape[1] = 4;
  in.data = x, in.shape = shape, in.ndim = 2, in.dtype = det_input_type(NULL, DET_INPUT_X), in.device.device_type = 1;
  out.data = NULL, out.shape = room;
  if (m->run(s, &in, 1, &out, 1)) printf("%s: %s\n", m->name, m->error(s));
  else {
    printf("%s", m->name);
    for (int64_t i = 0; i < out.shape[0] * out.shape[1]; i++) printf(" %.9g", (double)((const float *)out.data)[i]);
    printf("\n");
  }
}

/* The reason is asked for after the call. */
#define REFUSED(what, call, why) printf("%s: %d ", what, (int)(call)), printf("%s\n", why)

int main(int argc, char **argv) {
  static const model models[4] = {MODEL(det), MODEL(rec), MODEL(ocr), MODEL(cls)};
  if (argc != 5) return 2;
  const char *folders[4] = {NULL, NULL, argv[2], argv[3]}; /* NULL: beside the library */
  smelt_session *s[4], *none = NULL;
  for (int i = 0; i < 4; i++)
    if (models[i].open(folders[i], NULL, &s[i])) return printf("%s: %s\n", models[i].name, models[i].error(NULL)), 1;
  for (int i = 0; i < 8; i++) show(&models[i % 4], s[i % 4], atoi(argv[1]));
  REFUSED("folder", det_open(argv[4], NULL, &none), det_error(NULL));
  REFUSED("static folder", ocr_open(argv[3], NULL, &none), ocr_error(NULL));
  REFUSED("session", rec_run(s[0], NULL, 0, NULL, 0), rec_error(s[0]));
  REFUSED("static session", cls_run(s[2], NULL, 0, NULL, 0), cls_error(s[2]));
  det_close(s[1]); /* not det's: it stays as it is */
  show(&models[1], s[1], 1);
  for (int i = 0; i < 4; i++) models[i].close(s[i]);
  return 0;
}
