/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a data file, from the weights to the disk. Inside runtime/checkpoint. */
#ifndef OPI_CHECKPOINT_PIECES_H
#define OPI_CHECKPOINT_PIECES_H

#include "runtime/checkpoint/manifest.h"
#include "runtime/weights/weights.h"

/* One tensor to be written. */
typedef struct opi_stored {
  const char *param;
  uint32_t state, version;
} opi_stored;

typedef struct opi_pieces {
  opi_arena arena;
  opi_tensor_entry *entries; /* [n] names "first/NAME" ... */
  opi_stored *list;
  uint64_t *hashes; /* [n] once written */
  uint32_t n, room;
  bool own;                /* only parameters that this session owns, got from it alone */
  uint64_t largest, total; /* bytes */
  uint64_t header_hash;
} opi_pieces;

typedef opipe_status (*opi_list_fn)(const opi_weights *w, opi_pieces *p, opipe_error *err);
opipe_status opi_list_weights(const opi_weights *w, opi_pieces *p, opipe_error *err);
opipe_status opi_list_gradients(const opi_weights *w, opi_pieces *p, opipe_error *err);
opipe_status opi_list_state(const opi_weights *w, opi_pieces *p, opipe_error *err);

/* Gets the listed tensors and drops them: this session's part in another one's save. */
opipe_status opi_pieces_serve(const opipe_allocator *allocator, opi_weights *w, opi_list_fn list,
                              opipe_error *err);
/* Writes the listed tensors to a new file, flushes it, and removes it if it could not be written
 * whole. The names and hashes are in the pieces' arena, which the caller releases, whatever the
 * status. */
opipe_status opi_pieces_write(const opipe_allocator *allocator, opi_weights *w, opi_list_fn list,
                              bool own, int dir, const char *file, opi_pieces *out,
                              opipe_error *err);
static inline opi_file_hashes opi_pieces_hashes(const opi_pieces *p) {
  return (opi_file_hashes){
      .entries = p->entries, .tensors = p->hashes, .header = p->header_hash, .n = p->n};
}

/* Writes the two files of a shard, and flushes them and the folder. After an error neither is
 * there. The caller releases the pieces, whatever the status. */
opipe_status opi_shard_write(const opipe_allocator *allocator, opi_weights *w, bool own, int dir,
                             const opi_shard *shard, opi_pieces out[OPI_MANIFEST_FILES],
                             opipe_error *err);
void opi_shard_remove(int dir, const opi_shard *shard);
void opi_shard_release(opi_pieces pieces[OPI_MANIFEST_FILES]);

#endif /* OPI_CHECKPOINT_PIECES_H */
