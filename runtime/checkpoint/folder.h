/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of a checkpoint. Inside runtime/checkpoint. Only who holds its lock changes files in
 * it; the processes of a group do so under the lock of process 0. */
#ifndef OPI_CHECKPOINT_FOLDER_H
#define OPI_CHECKPOINT_FOLDER_H

#include "runtime/checkpoint/manifest.h"

enum { OPI_TOKEN_ROOM = 33 };

/* Opens and locks the folder. *out_made: this call made it. */
opipe_status opi_folder_open(const char *folder, int *out_dir, bool *out_made, opipe_error *err);
/* Removes a folder that was made in vain, while it is still locked. dir < 0: it is not open. */
void opi_folder_close(const char *folder, int dir, bool made, opipe_status status);
/* Is it a name of a checkpoint's file? */
bool opi_folder_owns(const char *name);
/* Removes files of other generations and those of an interrupted save. */
void opi_folder_sweep(int dir, const opi_manifest *keep);
/* Reads the manifest in place. A damaged one of ours may be replaced, any other file may not. */
opipe_status opi_folder_read_old(const opipe_allocator *allocator, int dir, opi_manifest *out_old,
                                 bool *out_damaged, opipe_error *err);
/* Writes a file that will replace the manifest, flushes it and renames it. *out_replaced: the new
 * manifest is there, although its flush may have failed. */
opipe_status opi_folder_put_manifest(int dir, const opi_text *text, bool *out_replaced,
                                     opipe_error *err);

/* A file with random letters shows to those who were told them that a folder is the same one. */
opipe_status opi_folder_put_token(int dir, char out_token[OPI_TOKEN_ROOM], opipe_error *err);
/* The token that is there; "": none. */
void opi_folder_get_token(int dir, char out_token[OPI_TOKEN_ROOM]);
void opi_folder_drop_token(int dir);

#endif /* OPI_CHECKPOINT_FOLDER_H */
