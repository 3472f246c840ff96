/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: a folder from which training continues, whatever plan wrote it.
 *
 *   manifest.json          names the data files; step, updates, loss scale, position; hashes of
 *                          every tensor, of the headers, of itself
 *   weights-G.safetensors  fp32 weights of every trained parameter, by initializer name
 *   state-G.safetensors    "first/NAME", "second/NAME": moments; "older/NAME": weights one version
 *                          back, of double-buffered schedules; "set/NAME": parameters that are not
 *                          trained and that the host has set
 *
 * The processes of a group save together: process P writes weights-G-P and state-G-P with the
 * parameters that its ranks own, and process 0 the manifest, last, when all have flushed theirs.
 *
 * Saving writes new data files (G: one more than in the manifest), flushes them, then replaces the
 * manifest by a rename. A process that dies at any instant leaves the old checkpoint or the new
 * one; the next save removes the files of an interrupted one.
 */
#ifndef OPI_CHECKPOINT_H
#define OPI_CHECKPOINT_H

#include <opipe/host.h>

#include "loader/graph/model.h"
#include "runtime/weights/weights.h"

enum { OPI_POSITION = 4 };

typedef struct opi_checkpoint_info {
  uint64_t position[OPI_POSITION]; /* the host's own numbers: where in its data it stands */
  opi_weights_clock clock;
} opi_checkpoint_info;

/* Processes that save and load together: the sessions of a plan's ranks, one in each. All make the
 * same calls in the same order; an error of one is the answer of all, with its process. */
typedef struct opi_checkpoint_group {
  uint32_t rank, size;
  opipe_status (*gather)(void *ctx, const opipe_gather_params *params, opipe_error *err);
  opipe_status (*check)(void *ctx, opipe_error *err); /* has the group failed? */
  void *ctx;
} opi_checkpoint_group;

/* Makes the folder if needed. Only between steps. Errors: IO names the file. [control] */
opipe_status opi_checkpoint_save(const opipe_allocator *allocator, opi_weights *weights,
                                 const char *folder, const uint64_t position[OPI_POSITION],
                                 opipe_error *err);
/* The same by a group. had: this process's status before, with its reason in *io_err. Errors: as
 * save; INVALID: the folder is not the same one in all processes; PEER: the group has failed, and
 * the old checkpoint or the new one is there. [control] */
opipe_status opi_checkpoint_save_shards(const opipe_allocator *allocator, opi_weights *weights,
                                        const opi_checkpoint_group *group, const char *folder,
                                        const uint64_t position[OPI_POSITION], opipe_status had,
                                        opipe_error *io_err);
/* Could a checkpoint be saved there? Leaves nothing behind. Errors: as save. */
opipe_status opi_checkpoint_try(const opipe_allocator *allocator, const char *folder,
                                opipe_error *err);
opipe_status opi_checkpoint_try_shards(const opipe_allocator *allocator,
                                       const opi_checkpoint_group *group, const char *folder,
                                       opipe_status had, opipe_error *io_err);
/* Saving replaces and removes files of the folder by name. INVALID names the file if the model was
 * read from one of them. A missing folder is fine. */
opipe_status opi_checkpoint_check_target(const opi_model *model, const char *folder,
                                         opipe_error *err);
/* Checks everything, including the hash of every tensor, before it changes anything. A group reads
 * one checkpoint, and each process only the tensors that it holds; group NULL: none. A session with
 * one version takes the newest; one with two takes it twice if the checkpoint has one. Errors:
 * NOTFOUND (no manifest); INVALID names the tensor and both numbers: damage, missing or surplus
 * names, shapes, moments. */
opipe_status opi_checkpoint_load(const opipe_allocator *allocator, opi_weights *weights,
                                 const char *folder, opi_checkpoint_info *out_info,
                                 opipe_error *err);
opipe_status opi_checkpoint_load_shards(const opipe_allocator *allocator, opi_weights *weights,
                                        const opi_checkpoint_group *group, const char *folder,
                                        opipe_status had, opi_checkpoint_info *out_info,
                                        opipe_error *io_err);
/* Writes the last step's gradients by name into one file, which is replaced atomically. */
opipe_status opi_checkpoint_gradients(const opipe_allocator *allocator, opi_weights *weights,
                                      const char *path, opipe_error *err);

#endif /* OPI_CHECKPOINT_H */
