/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the matrix tests: the model folders beside the project, their data sets, and one run of
 * a data set under a plan through the host's table, in this process.
 *
 * Results are copies in malloc'd memory, so that they outlive requests and sessions. Errors are
 * statuses with a message in the model's `err`, as the table gives them.
 */
#ifndef TESTS_MATRIX_KIT_H
#define TESTS_MATRIX_KIT_H

#include "loader/graph/model.h"
#include "opipe/host.h"
#include "tests/support/support.h"

enum {
  MX_TENSORS = 96,
  MX_SETS = 4,
  MX_FOLDERS = 256,
  MX_RANKS = 4,
  MX_PATH = 1024,
  MX_STREAM = 8
};

/* ---- folders ---- */

typedef struct mx_set {
  opi_value inputs[MX_TENSORS], wanted[MX_TENSORS]; /* data in the folder's arena */
  uint32_t n_inputs, n_wanted;
} mx_set;

typedef struct mx_folder {
  char path[MX_PATH];
  const char *name; /* "modern/gpt2/infer": the end of path */
  opi_arena arena;
  double tolerance; /* of meta.json, < 0: none */
  uint32_t n_sets;
  mx_set sets[MX_SETS];
} mx_folder;

/* Every folder with a data set below models/{graphs,gradients,modern}, sorted. 0 after printing a
 * skip line where there are none. Names are static. */
size_t mx_list(const char *names[MX_FOLDERS]);
opipe_status mx_folder_read(const char *name, mx_folder **out_folder, opipe_error *err);
void mx_folder_free(mx_folder *folder); /* accepts NULL */

/* ---- models ---- */

typedef struct mx_model {
  const opipe_api *api;
  opipe_context *context;
  opipe_model *file, *bound;
  const mx_folder *folder;
  const mx_set *set; /* the one that `bound` has the shapes of */
  opipe_error err;
} mx_model;

/* params NULL: the context's defaults. */
opipe_status mx_open(mx_model *m, const opipe_context_params *params, const mx_folder *folder);
/* Binds the dimensions to those of data set `set`; inputs that decide shapes are pinned. */
opipe_status mx_bind(mx_model *m, uint32_t set, bool fuse);
/* The same to any set, which must outlive the binding. */
opipe_status mx_bind_to(mx_model *m, const mx_set *set, bool fuse);
void mx_close(mx_model *m);

/* A data set's input of that name, or NULL; an unnamed one stands for the file's input of its
 * number. */
const opi_value *mx_input(mx_model *m, const mx_set *set, const char *name);
/* The inputs of data set `set` with as many rows of the batch; no two rows are alike. In the
 * folder's arena. Errors: UNSUPPORTED, the model has no free dimension 0. */
opipe_status mx_with_rows(mx_model *m, mx_folder *folder, uint32_t set, int64_t rows, mx_set *out);

/* The stages of a plan as text, one line a stage, without times: equal texts are equal cuts.
 * malloc'd; NULL out of memory. */
char *mx_cut_text(mx_model *m, opipe_plan *plan);

/* ---- runs ---- */

typedef struct mx_result {
  void *data[MX_TENSORS]; /* malloc'd, dense */
  int64_t shape[MX_TENSORS][OPIPE_MAX_RANK];
  uint64_t n_elems[MX_TENSORS], n_bytes[MX_TENSORS];
  uint32_t rank[MX_TENSORS], dtype[MX_TENSORS], n;
} mx_result;
void mx_result_free(mx_result *result);

/* Submits `set` (its shapes may be others than the plan's). The views live in `io` until the
 * request has finished. */
typedef struct mx_io {
  opipe_binding_io items[MX_TENSORS];
  uint32_t n;
} mx_io;
opipe_status mx_inputs(mx_model *m, const mx_set *set, mx_io *io);
opipe_status mx_submit(mx_model *m, opipe_session *session, const mx_io *io, opipe_request **out);
/* Waits, copies the outputs, releases the request, whatever the outcome. */
opipe_status mx_collect(mx_model *m, opipe_request *request, mx_result *out);
/* Submits the sets in order, as many at a time as the session takes. results [n], n at most
 * MX_STREAM; nothing to free where it fails. */
opipe_status mx_stream(mx_model *m, opipe_session *session, const mx_set *const *sets, uint32_t n,
                       mx_result *results);
/* Opens a session, has it serve `n_requests` of the bound set at once (the results must be equal
 * bit by bit), closes it. */
opipe_status mx_run(mx_model *m, opipe_plan *plan, uint32_t flags, uint32_t n_requests,
                    mx_result *out);
/* The whole model by a plain loop. */
opipe_status mx_run_uncut(mx_model *m, mx_result *out);
/* In its place the plan that is read from what it writes, which must write the same. */
opipe_status mx_read_again(mx_model *m, opipe_plan **io_plan);

/* Each NULL when it holds, else the reason (static storage). */
const char *mx_same_bits(const mx_result *found, const mx_result *wanted);
const char *mx_close_to(const mx_result *found, const mx_result *wanted);
const char *mx_matches_set(const mx_folder *folder, const mx_set *set, const mx_result *found);

#endif /* TESTS_MATRIX_KIT_H */
