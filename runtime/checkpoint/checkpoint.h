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
 * Saving writes new data files (G: one more than in the manifest), flushes them, then replaces the
 * manifest by a rename. A process that dies at any instant leaves the old checkpoint or the new
 * one; the next save removes the files of an interrupted one.
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

/* Makes the folder if needed. Only between steps. Errors: IO names the file. [control] */
opipe_status opi_checkpoint_save(const opipe_allocator *allocator, opi_weights *weights,
                                 const char *folder, const uint64_t position[OPI_POSITION],
                                 opipe_error *err);
/* Could a checkpoint be saved there? Leaves nothing behind. Errors: as save. */
opipe_status opi_checkpoint_try(const opipe_allocator *allocator, const char *folder,
                                opipe_error *err);
/* Saving replaces and removes files of the folder by name. INVALID names the file if the model was
 * read from one of them. A missing folder is fine. */
opipe_status opi_checkpoint_check_target(const opi_model *model, const char *folder,
                                         opipe_error *err);
/* Checks everything, including the hash of every tensor, before it changes anything. A session with
 * one version takes the newest; one with two takes it twice if the checkpoint has one. Errors:
 * NOTFOUND (no manifest); INVALID names the tensor and both numbers: damage, missing or surplus
 * names, shapes, moments. */
opipe_status opi_checkpoint_load(const opipe_allocator *allocator, opi_weights *weights,
                                 const char *folder, opi_checkpoint_info *out_info,
                                 opipe_error *err);
/* Writes the last step's gradients by name into one file, which is replaced atomically. */
opipe_status opi_checkpoint_gradients(const opipe_allocator *allocator, opi_weights *weights,
                                      const char *path, opipe_error *err);

#endif /* OPI_CHECKPOINT_H */
