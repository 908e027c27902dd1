/* arm_counter.c: a plugin of qemu's user-mode emulators that counts the instructions of the emulated program. Whenever
 * the program makes the system call that is the mark, the sum up to there goes to the file that the argument out= names.
 *
 * The few declarations of qemu's plugin interface, version 1, that it needs stand here: no package brings the header. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef uint64_t plugin_id;
struct block; /* what qemu translates at a time: instructions up to a branch */
typedef void on_block(plugin_id id, struct block *tb);
typedef void on_call(plugin_id id, unsigned cpu, int64_t number, uint64_t a, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                     uint64_t, uint64_t);

extern size_t qemu_plugin_tb_n_insns(const struct block *tb);
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, on_block *f);
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct block *tb, int op, void *counter, uint64_t step);
extern void qemu_plugin_register_vcpu_syscall_cb(plugin_id id, on_call *f);

enum {
  ADD_U64 = 0,
  GETPGID = 155, /* on aarch64 */
  MARKED = 0x7ffffffe, /* no process has this number */
};

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t counted;
static FILE *out;

static void translated(plugin_id id, struct block *tb) {
  (void)id;
  qemu_plugin_register_vcpu_tb_exec_inline(tb, ADD_U64, &counted, qemu_plugin_tb_n_insns(tb));
}

static void called(plugin_id id, unsigned cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                   uint64_t f, uint64_t g, uint64_t h) {
  (void)id, (void)cpu, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
  if (number != GETPGID || a != MARKED) return;
  fprintf(out, "%llu\n", (unsigned long long)counted);
  fflush(out);
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
  (void)info;
  if (argc != 1 || strncmp(argv[0], "out=", 4)) return -1;
  out = fopen(argv[0] + 4, "w");
  if (!out) return -1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_vcpu_syscall_cb(id, called);
  return 0;
}
