/* SPDX-License-Identifier: Apache-2.0 */
/* Inside a training run of the command: mini-batches in flight, and what its parts share. */
#ifndef CLI_TRAIN_LOOP_H
#define CLI_TRAIN_LOOP_H

#include "train.h"

enum { TRAIN_IN_FLIGHT = 4 };

typedef struct train_place { /* a mini-batch in flight */
  cli_tensor *tensors;       /* [data->n] */
  opipe_binding_io *inputs;
  opipe_request *ticket;
  double start_s;
} train_place;

typedef struct train_loop {
  const train_run *run;
  opipe_session *session;
  train_place places[TRAIN_IN_FLIGHT];
  uint32_t n_places; /* that are used */
  uint64_t *order, *rows;
  uint64_t epoch, first; /* mini-batches before this run */
  uint64_t n_started, n_finished;
  double end_s;               /* of the last that finished */
  double start_s, shown_s;    /* of the first step; of the last line of progress */
  uint64_t tokens;            /* of a sample; 0: it has none */
  const train_place *stopped; /* the mini-batch that was not finite, where that ends the run */
  train_result *out;
} train_loop;

/* The run's session with further flags. */
int train_open_session(train_loop *l, uint32_t flags);

/* train_files.c: before the first step, whether all that is to be written can be; the checkpoint
 * to go on from; a checkpoint; all the rest at the end; weights and gradients for a comparison. */
int train_try_targets(const train_loop *l);
int train_resume(train_loop *l);
int train_save(const train_loop *l);
int train_write_files(const train_loop *l);
int train_keep(train_loop *l);
/* A state of every trained parameter; *out is malloc'ed, whatever the status. */
int train_keep_state(const train_loop *l, uint32_t state, uint32_t version, cli_tensor **out,
                     uint32_t *out_n);

/* train_disk.c: before the first step, whether disks have room for what is to be saved, and a
 * warning where nothing is; after the last one, what was saved and where. */
int train_check_disk(const train_loop *l);
void train_say_unsaved(const train_loop *l);
void train_say_saved(const train_loop *l);

/* train_again.c: runs the mini-batch that stopped the run once more, on the same weights, with
 * every value looked at, and says where the first one was that is not finite. CLI_CHECK_FAILED. */
int train_again(train_loop *l);
/* With --check-finite: does the mini-batch that failed so fail without looking at values too? The
 * loop's session is another one afterwards. */
bool train_fails_unchecked(train_loop *l, const train_place *place);

#endif /* CLI_TRAIN_LOOP_H */
