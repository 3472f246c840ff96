/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest of a checkpoint folder. Inside runtime/checkpoint. */
#ifndef OPI_CHECKPOINT_MANIFEST_H
#define OPI_CHECKPOINT_MANIFEST_H

#include "runtime/checkpoint/checkpoint.h"

#define OPI_MANIFEST "manifest.json"
#define OPI_MANIFEST_NEW "manifest.json.new"
#define OPI_PREFIX_FIRST "first/"
#define OPI_PREFIX_SECOND "second/"
#define OPI_PREFIX_OLDER "older/"

typedef struct opi_manifest {
  uint64_t generation; /* grows with every save into the folder */
  uint64_t position[OPI_POSITION];
  opi_weights_clock clock;
  uint32_t moments, versions;
  char weights[64], state[64]; /* file names; "" in one that is not there */
} opi_manifest;

void opi_manifest_text(const opi_manifest *manifest, opi_text *text);
/* Errors: NOTFOUND, IO, INVALID names the member. */
opipe_status opi_manifest_read(const opipe_allocator *allocator, int dir,
                               opi_manifest *out_manifest, opipe_error *err);

#endif /* OPI_CHECKPOINT_MANIFEST_H */
