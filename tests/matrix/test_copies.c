/* SPDX-License-Identifier: Apache-2.0 */
/* Inference by copies of the pipeline: a cover of its matrix, and what is refused.
 * ctest: timeout=240
 */
#include <stdio.h>

#include "tests/matrix/copies.h"

static void test_cover(void) {
  const char *names[MX_FOLDERS];
  mx_count count;
  if (mx_list(names) == 0)
    OPI_SKIP("there are no model folders");
  mx_copies(false, &(kit_place){.transport = NULL}, 1, &count);
  OPI_ASSERT_INT(count.failed, 0);
  OPI_ASSERT(count.passed > 0);
}

/* ---- one model in six rows ---- */

typedef struct fixture {
  mx_folder *folder;
  mx_model m;
  mx_set set;
} fixture;

/* false after saying that it is skipped. */
static bool start(fixture *f) {
  opipe_error err = OPIPE_ERROR_INIT;
  memset(f, 0, sizeof *f);
  if (opi_test_shared("models") == NULL)
    return false;
  OPI_ASSERT_OK_FATAL(mx_folder_read("modern/gpt2/infer", &f->folder, &err), &err);
  OPI_ASSERT_OK_FATAL(mx_open(&f->m, NULL, f->folder), &f->m.err);
  OPI_ASSERT_OK_FATAL(mx_with_rows(&f->m, f->folder, 0, 6, &f->set), &f->m.err);
  OPI_ASSERT_OK_FATAL(mx_bind_to(&f->m, &f->set, true), &f->m.err);
  return true;
}

static void stop(fixture *f) {
  mx_close(&f->m);
  mx_folder_free(f->folder);
}

/* ---- refused copies ---- */

typedef struct refusal {
  const char *schedule, *text; /* text: a file's, in place of a name */
  uint32_t n_ranks, copies, n_microbatches;
  uint32_t replicas[3]; /* of each stage */
  opipe_status status;
  const char *words;
} refusal;

static const refusal refusals[] = {
    {"gpipe",
     NULL,
     5,
     2,
     4,
     {0},
     OPIPE_E_INVALID,
     "2 replicas of the pipeline cannot share 5 ranks"},
    {"gpipe",
     NULL,
     0,
     0,
     4,
     {1, 3, 0},
     OPIPE_E_INVALID,
     "stage 1 has 3 replicas, which cannot share a micro-batch of 2 rows"},
    {"gpipe",
     NULL,
     0,
     3,
     4,
     {1, 1, 0},
     OPIPE_E_INVALID,
     "replicas of 2 stages, and 3 copies of the whole pipeline"},
    {NULL,
     "0F0,0F1\n1F0,1F1\n",
     4,
     2,
     3,
     {0},
     OPIPE_E_INVALID,
     "1 micro-batches are asked for, the text has 2"},
};

static void refuse(mx_model *m, const refusal *r) {
  char schedule[600];
  opipe_plan *plan = NULL;
  uint32_t n_replicas = 0;
  const char *path = opi_test_tmp("order.csv");
  if (r->text != NULL)
    OPI_ASSERT_FATAL(opi_test_write_file(path, r->text, strlen(r->text)));
  (void)snprintf(schedule, sizeof schedule, "%s%s",
                 r->text == NULL ? r->schedule : "file:", r->text == NULL ? "" : path);
  while (r->replicas[n_replicas] != 0)
    ++n_replicas;
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_ranks = r->n_ranks,
                                    .n_microbatches = r->n_microbatches,
                                    .replicas = r->copies,
                                    .stage_replicas = n_replicas == 0 ? NULL : r->replicas,
                                    .n_stage_replicas = n_replicas,
                                    .schedule = schedule};
  OPI_ASSERT_ERROR(m->api->plan_make(m->bound, &params, &plan, &m->err), r->status, &m->err,
                   r->words);
  m->api->plan_destroy(plan);
}

static void test_refusals_name_both_numbers(void) {
  fixture f;
  if (!start(&f))
    return;
  for (size_t i = 0; i < OPI_COUNT(refusals); ++i)
    refuse(&f.m, &refusals[i]);
  stop(&f);
}

/* An order with replicas of its own, two ranks that hold both stages each: copied as it is. */
static void test_replicas_of_its_own(void) {
  static const char crossed[] =
      "#onnx-pipe-schedule v1\n"
      "#ranks=2 stages=2 replicas=2 microbatches=2 slices=1 parts=1 mode=forward versions=one "
      "sync=end\n"
      "#place=0,1,1,0\n"
      "0@0F0,1@1F1\n"
      "1@0F0,0@1F1\n";
  enum { COPIES = 2 };
  char schedule[600];
  fixture f;
  mx_result found = {.n = 0}, reference = {.n = 0}, uncut = {.n = 0};
  opipe_plan *plan = NULL;
  const char *path = opi_test_tmp("crossed.csv");
  if (!start(&f))
    return;
  OPI_ASSERT_FATAL(opi_test_write_file(path, crossed, sizeof crossed - 1));
  (void)snprintf(schedule, sizeof schedule, "file:%s", path);
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_ranks = 2 * COPIES,
                                    .n_microbatches = 2 * COPIES,
                                    .replicas = COPIES,
                                    .schedule = schedule};
  OPI_ASSERT_OK_FATAL(f.m.api->plan_make(f.m.bound, &params, &plan, &f.m.err), &f.m.err);
  OPI_ASSERT_OK_FATAL(mx_read_again(&f.m, &plan), &f.m.err);
  OPI_ASSERT_OK(mx_run(&f.m, plan, 0, 4, &found), &f.m.err);
  OPI_ASSERT_OK(mx_run(&f.m, plan, OPIPE_SESSION_REFERENCE, 1, &reference), &f.m.err);
  OPI_ASSERT_OK(mx_run_uncut(&f.m, &uncut), &f.m.err);
  OPI_ASSERT(mx_same_bits(&found, &reference) == NULL);
  OPI_ASSERT(mx_close_to(&found, &uncut) == NULL);
  mx_result_free(&found);
  mx_result_free(&reference);
  mx_result_free(&uncut);
  f.m.api->plan_destroy(plan);
  stop(&f);
}

OPI_TEST_MAIN("copies of the pipeline", OPI_TEST(test_cover),
              OPI_TEST(test_refusals_name_both_numbers), OPI_TEST(test_replicas_of_its_own))
