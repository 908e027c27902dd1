/* runner_supervisor.h: frames on stdin -> frames on stdout, with the model in a child process that may crash, hang or exhaust memory.
 *
 * One poll loop, no blocking call, no model code: so a deadline, the end of stdin and a broken stream are always noticed. */
#ifndef RUNNER_SUPERVISOR_H
#define RUNNER_SUPERVISOR_H

enum { EXIT_FINE = 0, EXIT_USAGE = 2, EXIT_PROTOCOL = 3 };

#pragma GCC visibility push(hidden)

/* Serve the protocol on fds 0 and 1 until QUIT, end of stdin, a broken stream or the idle time; the exit code. */
int serve(const char *sysfs);

#pragma GCC visibility pop
#endif
