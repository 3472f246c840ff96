/* SPDX-License-Identifier: Apache-2.0 */
/* Training data of the command: arrays mapped from files, one axis of which is the sample. */
#ifndef CLI_DATA_H
#define CLI_DATA_H

#include "cli.h"

enum { DATA_MOST = 1024 };

typedef struct cli_array {
  cli_tensor form; /* name, type, shape; its data is unused */
  const uint8_t *data;
  uint32_t axis;    /* of the samples */
  bool is_whole;    /* no axis: the same for every mini-batch */
  size_t n_outer;   /* product of the axes before it */
  size_t row_bytes; /* of one sample after it; of the whole array if is_whole */
  uint32_t wanted;  /* type that the model reads; a narrower form is widened */
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
  char batch[512]; /* names of the batch's dimensions, if first axes do not determine them; else ""
                    */
  bool is_text;    /* ids are bytes */
  bool shifts;     /* so are the labels: cross entropy is shifted unless stated otherwise */
} cli_data;

/* Opens all --data sources. labels: name of the loss's labels, NULL: none; classes: they are class
 * numbers. Prints messages. */
int cli_data_open(const cli_options *o, const cli_session *s, const char *labels, bool classes,
                  cli_data *out);
/* Finds the sample axis of every array, and the number of samples. data_axes.c */
int cli_data_settle(const cli_options *o, const cli_session *s, const char *labels, cli_data *data);
void cli_data_close(cli_data *data);
/* Adds the array whose form, except the name, is at arrays[n]: n bytes of samples, used in place.
 */
int cli_data_add(cli_data *data, const char *name, const uint8_t *samples, size_t n,
                 const char *path);
/* Adds an array from n bytes of a .npy file's content. */
int cli_data_add_npy(cli_data *data, const char *name, const uint8_t *bytes, size_t n,
                     const char *path);
int cli_data_map(cli_data *data, const char *path, const uint8_t **out_bytes, size_t *out_n);
/* Adds a .npz of stored entries; entries that are neither inputs nor `labels` are named and left
 * out. data_npz.c */
int cli_data_add_npz(cli_data *data, const cli_session *s, const char *labels, const char *path);
/* Adds bytes as ids. data_text.c */
int cli_data_add_text(const cli_options *o, const cli_session *s, const char *path,
                      const char *labels, cli_data *data);
/* The array with this name; NULL: none. */
const cli_array *cli_data_find(const cli_data *data, const char *name);

/* Samples of mini-batch `k`: rows [batch] of epoch k / per_epoch, in file order or permuted by
 * (seed, epoch). `order` [n_samples] caches the order of epoch *io_epoch. */
void cli_data_rows(const cli_data *data, uint64_t k, uint32_t batch, bool shuffle, uint64_t seed,
                   uint64_t *order, uint64_t *io_epoch, uint64_t *out_rows);
/* Copies those rows of every array into tensors [data->n] (allocated once, by _batch_form). */
bool cli_data_batch_form(const cli_data *data, uint32_t batch, cli_tensor *out);
/* Arrays whose tensor has no memory are not read. */
void cli_data_batch(const cli_data *data, const uint64_t *rows, uint32_t batch, cli_tensor *out);

#endif /* CLI_DATA_H */
