/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a plan's playlist of its lists. */
#ifndef OPI_LISTS_PLAYLIST_H
#define OPI_LISTS_PLAYLIST_H

#include "partition/lists/lists.h"
#include "partition/plan/playlist.h"

/* Times are the piece plan's. sums [parameters]: what a sum over ranks moves of each
 * (partition/memory/predict.h); NULL: not known, its dense bytes. In `arena`. Errors: NOMEM. */
opipe_status opi_playlist_build(const opi_cut_model *model, const opi_lists *lists,
                                const uint64_t *sums, opi_arena *arena, opi_playlist **out_playlist,
                                opipe_error *err);
/* Gives the groups the bytes of those of `file`, what the plan's file has. Errors: INVALID, its
 * groups are not these: the first that is another one. */
opipe_status opi_playlist_keep_bytes(opi_playlist *playlist, const opi_playlist *file,
                                     opipe_error *err);

#endif /* OPI_LISTS_PLAYLIST_H */
