/* SPDX-License-Identifier: Apache-2.0 */
/* Member "play" of a plan file: the playlist (partition/plan/playlist.h), part of the prediction.
 * Each rank has one line of words, separated by spaces:
 *
 *   F2:0  F2.1:0   pass F, B, I or W of piece 2 on micro-batch 0; on replica 1
 *   s4:0           sends micro-batch 0 on stream 4; p: posts its receive, w: waits for it,
 *                  d: waits until it has left, m: waits for its destination
 *   c1  c1.1       enters group 1, for a sum or a barrier; with replica 1 of a stage
 *   j1             waits for the group's result
 *   b3             the next 3 sends and posts are one batch
 *
 * With double-buffered weights a word may end in +1 or -1, the offset in mini-batches from its own,
 * and in n, the next mini-batch.
 */
#ifndef OPI_JSON_PLAYLIST_H
#define OPI_JSON_PLAYLIST_H

#include "loader/base/json.h"
#include "partition/plan/playlist.h"

/* Writes the member after others; nothing if the plan has no playlist. */
void opi_json_write_playlist(opi_text *text, const opi_plan *plan);
/* Reads the predicted playlist, after all other parts of the plan; every index is checked. Errors:
 * NOTFOUND, the file has none (says what is missing and how to make it); INVALID names the value
 * that is out of range.
 */
opipe_status opi_json_read_playlist(const json_t *root, opi_plan *plan, opipe_error *err);

#endif /* OPI_JSON_PLAYLIST_H */
