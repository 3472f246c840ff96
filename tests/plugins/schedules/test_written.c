/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule that reads a text: published tables come out as they went in, whatever the place of
 * their messages; marks, pairs and dialects; hostile texts are refused with rank, step and cell.
 */
#include "tests/plugins/schedules/lab.h"

enum { TEXT_ROOM = 1 << 18 };

static opipe_status ask(const char *text, uint32_t mode, uint32_t p, uint32_t stages, uint32_t m,
                        asked_order *o) {
  const lab_request q = {"csv", "text", text, mode, p, stages, m, NULL};
  return lab_ask(&q, o);
}

/* ---- tables ---- */

static bool read_table(const char *name, char *out) {
  char path[160];
  (void)snprintf(path, sizeof path, "oracles/schedules/%s", name);
  const char *file = opi_test_shared(path);
  FILE *stream = file == NULL ? NULL : fopen(file, "r");
  if (stream == NULL)
    return false;
  const size_t n = fread(out, 1, TEXT_ROOM - 1, stream);
  out[n] = '\0';
  (void)fclose(stream);
  return n > 0;
}

/* p ranks, n stages, m micro-batches: what the file's name says. */
static void expect_table(const char *name, uint32_t p, uint32_t n, uint32_t m, bool v) {
  static char text[TEXT_ROOM];
  static asked_order o;
  if (!read_table(name, text)) {
    OPI_FAIL("%s cannot be read", name);
    return;
  }
  OPI_ASSERT_OK_FATAL(ask(text, OPIPE_MODE_TRAIN, 0, n, m, &o), &asked_err);
  OPI_ASSERT_INT(o.layout.n_ranks, p);
  OPI_ASSERT_INT(o.layout.n_stages, n);
  for (uint32_t s = 0; s < n; ++s)
    OPI_ASSERT_INT(o.instance_rank[s], v && s >= p ? n - 1 - s : s % p);
  const lab_times t = lab_run(&o, NULL);
  OPI_ASSERT_INT(t.n_left + t.n_wrong + t.n_missing, 0);
  asked_end(&o);
  const lab_request q = {"csv", "text", text, OPIPE_MODE_TRAIN, p, n, m, NULL};
  if (strstr(name, "_compute") != NULL || strstr(name, "10mb") != NULL)
    lab_compare(&q, name);
}

static void test_tables(void) {
  if (opi_test_shared("oracles/schedules") == NULL)
    return;
  expect_table("torch/generated/gpipe_r4_m8_compute.csv", 4, 4, 8, false);
  expect_table("torch/generated/gpipe_r4_m8_comms.csv", 4, 4, 8, false);
  expect_table("torch/generated/interleaved1f1b_r2_v3_m8_compute.csv", 2, 6, 8, false);
  expect_table("torch/generated/interleaved1f1b_r2_v3_m8_comms.csv", 2, 6, 8, false);
  expect_table("torch/generated/zbv_r4_m8_compute.csv", 4, 8, 8, true);
  expect_table("torch/generated/zbv_r4_m8_comms.csv", 4, 8, 8, true);
  expect_table("torch/generated/dualpipev_r4_m8_compute.csv", 4, 8, 8, true);
  expect_table("torch/dualpipev_4rank_10mb.csv", 4, 8, 10, true);
  expect_table("torch/zb1p_2rank_2stagep_comms.csv", 2, 4, 8, false);
  expect_table("torchtitan/custom_schedule.csv", 2, 4, 8, false);
}

static void test_sharded_tables_are_refused(void) {
  static char text[TEXT_ROOM];
  static asked_order o;
  if (opi_test_shared("oracles/schedules") == NULL)
    return;
  OPI_ASSERT_FATAL(read_table("torch/generated/gpipe_r2_m4_full.csv", text));
  OPI_ASSERT_ERROR(ask(text, OPIPE_MODE_TRAIN, 0, 2, 4, &o), OPIPE_E_INVALID, &asked_err,
                   "rank 0, step 0: '0UNSHARD' moves weights");
}

/* ---- text ---- */

static void test_marks(void) {
  static asked_order o;
  static const char text[] =
      "# onnx-pipe-schedule v1\n"
      "0@0F0/0, 0F0/1 0@1F1/0,0@1F1/1,,0R0/1 0B0/1~0,0B0/1~1'1\r\n"
      "0STEP,0@0REDUCE,1F2/0+ 1SEND_B2/0>0@1,1@1F1/0,0FREE0/1\n\n \n";
  OPI_ASSERT_OK_FATAL(ask(text, OPIPE_MODE_TRAIN, 2, 0, 3, &o), &asked_err);
  OPI_ASSERT_INT(o.layout.n_replicas, 2);
  OPI_ASSERT_INT(o.layout.n_slices, 2);
  OPI_ASSERT_INT(o.layout.n_parts, 2);
  OPI_ASSERT_INT(o.n, 8);
  OPI_ASSERT_INT(o.actions[3].replica, 1);
  OPI_ASSERT_INT(o.actions[4].flags, OPIPE_ACTION_RECOMPUTE);
  OPI_ASSERT_INT(o.actions[5].part, 1);
  OPI_ASSERT_INT(o.actions[5].version, 1);
  OPI_ASSERT_INT(o.actions[6].flags, OPIPE_ACTION_NEXT_STEP);
  asked_end(&o);
}

/* Every instance has a home, and one only. */
static void test_instances(void) {
  static asked_order o;
  OPI_ASSERT_ERROR(ask("0F0 0@1F1\n1F0 1F1\n", OPIPE_MODE_TRAIN, 2, 0, 2, &o), OPIPE_E_INVALID,
                   &asked_err, "no action of stage 1, replica 1");
  OPI_ASSERT_ERROR(ask("0F0 1F0\n0F1 1F1\n", OPIPE_MODE_TRAIN, 2, 0, 2, &o), OPIPE_E_INVALID,
                   &asked_err, "rank 1, step 0: stage 0, replica 0 already lives on rank 0");
  OPI_ASSERT_ERROR(ask("0F0 5F0\n", OPIPE_MODE_TRAIN, 0, 6, 1, &o), OPIPE_E_INVALID, &asked_err,
                   "6 stages x 1 replicas, but only 2 actions");
  OPI_ASSERT_ERROR(ask("0F0\n1F0\n", OPIPE_MODE_TRAIN, 3, 0, 1, &o), OPIPE_E_INVALID, &asked_err,
                   "3 ranks are asked for, the text has 2");
  OPI_ASSERT_ERROR(ask("0F0\n1F0\n", OPIPE_MODE_TRAIN, 2, 0, 4, &o), OPIPE_E_INVALID, &asked_err,
                   "4 micro-batches are asked for, the text has 1");
  OPI_ASSERT_ERROR(ask("0F0\n1F0\n", OPIPE_MODE_TRAIN, 2, 3, 1, &o), OPIPE_E_INVALID, &asked_err,
                   "3 stages are asked for, the text has 2");
}

static void test_records(void) {
  static asked_order o;
  static const char text[] =
      "0F0/0 0F0/1 0R0/1 0B0/1 0R0/0 0I0/0 0W0/0\n"
      "1F0/0,(1F0/1;1B0/1)OVERLAP_F_B,1B0/0~0'1\n";
  OPI_ASSERT_OK_FATAL(ask(text, OPIPE_MODE_TRAIN, 0, 2, 1, &o), &asked_err);
  OPI_ASSERT_INT(o.layout.n_slices, 2);
  OPI_ASSERT_INT(o.layout.n_parts, 1);
  OPI_ASSERT_INT(o.layout.versions, OPIPE_VERSIONS_DOUBLE_BUFFERED);
  OPI_ASSERT_INT(o.n, 9);
  OPI_ASSERT_INT(o.actions[2].pass, OPIPE_PASS_BACKWARD);
  OPI_ASSERT_INT(o.actions[2].flags, OPIPE_ACTION_RECOMPUTE);
  OPI_ASSERT_INT(o.actions[3].pass, OPIPE_PASS_BACKWARD_INPUT);
  OPI_ASSERT_INT(o.actions[3].flags, OPIPE_ACTION_RECOMPUTE);
  OPI_ASSERT_INT(o.actions[4].flags, 0);
  OPI_ASSERT_INT(o.actions[6].flags, OPIPE_ACTION_OVERLAP_NEXT);
  OPI_ASSERT_INT(o.actions[8].version, 1);
  asked_end(&o);
  OPI_ASSERT_OK_FATAL(ask("0F0+ 0F1 0B1 0B0\n", OPIPE_MODE_TRAIN, 0, 1, 2, &o), &asked_err);
  OPI_ASSERT_INT(o.actions[0].flags, OPIPE_ACTION_NEXT_STEP);
  asked_end(&o);
}

static void test_text_form(void) {
  static asked_order o;
  static const char text[] =
      "#onnx-pipe-schedule v1\n"
      "#ranks=2 stages=2 mode=train versions=one sync=eager-opt\n#place=0,1\n"
      "rank 0: 0F0 0SEND_F0 - 0RECV_B0 0B0 0FREE0 0REDUCE STEP\nrank 1: - 1RECV_F0 1F0 1B0 "
      "1SEND_B0\n";
  OPI_ASSERT_OK_FATAL(ask(text, OPIPE_MODE_TRAIN, 2, 2, 1, &o), &asked_err);
  OPI_ASSERT_INT(o.layout.sync, OPIPE_SYNC_EAGER_OPT);
  OPI_ASSERT_INT(o.n, 4);
  const lab_times t = lab_run(&o, NULL);
  OPI_ASSERT_INT(t.n_left + t.n_wrong + t.n_missing, 0);
  asked_end(&o);
}

static void test_old_dialect(void) {
  static asked_order o;
  static const opipe_schedule_setting settings[] = {{"text", "0F0,0B0,0W0,0F1,0BW1\n"},
                                                    {"dialect", "torch-old"}};
  const asked_plugin *p = asked_open("csv");
  const opipe_layout_request request = {
      (uint32_t)OPIPE_END(opipe_layout_request, settings), OPIPE_MODE_TRAIN, 1, 0, 2, 2, settings};
  memset(&o, 0, sizeof o);
  o.layout.struct_size = (uint32_t)OPIPE_END(opipe_layout, slice_lengths);
  o.layout.instance_rank = o.instance_rank;
  o.layout.instance_room = ASKED_INSTANCES;
  OPI_ASSERT_OK_FATAL(p->table->layout(p->self, &request, &o.layout, &asked_err), &asked_err);
  const opipe_schedule_problem problem = {
      .struct_size = (uint32_t)OPIPE_END(opipe_schedule_problem, rank_memory_bytes),
      .mode = OPIPE_MODE_TRAIN,
      .n_microbatches = 2,
      .n_settings = 2,
      .settings = settings,
      .layout = &o.layout};
  OPI_ASSERT_OK_FATAL(p->table->plan(p->self, &problem, asked_take, &o, &asked_err), &asked_err);
  OPI_ASSERT_INT(o.n, 5);
  OPI_ASSERT_INT(o.actions[1].pass, OPIPE_PASS_BACKWARD_INPUT);
  OPI_ASSERT_INT(o.actions[4].pass, OPIPE_PASS_BACKWARD);
  asked_end(&o);
}

/* Blank lines at the end are no ranks, unless the header says how many there are. */
static void test_idle_ranks(void) {
  static asked_order o;
  OPI_ASSERT_OK_FATAL(ask("\n0F0\n\n1F0\n \n\n", OPIPE_MODE_FORWARD, 0, 2, 1, &o), &asked_err);
  OPI_ASSERT_INT(o.layout.n_ranks, 4);
  asked_end(&o);
  static const char text[] = "#onnx-pipe-schedule v1\n#ranks=3 stages=1\n0F0\n\n\n\n";
  OPI_ASSERT_OK_FATAL(ask(text, OPIPE_MODE_FORWARD, 0, 1, 1, &o), &asked_err);
  OPI_ASSERT_INT(o.layout.n_ranks, 3);
  asked_end(&o);
  OPI_ASSERT_ERROR(ask(text, OPIPE_MODE_FORWARD, 2, 0, 1, &o), OPIPE_E_INVALID, &asked_err,
                   "2 ranks are asked for, the text has 3");
  asked_end(&o);
}

/* Forwards alone, without flags. */
static void test_forward_form(void) {
  static asked_order o;
  OPI_ASSERT_OK_FATAL(
      ask("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1", OPIPE_MODE_FORWARD, 2, 0, 2, &o),
      &asked_err);
  OPI_ASSERT_INT(o.n, 4);
  for (uint32_t i = 0; i < o.n; ++i)
    OPI_ASSERT(o.actions[i].pass == OPIPE_PASS_FORWARD && o.actions[i].flags == 0);
  asked_end(&o);
}

/* Halves are of backwards, versions of training. The forwards of an endless body's prologue come
 * first: here they are of the last micro-batches. */
static void test_forward_form_of_what_trains(void) {
  static asked_order o;
  static const uint32_t want[2][3] = {{1, 2, 0}, {2, 0, 1}};
  OPI_ASSERT_OK_FATAL(ask("0F0 0B0~0 0B0~1\n1F0 1B0~0 1B0~1", OPIPE_MODE_FORWARD, 2, 0, 1, &o),
                      &asked_err);
  OPI_ASSERT_INT(o.layout.n_parts, 1);
  OPI_ASSERT_INT(o.n, 2);
  asked_end(&o);
  OPI_ASSERT_OK_FATAL(ask("0F0'1 0B0'1 0F1+ 0B1'1 0F2+ 0B2'1\n1F0'1 1B0'1 1F1'1 1B1'1 1F2+ 1B2'1",
                          OPIPE_MODE_FORWARD, 2, 0, 3, &o),
                      &asked_err);
  OPI_ASSERT_INT(o.layout.versions, OPIPE_VERSIONS_ONE);
  OPI_ASSERT_INT(o.n, 6);
  for (uint32_t i = 0; i < o.n; ++i) {
    OPI_ASSERT_INT(o.actions[i].microbatch, want[i / 3][i % 3]);
    OPI_ASSERT(o.actions[i].version == 0 && o.actions[i].flags == 0);
  }
  asked_end(&o);
}

/* ---- hostile texts ---- */

static void refuse(const char *text, const char *part) {
  static asked_order o;
  const opipe_status status = ask(text, OPIPE_MODE_TRAIN, 1, 0, 1, &o);
  if (status != OPIPE_E_INVALID || strstr(asked_err.message, part) == NULL)
    OPI_FAIL("'%s': %d '%s', not '%s'", text, (int)status, asked_err.message, part);
  else
    OPI_ASSERT(true);
  asked_end(&o);
}

static void test_refusals(void) {
  static const struct {
    const char *text, *part;
  } rows[] = {
      {"", "no compute action"},
      {"# nothing\n\n", "no compute action"},
      {"0SEND_F0", "no compute action"},
      {"F0", "rank 0, step 0: 'F0' is not an action"},
      {"0F0,0X0", "rank 0, step 1: '0X0' is not an action"},
      {"0", "'0' is not an action"},
      {"0F", "'0F' names no micro-batch"},
      {"0F0x", "continues where it should end"},
      {"0F0/", "cannot be read"},
      {"0F0'", "cannot be read"},
      {"0F0~256", "cannot be read"},
      {"0F0/65536", "cannot be read"},
      {"0@F0", "names no stage"},
      {"0@70000F0", "names no stage"},
      {"99999999999999999999F0", "names no stage"},
      {"0F99999999999999999999", "names no micro-batch"},
      {"1048576F0", "names no stage"},
      {"0UNSHARD", "moves weights"},
      {"0OFFLOAD0", "moves weights"},
      {"0SCATTER", "'0SCATTER' is of a group of ranks"},
      {"0F0 0SUM_F0", "'0SUM_F0' is of a group of ranks"},
      {"#tensor=2\n0F0", "the header's tensor=2"},
      {"(0F0;0B0)", "is not a pair"},
      {"(0F0;0B0)OVERLAP", "is not a pair"},
      {"(0F0;0B0)OVERLAP_F_B1", "is not a pair"},
      {"(0F0,0B0)OVERLAP_F_B", "continues where it should end"},
      {"(0F0;0SEND_F0)OVERLAP_F_B", "is not a pair"},
      {"(", "is not an action"},
      {"0R0", "ends a row whose R has no backward"},
      {"0R0 0F0", "follows an R of something else"},
      {"0R0 0B1", "follows an R of something else"},
      {"rank 1: 0F0", "does not begin with the number of its row"},
      {"rank x: 0F0", "does not begin with the number of its row"},
      {"#onnx-pipe-schedule v1\n#sync=never\n0F0", "the header's sync=never"},
      {"#shares=1,2 sync=end\n0F0", "the header's shares=1,2"},
      {"#slices=2 lengths=48,16\n0F0/0 0F0/1", "the header's lengths=48,16"},
      {"#ranks=\n0F0", "the header's ranks= is not a number"},
      {"#ranks=2x\n0F0", "the header's ranks=2x is not a number"},
      {"#ranks=70000\n0F0", "the header's ranks=70000 is not a number"},
      {"#ranks=1\n0F0\n0F1", "the header says 1 ranks, the text has 2 rows"},
      {"0R0 0R0", "follows an R of something else"},
      {"0F0\n\n0F0", "the text has 3"} /* an empty line between is a rank */,
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i)
    refuse(rows[i].text, rows[i].part);
  static asked_order o;
  const lab_request q = {"csv", NULL, NULL, OPIPE_MODE_TRAIN, 1, 0, 1, NULL};
  OPI_ASSERT_ERROR(lab_ask(&q, &o), OPIPE_E_INVALID, &asked_err, "needs a text");
}

/* Bytes of every kind: an answer, never a crash (the sanitizers watch). */
static void test_noise(void) {
  static const char alphabet[] = "0123456789FBIWR@/~'+>(;),\n #SENDRECV_OVERLAP\xff\x01";
  static asked_order o;
  opi_test_random random = {5};
  for (uint32_t round = 0; round < 4000; ++round) {
    char text[64];
    const size_t n = opi_test_next(&random) % (sizeof text - 1);
    for (size_t i = 0; i < n; ++i)
      text[i] = alphabet[opi_test_next(&random) % (sizeof alphabet - 1)];
    text[n] = '\0';
    const opipe_status status = ask(text, OPIPE_MODE_TRAIN, 1, 0, 1, &o);
    OPI_ASSERT(status == OPIPE_OK || (status == OPIPE_E_INVALID && asked_err.message[0] != '\0') ||
               status == OPIPE_E_LIMIT);
    asked_end(&o);
  }
}

OPI_TEST_MAIN("written schedules", OPI_TEST(test_tables), OPI_TEST(test_sharded_tables_are_refused),
              OPI_TEST(test_marks), OPI_TEST(test_instances), OPI_TEST(test_records),
              OPI_TEST(test_text_form), OPI_TEST(test_old_dialect), OPI_TEST(test_forward_form),
              OPI_TEST(test_forward_form_of_what_trains), OPI_TEST(test_idle_ranks),
              OPI_TEST(test_refusals), OPI_TEST(test_noise))
