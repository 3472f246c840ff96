/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest of a checkpoint folder. Inside runtime/checkpoint.
 *
 * Version 2 has one shard, whose members are the manifest's own. Version 3, which the processes of
 * a group write together, has a list "shards" with an object of the same members for each. */
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

enum { OPI_SHARDS_MOST = 65536, OPI_FILE_ROOM = 64 };

/* The data files of one process. */
typedef struct opi_shard {
  char files[OPI_MANIFEST_FILES][OPI_FILE_ROOM]; /* weights, state */
  const json_t *hashes;                          /* inside the manifest's root */
} opi_shard;

typedef struct opi_manifest {
  uint64_t generation; /* grows with every save into the folder */
  uint64_t position[OPI_POSITION];
  opi_weights_clock clock;
  uint32_t moments, versions;
  uint32_t n_shards; /* 0: without a checkpoint */
  opi_shard *shards; /* [n_shards] */
  uint64_t hash;     /* XXH3 of the file that was read */
  json_t *root;      /* the parsed file; NULL: none was read */
  const opipe_allocator *allocator;
} opi_manifest;

/* Locks the folder until `dir` is closed or the process ends: for one (`alone`) or for readers.
 * Waits for others. On a file system without locks nothing is locked. */
opipe_status opi_manifest_lock(int dir, bool alone, opipe_error *err);

/* Version 2: the manifest with its one shard. The text ends with a hash of everything before it. */
void opi_manifest_text(const opi_manifest *manifest,
                       const opi_file_hashes files[OPI_MANIFEST_FILES], opi_text *text);
/* Version 3, around the texts of all shards, separated by commas. */
void opi_manifest_text_shards(const opi_manifest *manifest, const opi_text *shards, opi_text *text);
/* One shard's text, by the process that wrote it. */
void opi_manifest_text_shard(const opi_shard *shard,
                             const opi_file_hashes files[OPI_MANIFEST_FILES], opi_text *text);
/* Errors: NOTFOUND, IO, INVALID names the member, or the manifest's own hash and what it has. */
opipe_status opi_manifest_read(const opipe_allocator *allocator, int dir,
                               opi_manifest *out_manifest, opipe_error *err);
/* Was the manifest, be it damaged, written by this library? */
bool opi_manifest_is_ours(const opipe_allocator *allocator, int dir);
void opi_manifest_free(opi_manifest *manifest); /* frees what reading allocated */
/* Compares the header of a shard's file (0: weights, 1: state) and the number of its tensors with
 * the manifest. Errors: INVALID names the file and both hashes or numbers. */
opipe_status opi_manifest_verify(const opi_shard *shard, uint32_t file, const opi_tensors *tensors,
                                 opipe_error *err);
/* The same for a tensor's bytes. */
opipe_status opi_manifest_verify_tensor(const opi_shard *shard, uint32_t file,
                                        const opi_tensors *tensors, const opi_tensor_entry *entry,
                                        opipe_error *err);

#endif /* OPI_CHECKPOINT_MANIFEST_H */
