/* SPDX-License-Identifier: Apache-2.0 */
/* What playing the lists of a plan takes (partition/lists/playlist.h) as member "play" of its file,
 * beside what is predicted. Lists are one line per rank, words with spaces between:
 *
 *   F2:0  F2.1:0   pass F, B, I or W of piece 2 on micro-batch 0; of its replica 1
 *   s4:0           micro-batch 0 is sent on stream 4; p: its receive is posted, w: waited for,
 *                  d: it has left, m: its place is waited for
 *   c1  c1.1       the rank comes to group 1, to sum or to wait; for its replica 1 of a stage
 *   j1             it waits for what the group brings
 *   b3             the 3 sends and posts that follow are one batch
 *
 * and behind a word, of double-buffered weights: +1 or -1, what it is about is of so many
 * mini-batches behind its own; n, of the next mini-batch.
 */
#ifndef OPI_JSON_PLAYLIST_H
#define OPI_JSON_PLAYLIST_H

#include "loader/base/json.h"
#include "partition/plan/playlist.h"

/* As a member behind others; nothing where the plan has none. */
void opi_json_write_playlist(opi_text *text, const opi_plan *plan);
/* plan->play, once all else of the plan is there; every index is in its range. Errors: NOTFOUND,
 * the file has none: what lacks, and how it is made; INVALID names what is out of range. */
opipe_status opi_json_read_playlist(const json_t *root, opi_plan *plan, opipe_error *err);

#endif /* OPI_JSON_PLAYLIST_H */
