/* SPDX-License-Identifier: Apache-2.0 */
/* Small whole models and what is done with them, for the tests of import. */
#ifndef TESTS_LOADER_WIRE_MODELS_H
#define TESTS_LOADER_WIRE_MODELS_H

#include "tests/loader/wire/writer.h"

static const int64_t four[] = {4};
static const float numbers[] = {1, 2, 3, 4};

static inline bytes with_io(bytes graph, const char *in, const char *out) {
  if (in != NULL)
    w_sub(&graph, 11, w_value(in, OPIPE_FLOAT, four, 1));
  if (out != NULL)
    w_sub(&graph, 12, w_value(out, OPIPE_FLOAT, four, 1));
  return graph;
}

/* NULL after a failure that was asserted. The bytes must outlive the model. */
static inline opi_model *load(bytes model) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *out = NULL;
  OPI_ASSERT_OK(w_load(model, 0, NULL, &out, &err), &err);

  return out;
}

static inline void refuse(bytes model, opipe_status wanted, const char *part) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_model *out = NULL;
  OPI_ASSERT_ERROR(w_load(model, 0, NULL, &out, &err), wanted, &err, part);
  opi_model_free(out);
  free(model.data);
}

static inline void done(opi_model *model, bytes file) {
  opi_model_free(model);
  free(file.data);
}

#endif /* TESTS_LOADER_WIRE_MODELS_H */
