/* runner_units.h: the libraries of the board -> its GPU APIs, their devices and drivers, and its libc, as JSON. */
#ifndef RUNNER_UNITS_H
#define RUNNER_UNITS_H
#include "runner_frames.h"

#pragma GCC visibility push(hidden)

/* A list of {api, device, version, driver, extensions, error}, a row for each device of OpenCL, Vulkan and CUDA and for each API
 * that is there but fails. Drivers are loaded in a process of its own that may take UNITS_NS: one that crashes or hangs is a row. A
 * static program can load none and gives one row that says so. */
void put_units(buffer *b);
/* The libc and its version as a JSON string: "glibc 2.36", "bionic 34" (the SDK), "static" or "dynamic". */
void put_libc(buffer *b);

#pragma GCC visibility pop
#endif
