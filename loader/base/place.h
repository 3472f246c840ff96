/* SPDX-License-Identifier: Apache-2.0 */
/* Finds where a file that is to be replaced really is: a rename to a link's name would replace the
 * link, and one to a device's name the device. */
#ifndef OPI_PLACE_H
#define OPI_PLACE_H

#include <limits.h>
#include <sys/types.h>

#include "loader/base/base.h"

typedef struct opi_file_place {
  char path[PATH_MAX]; /* links followed, including a dangling last one */
  mode_t mode;         /* permissions of the existing file; 0: there is none */
} opi_file_place;

/* Resolves `path` below the folder `dir`, or AT_FDCWD. Errors: IO, it names a folder, a device, a
 * pipe or a socket; INVALID, it is too long. */
opipe_status opi_file_place_find(int dir, const char *path, opi_file_place *out, opipe_error *err);
/* Gives the open replacement file the permissions of the existing one. */
opipe_status opi_file_place_keep_mode(const opi_file_place *place, int fd, opipe_error *err);

#endif /* OPI_PLACE_H */
