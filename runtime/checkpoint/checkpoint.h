/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: a folder from which training continues, whatever plan wrote it.
 *
 *   manifest.json               which files belong to it; step, updates, loss scale, position;
 * hashes of every tensor, of the headers, of itself weights-G.safetensors       fp32 weights of
 * every trained parameter, by initializer name state-G.safetensors         "first/NAME",
 * "second/NAME": moments; "older/NAME": weights one version back, of double-buffered schedules
 *
 * Saving writes new data files (G: one more than the manifest in place says), flushes them, then
 * replaces the manifest by a rename: whoever dies at any instant leaves the old checkpoint or the
 * new one. What an interrupted save left behind is removed by the next.
 */
#ifndef OPI_CHECKPOINT_H
#define OPI_CHECKPOINT_H

#include "loader/graph/model.h"
#include "runtime/weights/weights.h"

enum { OPI_POSITION = 4 };

typedef struct opi_checkpoint_info {
  uint64_t position[OPI_POSITION]; /* the host's own numbers: where in its data it stands */
  opi_weights_clock clock;
} opi_checkpoint_info;

/* Makes the folder if need be. Between steps. Errors: IO names the file. [control] */
opipe_status opi_checkpoint_save(const opipe_allocator *allocator, opi_weights *weights,
                                 const char *folder, const uint64_t position[OPI_POSITION],
                                 opipe_error *err);
/* Could a checkpoint be saved there? Nothing that was not there stays. Errors: as save. */
opipe_status opi_checkpoint_try(const opipe_allocator *allocator, const char *folder,
                                opipe_error *err);
/* Saving there replaces and removes files by name: is none of them one that the model was read
 * from? A folder that is not there has none. Errors: INVALID names the file. */
opipe_status opi_checkpoint_check_target(const opi_model *model, const char *folder,
                                         opipe_error *err);
/* Checks everything, the hash of every tensor too, then takes it over. A session with one version
 * takes the newest; one with two takes it twice when the checkpoint has one. Errors: NOTFOUND (no
 * manifest), INVALID names the tensor and both numbers: damage, missing or surplus names, shapes,
 * moments; nothing is changed then. */
opipe_status opi_checkpoint_load(const opipe_allocator *allocator, opi_weights *weights,
                                 const char *folder, opi_checkpoint_info *out_info,
                                 opipe_error *err);
/* Gradients of the last step by name into one file, replaced atomically. */
opipe_status opi_checkpoint_gradients(const opipe_allocator *allocator, opi_weights *weights,
                                      const char *path, opipe_error *err);

#endif /* OPI_CHECKPOINT_H */
