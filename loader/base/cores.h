/* SPDX-License-Identifier: Apache-2.0 */
/* Cores that this process may use. The command compiles this file too. */
#ifndef OPI_CORES_H
#define OPI_CORES_H

#include <stdint.h>

/* The cores of its mask, but no more than its control groups give it time for (cpu.max of version
 * 2, the CFS quota of version 1, with all groups that they lie in); at least 1. root: before the
 * paths of /proc and /sys; "": this machine's. */
uint32_t opi_cores(const char *root);
/* A number for the mask: processes with equal masks have one. 0: not known. */
uint64_t opi_cores_mask(void);

#endif /* OPI_CORES_H */
