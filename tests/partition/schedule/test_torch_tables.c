/* SPDX-License-Identifier: Apache-2.0 */
/* Published schedule tables: every one reads, prints the same, is proven under tag-matched
 * delivery; the passes make the published lowered forms; the lowering vectors case by case.
 */
#include <glob.h>
#include <jansson.h>

#include "tests/partition/schedule/orders.h"

static char *read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL)
    return NULL;
  char *text = calloc(1, 1 << 20);
  const size_t n = fread(text, 1, (1 << 20) - 1, file);
  text[n] = '\0';
  (void)fclose(file);
  return text;
}

/* Without the newline at the end, which some files lack. */
static void assert_same(const char *found, const char *wanted, const char *what) {
  size_t a = strlen(found), b = strlen(wanted);
  a -= a > 0 && found[a - 1] == '\n';
  b -= b > 0 && wanted[b - 1] == '\n';
  size_t at = 0;
  while (at < a && at < b && found[at] == wanted[at])
    ++at;
  if (a != b || at != a)
    OPI_FAIL("%s differs at %zu: '%.60s', wanted '%.60s'", what, at, found + at, wanted + at);
}

static void each_table(const char *pattern, void (*check)(const char *path, const char *text)) {
  glob_t found;
  OPI_ASSERT_FATAL(glob(pattern, 0, NULL, &found) == 0);
  for (size_t i = 0; i < found.gl_pathc; ++i) {
    char *text = read_file(found.gl_pathv[i]);
    OPI_ASSERT_FATAL(text != NULL);
    check(found.gl_pathv[i], text);
    free(text);
  }
  globfree(&found);
}

static void check_roundtrip(const char *path, const char *text) {
  opi_order *order = order_read(text, OPI_DIALECT_TORCH);
  char *again = order_text(order, OPI_ORDER_CSV, OPI_DIALECT_TORCH);
  assert_same(again, text, path);
  free(again);
  for (uint32_t format = OPI_ORDER_TEXT; format <= OPI_ORDER_JSON; ++format) {
    char *printed = order_text(order, format, OPI_DIALECT_OPIPE);
    opi_order *back = order_read(printed, OPI_DIALECT_OPIPE);
    char *table = order_text(back, OPI_ORDER_CSV, OPI_DIALECT_TORCH);
    assert_same(table, text, path);
    free(table);
    free(printed);
    opi_order_free(back);
  }
  opi_order_free(order);
}

static void check_proof(const char *path, const char *text) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_order *order = order_read(text, OPI_DIALECT_TORCH);
  if (!opi_order_is_lowered(order)) {
    opi_order *lowered = order_lower(order, 0);
    opi_order_free(order);
    order = lowered;
  }
  for (uint32_t rule = 0; rule < OPI_RULES; ++rule) {
    if (order_prove(order, rule, &err) < 0)
      OPI_FAIL("%s, rule %s: %s", path, opi_rule_name(rule), err.message);
  }
  opi_order_free(order);
}

static void check_old_dialect(const char *path, const char *text) {
  opi_order *order = order_read(text, OPI_DIALECT_TORCH);
  char *old = order_text(order, OPI_ORDER_CSV, OPI_DIALECT_TORCH_OLD);
  opi_order *back = order_read(old, OPI_DIALECT_TORCH_OLD);
  char *again = order_text(back, OPI_ORDER_CSV, OPI_DIALECT_TORCH);
  assert_same(again, text, path);
  free(again);
  free(old);
  opi_order_free(back);
  opi_order_free(order);
}

/* RESHARDs side by side in one order: they are a set. */
static void sort_reshards(opi_do_list *list) {
  for (uint32_t pass = 0; pass < 8; ++pass) {
    for (uint32_t i = 0; i + 1 < list->n_items; ++i) {
      opi_do *a = &list->items[i];
      if (a->kind == OPI_DO_RESHARD && a[1].kind == OPI_DO_RESHARD && a->stage > a[1].stage) {
        const uint32_t stage = a->stage;
        a->stage = a[1].stage;
        a[1].stage = stage;
      }
    }
  }
}

static char *sibling(const char *path, const char *ending) {
  char name[512];
  const char *tail = strstr(path, "_compute.csv");
  (void)snprintf(name, sizeof name, "%.*s_%s.csv", (int)(tail - path), path, ending);
  return read_file(name);
}

static void check_lowering(const char *path, const char *text) {
  const opipe_allocator *allocator = opi_allocator_system();
  opipe_error err = OPIPE_ERROR_INIT;
  opi_order *order = order_read(text, OPI_DIALECT_TORCH);
  opi_do_list *list = NULL, *gathered = NULL, *reduced = NULL;
  OPI_ASSERT_OK_FATAL(opi_pass_messages(&order->problem, order->list, allocator, &list, &err),
                      &err);
  opi_order *sent = order_with(order, list);
  char *found = order_text(sent, OPI_ORDER_CSV, OPI_DIALECT_TORCH);
  char *wanted = sibling(path, "comms");
  assert_same(found, wanted, path);
  free(found);
  free(wanted);
  OPI_ASSERT_OK_FATAL(opi_pass_unshard(order->list, 3, allocator, &gathered, &err), &err);
  OPI_ASSERT_OK_FATAL(opi_pass_reduce(&order->problem, gathered, true, allocator, &reduced, &err),
                      &err);
  OPI_ASSERT_OK_FATAL(opi_pass_messages(&order->problem, reduced, allocator, &list, &err), &err);
  opi_order *full = order_with(order, list);
  wanted = sibling(path, "full");
  opi_order *published = order_read(wanted, OPI_DIALECT_TORCH);
  sort_reshards(full->list);
  sort_reshards(published->list);
  found = order_text(full, OPI_ORDER_CSV, OPI_DIALECT_TORCH);
  char *sorted = order_text(published, OPI_ORDER_CSV, OPI_DIALECT_TORCH);
  assert_same(found, sorted, path);
  free(found);
  free(sorted);
  free(wanted);
  opi_order_free(published);
  opi_order_free(full);
  opi_do_list_free(reduced);
  opi_do_list_free(gathered);
  opi_order_free(sent);
  opi_order_free(order);
}

static void test_tables_read_and_print(void) {
  char pattern[512];
  const char *folder = opi_test_shared("oracles/schedules");
  if (folder == NULL)
    return;
  const char *const below[] = {"torch/*.csv", "torch/generated/*.csv", "torchtitan/*.csv"};
  for (size_t i = 0; i < 3; ++i) {
    (void)snprintf(pattern, sizeof pattern, "%s/%s", folder, below[i]);
    each_table(pattern, check_roundtrip);
    each_table(pattern, check_old_dialect);
    each_table(pattern, check_proof);
  }
}

static void test_tables_lower_as_published(void) {
  char pattern[512];
  const char *folder = opi_test_shared("oracles/schedules/torch/generated");
  if (folder == NULL)
    return;
  (void)snprintf(pattern, sizeof pattern, "%s/*_compute.csv", folder);
  each_table(pattern, check_lowering);
}

/* ---- vectors ---- */

/* [["0F0", ...], ...] as CSV; a flat list is one rank. */
static char *table_of(const json_t *ranks) {
  opi_text text;
  const bool flat = json_is_string(json_array_get(ranks, 0));
  const size_t n = flat ? 1 : json_array_size(ranks);
  opi_text_init(&text, opi_allocator_system());
  for (size_t r = 0; r < n; ++r) {
    const json_t *row = flat ? ranks : json_array_get(ranks, r);
    for (size_t c = 0; c < json_array_size(row); ++c)
      opi_text_printf(&text, "%s%s", c == 0 ? "" : ",", json_string_value(json_array_get(row, c)));
    opi_text_puts(&text, "\n");
  }
  char *copy = strdup(text.data);
  opi_text_release(&text);
  return copy;
}

static json_t *vectors(void) {
  const char *path = opi_test_shared("oracles/schedules/torch/lowering_vectors.json");
  return path == NULL ? NULL : json_load_file(path, 0, NULL);
}

typedef opipe_status (*pass_fn)(const opi_order *order, const json_t *vector, opi_do_list **out,
                                opipe_error *err);

static void check_vectors(const char *name, const char *input, const char *output, pass_fn pass) {
  json_t *root = vectors();
  if (root == NULL)
    return;
  const json_t *list = json_object_get(root, name);
  OPI_ASSERT(json_array_size(list) > 0);
  for (size_t i = 0; i < json_array_size(list); ++i) {
    const json_t *vector = json_array_get(list, i);
    opipe_error err = OPIPE_ERROR_INIT;
    opi_do_list *result = NULL;
    char *before = table_of(json_object_get(vector, input));
    char *wanted = table_of(json_object_get(vector, output));
    opi_order *order = order_read(before, OPI_DIALECT_TORCH);
    OPI_ASSERT_OK_FATAL(pass(order, vector, &result, &err), &err);
    opi_order *after = order_with(order, result);
    char *found = order_text(after, OPI_ORDER_CSV, OPI_DIALECT_TORCH);
    assert_same(found, wanted, name);
    free(found);
    free(wanted);
    free(before);
    opi_order_free(after);
    opi_order_free(order);
  }
  json_decref(root);
}

static opipe_status do_unshard(const opi_order *order, const json_t *vector, opi_do_list **out,
                               opipe_error *err) {
  (void)vector;
  return opi_pass_unshard(order->list, 3, opi_allocator_system(), out, err);
}
static opipe_status do_reduce(const opi_order *order, const json_t *vector, opi_do_list **out,
                              opipe_error *err) {
  (void)vector;
  return opi_pass_reduce(&order->problem, order->list, true, opi_allocator_system(), out, err);
}
static opipe_status do_merge(const opi_order *order, const json_t *vector, opi_do_list **out,
                             opipe_error *err) {
  (void)vector;
  return opi_pass_merge(order->list, opi_allocator_system(), out, err);
}
/* One vector has a whole backward and its W besides; only the messages are what it tests. */
static opipe_status do_messages(const opi_order *order, const json_t *vector, opi_do_list **out,
                                opipe_error *err) {
  (void)vector;
  return opi_pass_messages(&order->problem, order->list, opi_allocator_system(), out, err);
}
static opipe_status do_defer(const opi_order *order, const json_t *vector, opi_do_list **out,
                             opipe_error *err) {
  (void)vector;
  return opi_pass_defer(&order->problem, order->list, 1, opi_allocator_system(), out, err);
}

static void test_vectors(void) {
  check_vectors("add_unshard_reshard", "compute", "out", do_unshard);
  check_vectors("add_reduce_grad", "compute", "out", do_reduce);
  check_vectors("merge_bw", "compute", "out", do_merge);
  check_vectors("add_send_recv", "compute", "out", do_messages);
  check_vectors("defer_recv_ops", "in", "out", do_defer);
}

static void test_published_lowering_of_a_merged_table(void) {
  const char *folder = opi_test_shared("oracles/schedules/torch");
  if (folder == NULL)
    return;
  char path[512];
  opipe_error err = OPIPE_ERROR_INIT;
  opi_do_list *merged = NULL, *sent = NULL;
  (void)snprintf(path, sizeof path, "%s/zb1p_2rank_2stagep_compute.csv", folder);
  char *text = read_file(path);
  char *wanted = sibling(path, "comms");
  opi_order *order = order_read(text, OPI_DIALECT_TORCH);
  OPI_ASSERT_OK_FATAL(opi_pass_merge(order->list, opi_allocator_system(), &merged, &err), &err);
  OPI_ASSERT_OK_FATAL(
      opi_pass_messages(&order->problem, merged, opi_allocator_system(), &sent, &err), &err);
  opi_order *lowered = order_with(order, sent);
  char *found = order_text(lowered, OPI_ORDER_CSV, OPI_DIALECT_TORCH);
  assert_same(found, wanted, path);
  free(found);
  free(wanted);
  free(text);
  opi_do_list_free(merged);
  opi_order_free(lowered);
  opi_order_free(order);
}

OPI_TEST_MAIN("published schedule tables", OPI_TEST(test_tables_read_and_print),
              OPI_TEST(test_tables_lower_as_published), OPI_TEST(test_vectors),
              OPI_TEST(test_published_lowering_of_a_merged_table))
