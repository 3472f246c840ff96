/* SPDX-License-Identifier: Apache-2.0 */
/* Inference by copies of the pipeline: model folder x schedule's forward form x stages x copies x
 * micro-batches x rows, each a session that serves requests of two numbers of rows under a plan
 * that was written and read.
 *
 * A case holds when every result has the bits of the plan's reference and is close to the uncut
 * model that was bound to those rows, and the session's memory is what the plan predicts, or when
 * the model is refused as cases.h has it.
 */
#ifndef TESTS_MATRIX_COPIES_H
#define TESTS_MATRIX_COPIES_H

#include "tests/matrix/cases.h"
#include "tests/runtime/train/kit.h"

enum { MX_SIZES = 10 };

/* A model folder with what its cases share, by number of rows. */
typedef struct mx_bench {
  mx_folder *folder;
  mx_model m;
  mx_set sets[MX_SIZES];
  mx_result uncut[MX_SIZES];
  kit_place place; /* of the plans */
  bool fuse;
} mx_bench;

/* Opens a bench for a folder; false after failing the test. */
bool mx_bench_open(mx_bench *b, const char *name, const kit_place *place, bool fuse);
void mx_bench_close(mx_bench *b);
/* Binds the model to so many rows; their uncut result, once. false: it has no other rows than its
 * data set's. */
bool mx_bench_bind(mx_bench *b, int64_t rows);
/* A plan for `own` rows, read again from its file: requests of that many, and of `other` in turns
 * with them, have the bits of its reference and are close to the uncut model; memory is as
 * predicted. NULL, or why not (static storage). Both were bound before. */
const char *mx_bench_serve(mx_bench *b, opipe_plan **io_plan, int64_t own, int64_t other);

/* full: every model folder under every schedule, the other choices drawn by a fixed seed. Else a
 * cover: every other folder (third, under a sanitizer), each under one schedule, which takes them
 * all in turn. Fails the running test for each case that does not hold, and where a value of a
 * dimension never passed. places: of the
 * plans, by model in turn. */
void mx_copies(bool full, const kit_place *places, uint32_t n_places, mx_count *count);

#endif /* TESTS_MATRIX_COPIES_H */
