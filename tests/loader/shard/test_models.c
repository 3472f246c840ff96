/* SPDX-License-Identifier: Apache-2.0 */
/* Every export of models/modern, divided among 2 and 3 members that run one after the other, gives
 * what the undivided model gives. Whatever stays whole is listed in whole.txt, with the reason; so
 * are the collectives of each model. `OPIPE_WRITE=1` writes the list.
 */
#include <dirent.h>
#include <math.h>

#include "tests/loader/shard/members.h"

typedef struct tally {
  char *text;
  size_t n, room;
} tally;

static void say(tally *t, const char *fmt, ...) OPIPE_PRINTF(2, 3);
static void say(tally *t, const char *fmt, ...) {
  char line[700];
  va_list args;
  va_start(args, fmt);
  const int n = vsnprintf(line, sizeof line, fmt, args);
  va_end(args);
  if (t->n + (size_t)n + 1 > t->room) {
    t->room = (t->room + (size_t)n) * 2 + 4096;
    t->text = realloc(t->text, t->room);
    OPI_ASSERT_FATAL(t->text != NULL);
  }
  memcpy(t->text + t->n, line, (size_t)n + 1);
  t->n += (size_t)n;
}

static double number_at(const opi_value *v, const void *data, uint64_t i) {
  switch (v->dtype) {
    case OPIPE_FLOAT:
      return (double)((const float *)data)[i];
    case OPIPE_FLOAT16:
      return (double)opi_half_to_float(((const uint16_t *)data)[i]);
    case OPIPE_BFLOAT16:
      return (double)opi_bfloat_to_float(((const uint16_t *)data)[i]);
    case OPIPE_INT64:
      return (double)((const int64_t *)data)[i];
    case OPIPE_BOOL:
      return ((const uint8_t *)data)[i];
    default:
      return 0;
  }
}

static double tolerance(uint32_t dtype) {
  return dtype == OPIPE_BFLOAT16 ? 0.06 : dtype == OPIPE_FLOAT16 ? 0.01 : 2e-5;
}

/* Member r's entries of output o of the whole, or all of it. */
static void compare(const char *name, const opi_value *whole, const void *want,
                    const opi_value *own, const void *data, const opi_shard_part *part,
                    opi_arena *arena) {
  const void *from = part == NULL ? want : test_pack(arena, whole, want, part);
  double worst = 0, largest = 1e-3;
  for (uint64_t i = 0; i < opi_elems(whole); ++i)
    largest = fmax(largest, fabs(number_at(whole, want, i)));
  for (uint64_t i = 0; i < opi_elems(own); ++i) {
    const double a = number_at(own, from, i), b = number_at(own, data, i);
    worst = fmax(worst, isnan(a) && isnan(b) ? 0 : fabs(a - b));
    worst = isnan(b) && !isnan(a) ? INFINITY : worst;
  }
  (void)opi_test_check(worst <= tolerance(whole->dtype) * largest, __FILE__, __LINE__, false,
                       "%s: '%s' differs by %g of %g", name, whole->name, worst, largest);
}

static uint32_t n_models, n_attentions; /* with 2 members; with divided attention */
static uint32_t n_followed;             /* graphs whose batch is followed */
static uint32_t n_scattered;            /* in the sequence form, with 2 members */

/* The batch of a member's graph is followed wherever that of the whole graph is. */
static void follow_batch(const char *name, const opi_bound *bound, const opi_shards *shards) {
  opi_arena arena;
  opipe_error err = OPIPE_ERROR_INIT;
  const opi_graph *g = bound->graph;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  opi_carry *in = OPI_ARENA_ARRAY(&arena, opi_carry, g->n_inputs + 1);
  opi_carry *all = OPI_ARENA_ARRAY(&arena, opi_carry, g->n_values + 1);
  for (uint32_t i = 0; i < g->n_inputs; ++i)
    in[i] = (opi_carry){g->values[g->inputs[i]].rank > 0 ? 0 : -1, 0, 1, 1, 0};
  const bool whole = opi_carry_axis(g, NULL, in, all, &err) >= 0;
  for (uint32_t r = 0; whole && r < 2 * shards->width;
       ++r) { /* by rules alone, and from the whole */
    const opi_shard_member *m = &shards->members[r / 2];
    const opi_graph *own = m->bound->graph;
    opi_carry *out = OPI_ARENA_ARRAY(&arena, opi_carry, own->n_values + 1);
    if (r % 2 == 0 && m->n_rows != 0)
      continue;
    const bool ok = (r % 2 == 0 ? opi_carry_axis(own, NULL, in, out, &err)
                                : opi_shard_carry(g, m, all, out, &err)) >= 0;
    (void)opi_test_check(ok, __FILE__, __LINE__, false, "%s: %s", name, err.message);
    for (uint32_t o = 0; ok && o < g->n_outputs; ++o)
      OPI_ASSERT_INT(out[own->outputs[o]].axis, all[g->outputs[o]].axis);
    for (uint32_t i = 0; ok && i < m->n_rows; ++i) { /* samples of all rows */
      const opi_carry *c = &out[m->rows[i].value];
      const opi_carry *w = &all[m->rows[i].whole];
      OPI_ASSERT(c->axis == m->rows[i].axis &&
                 m->rows[i].of ==
                     c->outer * c->inner * opi_carry_length(&g->values[m->rows[i].whole], w));
    }
  }
  n_followed += whole;
  opi_arena_release(&arena);
}

static opipe_status run_group(const test_model *m, const opi_bound *bound, const opi_shards *shards,
                              opi_arena *arena, test_group *group, opipe_error *err) {
  const opi_graph *g = bound->graph;
  *group = (test_group){.evaluator = test_backend_evaluator(), .arena = arena};
  void **inputs = OPI_ARENA_ARRAY(arena, void *, g->n_inputs + 1);
  for (uint32_t i = 0; i < g->n_inputs; ++i) {
    const opi_value *in = test_input_of(m, g->values[g->inputs[i]].name);
    inputs[i] = in != NULL ? (void *)(uintptr_t)in->data
                           : test_fill(arena, &g->values[g->inputs[i]], i + 1);
  }
  test_group_open(group, bound, shards, inputs);
  return test_group_run(group, err);
}

/* Known numbers of a member are those of the whole graph, or parts of them, under their names:
 * graphs of other numbers of rows share what is known. */
static void check_known(const char *name, const opi_bound *bound, const opi_shard_member *m) {
  const opi_graph *g = m->bound->graph;
  for (uint32_t v = 0; v < g->n_values; ++v) {
    const opi_value *x = &g->values[v];
    bool same = x->data == NULL || !opi_dtype_is_float(x->dtype) || opi_elems(x) < 2;
    for (uint32_t i = 0; !same && i < bound->graph->n_values; ++i)
      same = strcmp(bound->graph->values[i].name, x->name) == 0;
    (void)opi_test_check(same, __FILE__, __LINE__, false, "%s: '%s' is folded", name, x->name);
  }
}

/* The sequence form has the plain form's bits. */
static void run_rows(const char *name, const test_model *m, const opi_bound *bound,
                     const test_group *plain, tally *t) {
  const opi_shard_wish wish = {.width = plain->width,
                               .flags = OPI_SHARD_SEQUENCE,
                               .evaluator = plain->evaluator,
                               .allocator = opi_allocator_system()};
  opipe_error err = OPIPE_ERROR_INIT;
  opi_shards *shards = NULL;
  test_group group;
  const bool ok = opi_shard(bound, &wish, &shards, &err) >= 0 &&
                  run_group(m, bound, shards, plain->arena, &group, &err) >= 0;
  (void)opi_test_check(ok, __FILE__, __LINE__, false, "%s in rows: %s", name, err.message);
  for (uint32_t r = 0; ok && r < plain->width; ++r) {
    const test_member *a = &plain->members[r], *b = &group.members[r];
    check_known(name, bound, &shards->members[r]);
    for (uint32_t o = 0; o < a->graph->n_outputs; ++o) {
      const uint32_t x = a->graph->outputs[o], y = b->graph->outputs[o];
      const uint64_t n = a->graph->values[x].n_bytes;
      (void)opi_test_check(
          n == b->graph->values[y].n_bytes && memcmp(a->data[x], b->data[y], n) == 0, __FILE__,
          __LINE__, false, "%s: rows: '%s' has other bits", name, a->graph->values[x].name);
    }
  }
  if (ok) {
    follow_batch(name, bound, shards);
    say(t, "  rows: %u scatters, %u gathers, %u sums\n", group.n_scatters, group.n_gathers,
        group.n_sums);
    n_scattered += plain->width == 2 && group.n_scatters != 0;
  }
  for (uint32_t i = 0; ok && i < shards->n_mixed; ++i)
    say(t, "  gathered for %s: %s\n", shards->mixed[i].node, shards->mixed[i].why);
  opi_shards_free(shards);
}

static void run_members(const char *name, const test_model *m, const opi_bound *bound,
                        const opi_shards *shards, void *const *want, tally *t) {
  const opi_graph *g = bound->graph;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_arena arena;
  test_group group;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  const opipe_status status = run_group(m, bound, shards, &arena, &group, &err);
  (void)opi_test_check(status >= 0, __FILE__, __LINE__, false, "%s: %s", name, err.message);
  for (uint32_t r = 0; status >= 0 && r < shards->width; ++r) {
    const opi_shard_member *own = &shards->members[r];
    for (uint32_t o = 0; o < g->n_outputs; ++o) {
      const uint32_t v = own->bound->graph->outputs[o];
      compare(name, &g->values[g->outputs[o]], want[o], &own->bound->graph->values[v],
              group.members[r].data[v], test_part_of(own->outputs, own->n_outputs, g->outputs[o]),
              &arena);
    }
  }
  n_models += shards->width == 2;
  n_attentions += shards->width == 2 && shards->n_attention != 0;
  say(t, "%s width %u: %u divided, %u attention, %u sums, %u gathers", name, shards->width,
      shards->n_divided, shards->n_attention, group.n_sums, group.n_gathers);
  if (shards->members[0].n_outputs != 0)
    say(t, ", %u outputs in parts", shards->members[0].n_outputs);
  say(t, "\n");
  for (uint32_t i = 0; i < shards->n_reasons; ++i)
    say(t, "  whole: %s: %s\n", shards->reasons[i].node, shards->reasons[i].why);
  if (status >= 0)
    run_rows(name, m, bound, &group, t);
  opi_arena_release(&arena);
}

static void check_model(const char *folder, const char *name, tally *t) {
  char path[1024];
  test_model m;
  opi_bound *bound = NULL;
  opi_arena arena;
  void *want[TEST_MAX_TENSORS];
  opipe_error err = OPIPE_ERROR_INIT;
  const opi_evaluator *evaluator = test_backend_evaluator();
  (void)snprintf(path, sizeof path, "%.900s/model.onnx", folder);
  opi_arena_init(&arena, opi_allocator_system(), 0);
  const bool loaded = test_load(&m, path, &err);
  (void)test_read_set(&m, folder, 0); /* without one, inputs are made up */
  if (!loaded || test_bind(&m, 0, evaluator, &bound, &err) < 0 ||
      test_run(&m, bound, evaluator, &arena, want, &err) < 0) {
    OPI_FAIL("%s: %s", name, err.message);
    return;
  }
  for (uint32_t width = 2; width <= 3; ++width) {
    const opi_shard_wish wish = {
        .width = width, .evaluator = evaluator, .allocator = opi_allocator_system()};
    opi_shards *shards = NULL;
    const opipe_status status = opi_shard(bound, &wish, &shards, &err);
    (void)opi_test_check(status >= 0, __FILE__, __LINE__, false, "%s: %s", name, err.message);
    if (status >= 0)
      run_members(name, &m, bound, shards, want, t);
    if (status >= 0)
      follow_batch(name, bound, shards);
    opi_shards_free(shards);
  }
  opi_bound_free(bound);
  test_unload(&m);
  opi_arena_release(&arena);
}

static int by_name(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names of the folders in `path`; [*out_n] in `arena`. */
static char **folders_of(opi_arena *arena, const char *path, uint32_t *out_n) {
  enum { MOST = 256 };
  char **names = OPI_ARENA_ARRAY(arena, char *, MOST);
  DIR *dir = opendir(path);
  *out_n = 0;
  for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL && *out_n < MOST;) {
    if (strchr(e->d_name, '.') == NULL)
      names[(*out_n)++] = opi_arena_strdup(arena, e->d_name);
  }
  if (dir != NULL)
    (void)closedir(dir);
  qsort(names, *out_n, sizeof *names, by_name);
  return names;
}

/* The list as committed; the first line that differs is named. */
static void compare_list(const char *text) {
  enum { MOST = 1 << 20 };
  const char *path = opi_test_source("tests/loader/shard/whole.txt");
  const bool writes = getenv("OPIPE_WRITE") != NULL;
  static char kept[MOST];
  FILE *file = fopen(path, writes ? "wb" : "rb");
  OPI_ASSERT_FATAL(file != NULL);
  if (writes) {
    OPI_ASSERT(fwrite(text, 1, strlen(text), file) == strlen(text));
  } else {
    kept[fread(kept, 1, MOST - 1, file)] = '\0';
    size_t at = 0, line = 0;
    while (text[at] != '\0' && text[at] == kept[at]) {
      line = text[at] == '\n' ? at + 1 : line;
      ++at;
    }
    (void)opi_test_check(text[at] == kept[at], __FILE__, __LINE__, false,
                         "whole.txt differs: '%.*s', not '%.*s'", (int)strcspn(text + line, "\n"),
                         text + line, (int)strcspn(kept + line, "\n"), kept + line);
  }
  OPI_ASSERT(fclose(file) == 0);
}

static void test_every_export(void) {
  const char *root = opi_test_shared("models/modern");
  const char *only = getenv("OPIPE_ONLY");
  opi_arena arena;
  tally t = {0};
  uint32_t n_families = 0;
  if (root == NULL) {
    OPI_SKIP("no models/modern");
    return;
  }
  opi_arena_init(&arena, opi_allocator_system(), 0);
  const char *kept = opi_arena_strdup(&arena, root);
  char **families = folders_of(&arena, kept, &n_families);
  for (uint32_t f = 0; f < n_families; ++f) {
    uint32_t n = 0;
    char path[900], name[256];
    (void)snprintf(path, sizeof path, "%.600s/%.100s", kept, families[f]);
    char **variants = folders_of(&arena, path, &n);
    for (uint32_t i = 0; i < n; ++i) {
      (void)snprintf(path, sizeof path, "%.600s/%.100s/%.100s", kept, families[f], variants[i]);
      (void)snprintf(name, sizeof name, "%.100s/%.100s", families[f], variants[i]);
      if (only == NULL || strstr(name, only) != NULL)
        check_model(path, name, &t);
    }
  }
  OPI_ASSERT(only != NULL || n_followed > 40);
  OPI_ASSERT(only != NULL || n_scattered == n_models);
  OPI_ASSERT(only != NULL || n_attentions == n_models); /* attention is divided in all of them */
  if (only != NULL)
    printf("%s", t.text == NULL ? "" : t.text);
  else
    compare_list(t.text == NULL ? "" : t.text);
  free(t.text);
  opi_arena_release(&arena);
}

/* Codes of 4 bits in odd rows, inputs that are cut where values are made from them, indices that
 * are the same for all heads. */
static void test_odd_files(void) {
  static const char *const files[] = {"small/qdq4", "odd/recurrence", "real/deberta_v2-legacy",
                                      "gpt_past"};
  for (size_t i = 0; i < OPI_COUNT(files); ++i) {
    char folder[256], name[256];
    tally t = {0};
    (void)snprintf(folder, sizeof folder, "tests/data/%s", files[i]);
    (void)snprintf(name, sizeof name, "%s", files[i]);
    const char *path = opi_test_source(folder);
    char kept[900];
    (void)snprintf(kept, sizeof kept, "%.800s", path);
    check_model(kept, name, &t);
    OPI_ASSERT(t.text != NULL && strstr(t.text, ": 0 divided") == NULL);
    free(t.text);
  }
}

OPI_TEST_MAIN("sharded models", OPI_TEST(test_every_export), OPI_TEST(test_odd_files))
