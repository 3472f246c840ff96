/* SPDX-License-Identifier: Apache-2.0 */
/* Training data of the command: arrays mapped from files, one axis of which is the sample. */
#ifndef CLI_DATA_H
#define CLI_DATA_H

#include "cli.h"

enum { DATA_MOST = 1024 };

typedef struct cli_array {
  cli_tensor form; /* name, type, shape; its data is not used */
  const uint8_t *data;
  uint32_t axis;    /* that holds the samples */
  bool is_whole;    /* none does: the same for every mini-batch */
  size_t n_outer;   /* product of the axes in front of it */
  size_t row_bytes; /* of one sample behind them; of all that is given where it is whole */
  uint32_t wanted;  /* type that the model reads; another than the form's is widened */
} cli_array;

typedef struct cli_mapping {
  void *bytes;
  size_t n;
  bool owned; /* malloc'ed, not mapped */
} cli_mapping;

typedef struct cli_data {
  cli_array arrays[DATA_MOST];
  cli_mapping maps[DATA_MOST];
  uint32_t n, n_maps;
  uint64_t n_samples;
  char batch[512]; /* the batch's dimensions, where first axes do not say them; else "" */
  bool is_text;    /* ids made of bytes */
  bool shifts;     /* so are the labels: cross entropy is shifted, where nothing else is said */
} cli_data;

/* Opens all --data sources; `labels`: name of the loss's labels, NULL: none; `classes`: they are
 * numbers of classes. Messages are printed. */
int cli_data_open(const cli_options *o, const cli_session *s, const char *labels, bool classes,
                  cli_data *out);
/* Which axis of every array holds the samples, and how many there are. data_axes.c */
int cli_data_settle(const cli_options *o, const cli_session *s, const char *labels, cli_data *data);
void cli_data_close(cli_data *data);
/* Adds the array whose form lies at arrays[n] but for its name: n bytes of samples, which stay
 * where they are. */
int cli_data_add(cli_data *data, const char *name, const uint8_t *samples, size_t n,
                 const char *path);
/* Adds an array of n bytes at `bytes`, a .npy file's content. */
int cli_data_add_npy(cli_data *data, const char *name, const uint8_t *bytes, size_t n,
                     const char *path);
int cli_data_map(cli_data *data, const char *path, const uint8_t **out_bytes, size_t *out_n);
/* A .npz of stored entries; those that are no input and not `labels` are named and left out.
 * data_npz.c */
int cli_data_add_npz(cli_data *data, const cli_session *s, const char *labels, const char *path);
/* Bytes as ids. data_text.c */
int cli_data_add_text(const cli_options *o, const cli_session *s, const char *path,
                      const char *labels, cli_data *data);
/* The array called `name`, NULL: none. */
const cli_array *cli_data_find(const cli_data *data, const char *name);

/* The samples of mini-batch `k`: rows [batch] of epoch k / per_epoch, in file order, or in an order
 * of (seed, epoch). `order` [n_samples] is scratch that keeps one epoch's order: *io_epoch. */
void cli_data_rows(const cli_data *data, uint64_t k, uint32_t batch, bool shuffle, uint64_t seed,
                   uint64_t *order, uint64_t *io_epoch, uint64_t *out_rows);
/* Copies those rows of every array into tensors [data->n] (allocated once, by _batch_form). */
bool cli_data_batch_form(const cli_data *data, uint32_t batch, cli_tensor *out);
void cli_data_batch(const cli_data *data, const uint64_t *rows, uint32_t batch, cli_tensor *out);

#endif /* CLI_DATA_H */
