/* SPDX-License-Identifier: Apache-2.0 */
/* A model whose graphs are the row form of another: for plans and sessions a model like any other.
 *
 * Its free dimensions are `rows`, `wanted`, `sequences` and `copies`. The rows decide: a graph of N
 * rows has min(N, most wanted) wanted ones and room for min(N, most sequences) sequences, with one
 * copy for each. opi_bind makes its graphs with pages in place (OPI_VALUE_HELD); the pages are no
 * inputs of a host. Dimensions, pins and fusions of the file are those of the form. */
#ifndef OPI_ROW_MODEL_H
#define OPI_ROW_MODEL_H

#include "loader/passes/row_form.h"

typedef struct opi_row_sizes {
  int64_t context;   /* most tokens of a sequence */
  int64_t page;      /* tokens of a page */
  int64_t pages;     /* of every attention */
  int64_t rows;      /* most of a pass */
  int64_t wanted;    /* most whose logits are wanted, at most rows */
  int64_t sequences; /* most of a pass */
} opi_row_sizes;

typedef struct opi_row_model {
  opi_model model;       /* .rows leads back here; file and mappings are the other's */
  const opi_model *file; /* borrowed */
  opi_row_form *form;
  opi_row_sizes sizes; /* pages: may be changed as long as no graph is in use */
  int64_t n_known;     /* ids that it reads are below; 0: not known */
  void *lock;          /* the form is used by one thread at a time */
} opi_row_model;

/* Finds the form and makes the largest graph once. `file` and the evaluator of `options` must
 * outlive the model; pins, barriers and flags are copied into the form's graph. output: NULL: see
 * opi_row_form_find. Errors: of opi_row_form_find, opi_row_graph_make. */
opipe_status opi_row_model_make(const opi_model *file, const opi_bind_options *options,
                                const opi_row_sizes *sizes, const char *output,
                                opi_row_model **out_model, opipe_error *err);
void opi_row_model_free(opi_row_model *model); /* accepts NULL */
/* The numbers of the graph of `rows` rows. */
opi_row_wish opi_row_model_wish(const opi_row_model *model, int64_t rows);
/* opi_bind of such a model. Errors: INVALID: dimensions that do not belong together. */
opipe_status opi_row_model_bind(opi_row_model *model, const opi_bind_options *options,
                                opi_bound **out_bound, opipe_error *err);
/* The model's dimensions for `rows` rows, [OPI_ROW_DIMS]; names are static. */
enum { OPI_ROW_DIMS = 4 };
void opi_row_model_dims(const opi_row_model *model, int64_t rows,
                        opi_dim_binding out_dims[OPI_ROW_DIMS]);

#endif /* OPI_ROW_MODEL_H */
