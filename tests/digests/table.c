/* SPDX-License-Identifier: Apache-2.0 */
/* The files of digests, and the hashes in them; see digests.h. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "loader/base/base.h"
#include "tests/digests/digests.h"

enum { GROUP = 300, ITEM = 200 };

typedef struct line {
  const char *value;
  bool seen;
  uint32_t group;
} line;

struct dg_table {
  const char *name;
  FILE *out; /* NULL: compare */
  char *text;
  opi_map *places; /* "GROUP ITEM" -> lines */
  opi_map *groups; /* -> its number */
  line *lines;
  bool *begun; /* [groups] */
  uint32_t n_lines, n_groups;
  char group[GROUP];
  uint32_t group_index; /* OPIPE_NONE: unknown */
  size_t n_cases;
};

static uint32_t count_lines(const char *text) {
  uint32_t n = 0;
  for (; *text != '\0'; ++text)
    n += *text == '\n';
  return n;
}

static bool add_line(dg_table *t, const char *group, char *at) {
  char key[GROUP + ITEM];
  char *space = strchr(at, ' ');
  if (space == NULL)
    return false;
  *space = '\0';
  (void)snprintf(key, sizeof key, "%s %s", group, at);
  t->lines[t->n_lines] = (line){.value = space + 1, .group = t->n_groups - 1};
  return opi_map_set(t->places, key, t->n_lines++, NULL) == OPIPE_OK;
}

static bool read_lines(dg_table *t) {
  const char *group = "";
  const uint32_t n = count_lines(t->text);
  t->lines = calloc(n + 1, sizeof *t->lines);
  t->begun = calloc(n + 1, sizeof *t->begun);
  bool ok = t->lines != NULL && t->begun != NULL;
  for (char *at = t->text; ok && *at != '\0';) {
    char *end = strchr(at, '\n');
    if (end == NULL)
      return false;
    *end = '\0';
    if (*at == '@') {
      group = at + 1;
      ok = opi_map_set(t->groups, group, t->n_groups++, NULL) == OPIPE_OK;
    } else if (*at != '#') {
      ok = add_line(t, group, at);
    }
    at = end + 1;
  }
  return ok;
}

dg_table *dg_open(const char *name) {
  char path[1024];
  size_t n = 0;
  const char *write = getenv("OPIPE_DIGESTS");
  dg_table *t = calloc(1, sizeof *t);
  if (t == NULL)
    return NULL;
  t->name = name;
  bool ok = false;
  if (write != NULL && write[0] != '\0') {
    (void)snprintf(path, sizeof path, "%s/%s.txt", write, name);
    t->out = fopen(path, "we");
    ok = t->out != NULL;
  } else {
    (void)snprintf(path, sizeof path, "tests/data/digests/%s.txt", name);
    t->text = opi_test_read_file(opi_test_source(path), &n);
    ok = t->text != NULL && opi_map_create(opi_allocator_system(), &t->places, NULL) == OPIPE_OK &&
         opi_map_create(opi_allocator_system(), &t->groups, NULL) == OPIPE_OK && read_lines(t);
  }
  if (ok)
    return t;
  OPI_FAIL("%s cannot be used", path);
  dg_close(t);
  return NULL;
}

void dg_group(dg_table *t, const char *format, ...) {
  va_list args;
  va_start(args, format);
  (void)vsnprintf(t->group, sizeof t->group, format, args);
  va_end(args);
  t->group_index = OPIPE_NONE;
  if (t->out != NULL)
    (void)fprintf(t->out, "@%s\n", t->group);
  else if (opi_map_get(t->groups, t->group, &t->group_index))
    t->begun[t->group_index] = true;
}

void dg_case(dg_table *t, const char *item, const char *value) {
  char key[GROUP + ITEM];
  uint32_t at = 0;
  ++t->n_cases;
  if (t->out != NULL) {
    (void)fprintf(t->out, "%s %s\n", item, value);
    return;
  }
  (void)snprintf(key, sizeof key, "%s %s", t->group, item);
  if (!opi_map_get(t->places, key, &at)) {
    OPI_FAIL("%s: %s is unknown; it has %s", t->name, key, value);
    return;
  }
  t->lines[at].seen = true;
  if (strcmp(t->lines[at].value, value) != 0)
    OPI_FAIL("%s: %s has %s, recorded are %s", t->name, key, value, t->lines[at].value);
}

void dg_close(dg_table *t) {
  const bool all = !opi_test_is_cover();
  for (uint32_t i = 0; all && i < t->n_lines; ++i) {
    if (t->begun[t->lines[i].group] && !t->lines[i].seen) {
      OPI_FAIL("%s: a recorded case of a model that is here did not come: %s", t->name,
               t->lines[i].value);
    }
  }
  if (t->out != NULL && fclose(t->out) != 0)
    OPI_FAIL("%s was not written", t->name);
  (void)printf("\n%s: %zu cases\n", t->name, t->n_cases);
  opi_map_free(t->places);
  opi_map_free(t->groups);
  free(t->lines);
  free(t->begun);
  free(t->text);
  free(t);
}

/* ---- hashes ---- */

void dg_add(dg_hash *h, const void *data, size_t n_bytes) {
  h->value = XXH64(data, n_bytes, h->value);
}

const char *dg_hex(const dg_hash *h, char text[9]) {
  (void)snprintf(text, 9, "%08x", (unsigned)(h->value & 0xffffffffu));
  return text;
}

/* The lists of actions, as a plan file has them. */
static opipe_status hash_order(const opipe_api *api, opipe_plan *plan, dg_hash *out,
                               opipe_error *err) {
  opi_test_text json = {NULL, 0};
  OPI_TRY(api->plan_write(plan, opi_test_take, &json, err));
  const char *at = strstr(json.data, "\"actions\":");
  const char *end = at == NULL ? NULL : strchr(at, ']');
  if (end != NULL)
    dg_add(out, at, (size_t)(end - at));
  free(json.data);
  return end != NULL ? OPIPE_OK
                     : opi_fail(err, OPIPE_E_INTERNAL, "a plan file without \"actions\"");
}

opipe_status dg_plan(const opipe_api *api, opipe_plan *plan, dg_plan_text *out, opipe_error *err) {
  dg_hash order = {0}, bytes = {0};
  opipe_plan_info info = {.struct_size = sizeof info};
  char a[9], b[9];
  OPI_TRY(hash_order(api, plan, &order, err));
  OPI_TRY(api->plan_info(plan, &info, err));
  for (uint32_t r = 0; r < info.n_ranks; ++r) {
    opipe_memory_info m = {.struct_size = sizeof m};
    OPI_TRY(api->plan_memory(plan, r, &m, err));
    const uint64_t all[] = {m.params_bytes,   m.activation_bytes, m.workspace_bytes,
                            m.boundary_bytes, m.gradient_bytes,   m.optimizer_bytes,
                            m.version_bytes,  m.stash_bytes,      m.total_bytes};
    dg_add(&bytes, all, sizeof all);
  }
  (void)snprintf(out->text, sizeof out->text, "%s %s", dg_hex(&order, a), dg_hex(&bytes, b));
  return OPIPE_OK;
}
