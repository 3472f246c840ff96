/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a training run: mini-batches in flight, and shared functions. */
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
  uint32_t n_places; /* inputs in use */
  uint64_t *order, *rows;
  uint64_t epoch, first; /* mini-batches before this run */
  uint64_t n_started, n_finished;
  double end_s;               /* of the last one finished */
  double start_s, shown_s;    /* of the first step; of the last line of progress */
  uint64_t tokens;            /* of a sample; 0: it has none */
  bool alone;                 /* of several processes, process 0 repeats a mini-batch */
  const train_place *stopped; /* mini-batch that was not finite, if that ends the run */
  train_result *out;
} train_loop;

/* Opens the run's session with further flags. */
int train_open_session(train_loop *l, uint32_t flags);

/* train_files.c: tests before the first step whether all files can be written; reads the checkpoint
 * to resume; writes a checkpoint; writes everything else at the end; keeps weights and gradients
 * for comparison. */
int train_try_targets(const train_loop *l);
int train_resume(train_loop *l);
int train_save(const train_loop *l);
int train_write_files(const train_loop *l);
int train_keep(train_loop *l);
/* All processes help process 0 to a parameter, which it alone keeps: the others free their copy. */
void train_keep_of_0(const train_loop *l, void **io_data);
/* Copies a state of every trained parameter; *out is malloc'ed, whatever the status. Only process 0
 * has data. */
int train_keep_state(const train_loop *l, uint32_t state, uint32_t version, cli_tensor **out,
                     uint32_t *out_n);

/* train_disk.c: before the first step, checks the disks' free space and warns if nothing is saved;
 * after the last one, prints what was saved and where. */
int train_check_disk(const train_loop *l);
void train_say_unsaved(const train_loop *l);
void train_say_saved(const train_loop *l);

/* train_again.c: repeats the mini-batch that stopped the run, with the same weights, checking every
 * value, and prints the first one that is not finite. CLI_CHECK_FAILED. */
int train_again(train_loop *l);
/* With --check-finite: true if the failed mini-batch also fails without the checks. Replaces the
 * loop's session. */
bool train_fails_unchecked(train_loop *l, const train_place *place);

#endif /* CLI_TRAIN_LOOP_H */
