/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a plan's playlist from its lists. */
#ifndef OPI_LISTS_PLAYLIST_H
#define OPI_LISTS_PLAYLIST_H

#include "partition/lists/lists.h"
#include "partition/plan/playlist.h"

/* Devices tell of sums: */
typedef struct opi_playlist_facts {
  const uint64_t *sums; /* [parameters] bytes that a sum over ranks moves for each
                           (partition/memory/predict.h); NULL: unknown, dense bytes are taken */
  const opi_playlist
      *file;     /* of a plan that was read: its buckets and parts are made again; NULL */
  bool in_parts; /* backwards run in parts (opipe_backend.run_part) */
} opi_playlist_facts;

/* Times are the piece plan's. Allocates in `arena`. Errors: NOMEM. */
opipe_status opi_playlist_build(const opi_cut_model *model, const opi_lists *lists,
                                const opi_playlist_facts *facts, opi_arena *arena,
                                opi_playlist **out_playlist, opipe_error *err);
/* Takes the groups' bytes from `file`, the playlist in the plan's file. Errors: INVALID, the first
 * group that differs. */
opipe_status opi_playlist_keep_bytes(opi_playlist *playlist, const opi_playlist *file,
                                     opipe_error *err);

#endif /* OPI_LISTS_PLAYLIST_H */
