/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest of a checkpoint folder. Inside runtime/checkpoint. */
#ifndef OPI_CHECKPOINT_MANIFEST_H
#define OPI_CHECKPOINT_MANIFEST_H

#include <jansson.h>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/safetensors.h"

#define OPI_MANIFEST "manifest.json"
#define OPI_MANIFEST_NEW "manifest.json.new"
extern const char *const opi_prefix_moment[OPIPE_MOMENTS_MOST]; /* from OPI_TENSOR_FIRST on */
#define OPI_PREFIX_OLDER "older/"
#define OPI_PREFIX_SET "set/" /* set by the host and not trained; in its own type */

enum { OPI_MANIFEST_FILES = 2 }; /* weights, state */

/* The hashes of a data file in the manifest. */
typedef struct opi_file_hashes {
  const opi_tensor_entry *entries; /* [n] */
  const uint64_t *tensors;         /* [n] */
  uint64_t header;
  uint32_t n;
} opi_file_hashes;

typedef struct opi_manifest {
  uint64_t generation; /* grows with every save into the folder */
  uint64_t position[OPI_POSITION];
  opi_weights_clock clock;
  uint32_t moments, versions;
  char weights[64], state[64]; /* file names; "" without a checkpoint */
  json_t *root;                /* the parsed file; NULL: none was read */
} opi_manifest;

/* Locks the folder until `dir` is closed or the process ends: for one (`alone`) or for readers.
 * Waits for others. On a file system without locks nothing is locked. */
opipe_status opi_manifest_lock(int dir, bool alone, opipe_error *err);

/* The text ends with a hash of everything before it. `files`: weights, state. */
void opi_manifest_text(const opi_manifest *manifest,
                       const opi_file_hashes files[OPI_MANIFEST_FILES], opi_text *text);
/* Errors: NOTFOUND, IO, INVALID names the member, or the manifest's own hash and what it has. */
opipe_status opi_manifest_read(const opipe_allocator *allocator, int dir,
                               opi_manifest *out_manifest, opipe_error *err);
/* Was the manifest, be it damaged, written by this library? */
bool opi_manifest_is_ours(const opipe_allocator *allocator, int dir);
void opi_manifest_free(opi_manifest *manifest); /* frees what reading allocated */
/* Compares data file `file` (0: weights, 1: state) with its hashes. Errors: INVALID names the
 * tensor and both hashes. */
opipe_status opi_manifest_verify(const opi_manifest *manifest, uint32_t file,
                                 const opi_tensors *tensors, opipe_error *err);

#endif /* OPI_CHECKPOINT_MANIFEST_H */
