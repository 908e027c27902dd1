/* runner_supervisor.h: frames on stdin -> frames on stdout, with the model in a child that may crash, hang or eat memory.
 *
 * One poll loop, no blocking call, no model code: a deadline, the end of stdin or a broken stream always gets through. */
#ifndef RUNNER_SUPERVISOR_H
#define RUNNER_SUPERVISOR_H

enum { EXIT_FINE = 0, EXIT_USAGE = 2, EXIT_PROTOCOL = 3 };

#pragma GCC visibility push(hidden)

/* Serve the protocol on fds 0 and 1 until QUIT, end of stdin, a broken stream or the idle time; the exit code. */
int serve(const char *sysfs);

#pragma GCC visibility pop
#endif
