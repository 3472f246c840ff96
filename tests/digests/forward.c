/* SPDX-License-Identifier: Apache-2.0 */
/* Inference: every model folder, data set, fused or not, 1 to 4 stages, two schedules, 1 to 3
 * micro-batches. */
#include <stdio.h>

#include "tests/digests/digests.h"
#include "tests/matrix/kit.h"

static const char *const SCHEDULES[] = {"sequential", "gpipe"};
enum { MICROBATCHES = 3, FOLDERS = 3, PARTS = 8 };

static opipe_status make_plan(mx_model *m, uint32_t stages, uint32_t schedule,
                              uint32_t n_microbatches, opipe_plan **out_plan) {
  const opipe_device_choice device = {.kind = "cpu", .options = "kernels=portable", .threads = 1};
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_stages = stages,
                                    .devices = &device,
                                    .n_devices = 1,
                                    .devices_stride = sizeof device,
                                    .n_microbatches = n_microbatches,
                                    .schedule = SCHEDULES[schedule],
                                    .flags = OPIPE_PLAN_IGNORE_ANNOTATIONS};
  return m->api->plan_make(m->bound, &params, out_plan, &m->err);
}

static void one_case(dg_table *t, mx_model *m, uint32_t stages, uint32_t schedule, uint32_t n) {
  char item[64], value[64], hex[9];
  opipe_plan *plan = NULL;
  dg_plan_text text;
  mx_result found = {.n = 0};
  dg_hash outputs = {0};
  (void)snprintf(item, sizeof item, "%u/%s/%u", stages, SCHEDULES[schedule], n);
  opipe_status status = make_plan(m, stages, schedule, n, &plan);
  if (status != OPIPE_OK) {
    (void)snprintf(value, sizeof value, "refused %d", status);
  } else {
    status = dg_plan(m->api, plan, &text, &m->err);
    if (status == OPIPE_OK)
      status = mx_run(m, plan, 0, 1, &found);
    OPI_ASSERT_OK(status, &m->err);
    for (uint32_t i = 0; i < found.n; ++i) {
      dg_add(&outputs, found.shape[i], found.rank[i] * sizeof(int64_t));
      dg_add(&outputs, found.data[i], (size_t)found.n_bytes[i]);
    }
    (void)snprintf(value, sizeof value, "%s %s", dg_hex(&outputs, hex), text.text);
  }
  dg_case(t, item, value);
  mx_result_free(&found);
  m->api->plan_destroy(plan);
}

static void one_binding(dg_table *t, mx_model *m, uint32_t set, bool fuse, uint32_t turn) {
  dg_group(t, "%s %u %s", m->folder->name, set, fuse ? "fused" : "plain");
  if (!OPI_ASSERT_OK(mx_bind(m, set, fuse), &m->err))
    return;
  uint32_t i = 0;
  for (uint32_t stages = 1; stages <= MX_RANKS; ++stages) {
    for (uint32_t schedule = 0; schedule < OPI_COUNT(SCHEDULES); ++schedule) {
      for (uint32_t n = 1; n <= MICROBATCHES; ++n, ++i) {
        if (opi_test_covers(i + turn, PARTS))
          one_case(t, m, stages, schedule, n);
      }
    }
  }
}

void dg_forward(void) {
  const char *names[MX_FOLDERS];
  const size_t n = mx_list(names);
  if (n == 0)
    OPI_SKIP("there are no model folders");
  dg_table *t = dg_open("forward");
  for (uint32_t i = 0; t != NULL && i < n; ++i) {
    opipe_error err = OPIPE_ERROR_INIT;
    mx_folder *folder = NULL;
    mx_model m = {.api = NULL};
    if (!opi_test_covers(i, FOLDERS))
      continue;
    if (mx_folder_read(names[i], &folder, &err) < 0 || mx_open(&m, NULL, folder) != OPIPE_OK) {
      OPI_FAIL("%s: %s%s", names[i], err.message, m.err.message);
    } else {
      for (uint32_t b = 0; b < 2 * folder->n_sets; ++b)
        one_binding(t, &m, b / 2, b % 2 == 0, i / FOLDERS + b);
    }
    mx_close(&m);
    mx_folder_free(folder);
  }
  if (t != NULL)
    dg_close(t);
}
