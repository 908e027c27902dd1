/* crt.c: the start of a dynamic program for bionic or glibc, made here because no NDK and no libc-dev is needed to link it. */
int main(int, char **, char **);

#if defined(__ANDROID__)
typedef struct {
  void (**preinit)(void), (**init)(void), (**fini)(void);
} structors;
void __libc_init(void *stack, void (*on_exit)(void), int (*main_)(int, char **, char **), const structors *) __attribute__((noreturn));
/* The linker runs the init arrays of a PIE itself: none is left for us. */
__attribute__((used, visibility("hidden"), noreturn)) void smelt_start_c(void *stack, void (*on_exit)(void)) {
  (void)on_exit; /* bionic passes nothing here */
  const structors none = {0, 0, 0};
  __libc_init(stack, 0, main, &none);
}
/* Android's loader reads the API level from this note. */
__attribute__((section(".note.android.ident"), used, aligned(4))) static const struct {
  int name_bytes, bytes, type;
  char name[8];
  int api;
} note = {8, 4, 1, "Android", 26};
#else
int __libc_start_main(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void), void (*)(void), void *)
    __attribute__((noreturn));
__attribute__((used, visibility("hidden"), noreturn)) void smelt_start_c(void *stack, void (*on_exit)(void)) {
  long *top = stack; /* argc, then argv; init and fini NULL: glibc finds the program's arrays itself */
  __libc_start_main(main, (int)*top, (char **)(top + 1), 0, 0, on_exit, stack);
}
#endif

/* At entry: the stack pointer is at argc; one register holds what the dynamic linker wants called at exit. */
#if defined(__x86_64__)
__asm__(".globl _start\n.type _start,@function\n_start:\n xor %ebp,%ebp\n mov %rsp,%rdi\n mov %rdx,%rsi\n and $-16,%rsp\n"
        " call smelt_start_c\n hlt\n");
#elif defined(__aarch64__)
__asm__(".globl _start\n.type _start,%function\n_start:\n bti j\n mov x29,#0\n mov x30,#0\n mov x1,x0\n mov x0,sp\n b smelt_start_c\n");
#elif defined(__arm__)
__asm__(".globl _start\n.type _start,%function\n_start:\n mov r1,r0\n mov fp,#0\n mov lr,#0\n mov r0,sp\n bic sp,sp,#7\n b smelt_start_c\n");
#elif defined(__riscv)
__asm__(".globl _start\n.type _start,@function\n_start:\n .option push\n .option norelax\n lla gp,__global_pointer$\n .option pop\n"
        " mv a1,a0\n mv a0,sp\n andi sp,sp,-16\n tail smelt_start_c\n");
#endif
