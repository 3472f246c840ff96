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
  mx_copies(false, &count);
  OPI_ASSERT_INT(count.failed, 0);
  OPI_ASSERT(count.passed > 0);
}

/* ---- what is refused ---- */

typedef struct refusal {
  const char *schedule, *text; /* text: a file's, in place of a name */
  uint32_t n_ranks, copies, n_microbatches;
  uint32_t replicas[3]; /* of each stage */
  opipe_status status;
  const char *words;
} refusal;

static const char sliced[] =
    "#onnx-pipe-schedule v1\n"
    "#ranks=2 stages=2 replicas=1 microbatches=1 slices=2 parts=1 mode=forward versions=one "
    "sync=end\n"
    "#place=0,1\n"
    "0F0/0,0F0/1\n"
    "1F0/0,1F0/1\n";

static const refusal refusals[] = {
    {"gpipe",
     NULL,
     5,
     2,
     4,
     {0},
     OPIPE_E_INVALID,
     "2 replicas of the pipeline cannot share 5 ranks"},
    {"gpipe", NULL, 0, 0, 4, {1, 2, 0}, OPIPE_E_UNSUPPORTED, "2 replicas of stage 1"},
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
    {NULL,
     sliced,
     4,
     2,
     2,
     {0},
     OPIPE_E_UNSUPPORTED,
     "forward plans have 1 slice, 1 part; it asks for 2, 1"},
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
  static mx_set set;
  opipe_error err = OPIPE_ERROR_INIT;
  mx_folder *folder = NULL;
  mx_model m = {.api = NULL};
  if (opi_test_shared("models") == NULL)
    return;
  OPI_ASSERT_OK_FATAL(mx_folder_read("modern/gpt2/infer", &folder, &err), &err);
  OPI_ASSERT_OK_FATAL(mx_open(&m, NULL, folder), &m.err);
  OPI_ASSERT_OK_FATAL(mx_with_rows(&m, folder, 0, 6, &set), &m.err);
  OPI_ASSERT_OK_FATAL(mx_bind_to(&m, &set, true), &m.err);
  for (size_t i = 0; i < OPI_COUNT(refusals); ++i)
    refuse(&m, &refusals[i]);
  mx_close(&m);
  mx_folder_free(folder);
}

OPI_TEST_MAIN("copies of the pipeline", OPI_TEST(test_cover),
              OPI_TEST(test_refusals_name_both_numbers))
