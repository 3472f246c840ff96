/* SPDX-License-Identifier: Apache-2.0 */
/* Where a file that is to be replaced lies: a rename to the name of a link would replace the link,
 * and one to a device's the device. */
#ifndef OPI_PLACE_H
#define OPI_PLACE_H

#include <limits.h>
#include <sys/types.h>

#include "loader/base/base.h"

typedef struct opi_file_place {
  char path[PATH_MAX]; /* links followed, that of the last name to what is not there yet as well */
  mode_t mode;         /* permissions of the file that is there; 0: there is none */
} opi_file_place;

/* `path` below the folder `dir`, or AT_FDCWD. Errors: IO where it names a folder, a device, a pipe
 * or a socket; INVALID where it is too long. */
opipe_status opi_file_place_find(int dir, const char *path, opi_file_place *out, opipe_error *err);
/* Gives the open file that is to take the place the permissions of the one that is there. */
opipe_status opi_file_place_keep_mode(const opi_file_place *place, int fd, opipe_error *err);

#endif /* OPI_PLACE_H */
