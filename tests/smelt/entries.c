/* entries.c: a prompt of three tokens and two tokens more through the entries of llm, by its C functions; says what it finds.
 *
 * usage: entries [BUNDLE]; without a folder the weights are looked for beside the library. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llm.h"

#define EXPECT(condition)                                                                                             \
  do {                                                                                                                \
    if (!(condition)) return printf("line %d: %s [%s]\n", __LINE__, #condition, llm_error(NULL)), 1;                  \
  } while (0)

static float mask[64];

static smelt_status run(smelt_session *s, int64_t *ids, int64_t n, int64_t past, DLTensor *out) {
  int64_t shape[] = {1, n}, wide[] = {1, past + n};
  DLTensor in[] = {{ids, {1, 0}, 2, {0, 64, 1}, shape, NULL, 0}, {mask, {1, 0}, 2, {2, 32, 1}, wide, NULL, 0}};
  memset(out, 0, sizeof *out);
  return llm_run(s, in, LLM_PREFILL_INPUT_COUNT, out, LLM_PREFILL_OUTPUT_COUNT);
}

static void print(const char *name, const DLTensor *t) {
  int64_t n = 1;
  for (int i = 0; i < t->ndim; i++) n *= t->shape[i];
  printf("%s", name);
  for (int64_t i = 0; i < n; i++) printf(" %.6g", ((float *)t->data)[i]);
  printf("\n");
}

int main(int argc, char **argv) {
  int64_t prompt[] = {3, 1, 4}, token = 5, wide[] = {1, 7};
  smelt_session *s = NULL, *other = NULL;
  DLTensor first, next, key;
  smelt_memory before, after;
  EXPECT(llm_open(argc > 1 ? argv[1] : NULL, NULL, &s) == SMELT_OK);
  smelt_session *prefill = llm_entry(s, "prefill"), *decode = llm_entry(s, "decode");
  EXPECT(prefill == s && decode && decode != s && llm_entry(decode, "decode") == decode && llm_entry(decode, "prefill") == s);
  EXPECT(llm_entry_count(s) == 2 && !strcmp(llm_entry_name(decode, 1), "decode") && !llm_entry_name(s, 2));
  EXPECT(!llm_entry(s, "encode") && strstr(llm_error(NULL), "model 'llm' has no entry 'encode'; there are: prefill, decode"));
  EXPECT(!llm_entry(NULL, "decode") && !llm_entry(s, NULL) && strstr(llm_error(NULL), "name is NULL"));
  EXPECT(llm_input_count(s) == 2 && llm_input_count(decode) == LLM_DECODE_INPUT_COUNT && llm_output_count(decode) == 1);
  EXPECT(llm_state_count(s) == LLM_STATE_COUNT && llm_state_count(decode) == 2 && !strcmp(llm_state_name(s, 1), "past_value"));
  EXPECT(llm_memory_stats(s, &before) == SMELT_OK);
  EXPECT(run(prefill, prompt, 3, 0, &first) == SMELT_OK);
  print("prefill", &first);
  const float *kept = first.data;
  const float sample = kept[0];
  for (int past = 3; past < 5; past++) {
    EXPECT(run(decode, &token, 1, past, &next) == SMELT_OK);
    print("decode", &next);
  }
  EXPECT(kept[0] == sample && next.data != first.data); /* an output is its entry's */
  EXPECT(llm_state_get(s, LLM_STATE_PAST_KEY, &key) == SMELT_OK && key.shape[2] == 5);
  print("key", &key);
  EXPECT(llm_memory_stats(decode, &after) == SMELT_OK && after.allocations == before.allocations && after.runs == 3);
  EXPECT(run(decode, prompt, 2, 5, &next) == SMELT_SHAPE && strstr(llm_error(decode), "entry 'decode': input 'ids' axis 1: expected 1, got 2"));
  EXPECT(!strcmp(llm_error(prefill), "")); /* a text is its entry's, too */
  /* an output of one entry as the input of another: no copy */
  DLTensor in[] = {{&token, {1, 0}, 2, {0, 64, 1}, (int64_t[]){1, 1}, NULL, 0}, {first.data, {1, 0}, 2, {2, 32, 1}, wide, NULL, 0}};
  wide[1] = 6;
  memset(&next, 0, sizeof next);
  EXPECT(llm_run(decode, in, 2, &next, 1) == SMELT_OK);
  EXPECT(llm_fork(decode, &other) == SMELT_OK && other != decode && llm_entry(other, "decode") == other);
  EXPECT(llm_reset(decode) == SMELT_OK && llm_state_get(prefill, 0, &key) == SMELT_OK && !key.data);
  /* memory of a state is no place for an output, of whatever entry */
  DLTensor mine = first;
  EXPECT(run(prefill, prompt, 3, 0, &first) == SMELT_OK && llm_state_get(decode, 0, &key) == SMELT_OK);
  mine.data = key.data;
  int64_t one[] = {1, 1}, past[] = {1, 1};
  DLTensor few[] = {{&token, {1, 0}, 2, {0, 64, 1}, one, NULL, 0}, {mask, {1, 0}, 2, {2, 32, 1}, past, NULL, 0}};
  mine.shape = (int64_t[]){1, 1, 11};
  EXPECT(llm_run(prefill, few, 2, &mine, 1) == SMELT_INVALID && strstr(llm_error(prefill), "output 'logits' and state 'past_key' share memory"));
  llm_close(decode); /* the whole session */
  EXPECT(llm_state_get(llm_entry(other, "prefill"), 0, &key) == SMELT_OK && key.shape[2] == 6);
  EXPECT(run(other, &token, 1, 6, &next) == SMELT_OK && llm_trim(other) == SMELT_OK);
  EXPECT(llm_state_get(other, 0, &key) == SMELT_OK && key.shape[2] == 7);
  llm_close(llm_entry(other, "prefill"));
  printf("OK\n");
  return 0;
}
