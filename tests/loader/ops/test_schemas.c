/* SPDX-License-Identifier: Apache-2.0 */
/* Every row of loader/ops against the schemas of ONNX and of ONNX Runtime (schemas/): each version
 * that the row takes has only attributes that the row lists, of the same type and default, in the
 * same versions; the row's newest schema is the table's; each element type is one that the library
 * knows or refuses everywhere.
 */
#include "loader/ops/registry.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SCHEMAS = 1024, MOST_ATTRS = 32 };

typedef struct schema_attr {
  char *name, *kind, *preset; /* preset NULL: none */
} schema_attr;

typedef struct schema {
  char *domain, *name; /* domain "" for ai.onnx */
  uint32_t version, n_attrs;
  uint32_t max_in, max_out; /* UINT32_MAX: any number */
  bool deprecated;
  uint64_t types; /* bit per element type of the format */
  schema_attr attrs[MOST_ATTRS];
} schema;

typedef struct schemas {
  char *text; /* the tables' bytes, cut into words in place */
  schema list[MOST_SCHEMAS];
  uint32_t n;
} schemas;

static schemas tables[2]; /* ONNX's, ONNX Runtime's */

/* -- reading the tables ------------------------------------------------------------------------ */

/* "2-*" -> the number behind the dash. */
static uint32_t most_of(const char *word) {
  const char *dash = strchr(word, '-');
  return dash == NULL || dash[1] == '*' ? UINT32_MAX : (uint32_t)strtoul(dash + 1, NULL, 10);
}

/* "to:INT!", "saturate:INT=1" */
static schema_attr read_attr(char *word) {
  schema_attr a = {.name = word};
  char *at = strchr(word, ':');
  if (at == NULL)
    return a;
  *at = '\0';
  a.kind = at + 1;
  at = strpbrk(a.kind, "!=");
  if (at != NULL && *at == '=')
    a.preset = at + 1;
  if (at != NULL)
    *at = '\0';
  return a;
}

static bool read_schema(char *line, schema *out) {
  char *rest = NULL, *types = strchr(line, '|');
  char *words[5];
  *out = (schema){0};
  if (types != NULL)
    *types++ = '\0';
  for (uint32_t w = 0; w < 5; ++w) {
    words[w] = strtok_r(w == 0 ? line : NULL, " ", &rest);
    if (words[w] == NULL)
      return false;
  }
  out->domain = strcmp(words[0], "ai.onnx") == 0 ? words[0] + strlen(words[0]) : words[0];
  out->name = words[1];
  out->version = (uint32_t)strtoul(words[2], NULL, 10);
  out->max_in = most_of(words[3]);
  out->max_out = most_of(words[4]);
  for (char *word; (word = strtok_r(NULL, " ", &rest)) != NULL;) {
    if (strcmp(word, "deprecated") == 0)
      out->deprecated = true;
    else if (out->n_attrs < MOST_ATTRS)
      out->attrs[out->n_attrs++] = read_attr(word);
    else
      return false;
  }
  for (char *end = types; types != NULL && *types != '\0'; types = end) {
    const unsigned long type = strtoul(types, &end, 10);
    if (end == types)
      break;
    out->types |= UINT64_C(1) << (type & 63);
  }
  return true;
}

static bool read_table(const char *name, schemas *out) {
  char path[1024];
  (void)snprintf(path, sizeof(path), "tests/loader/ops/schemas/%s", name);
  FILE *file = fopen(opi_test_source(path), "rb");
  if (file == NULL)
    return false;
  const size_t room = (size_t)1 << 20;
  out->text = calloc(1, room + 1);
  const size_t n = out->text != NULL ? fread(out->text, 1, room, file) : 0;
  (void)fclose(file);
  char *rest = NULL;
  bool whole = n > 0 && n < room;
  for (char *line = n > 0 ? strtok_r(out->text, "\n", &rest) : NULL; line != NULL && whole;
       line = strtok_r(NULL, "\n", &rest)) {
    if (line[0] != '#')
      whole = out->n < MOST_SCHEMAS && read_schema(line, &out->list[out->n++]);
  }
  return whole;
}

/* -- comparing --------------------------------------------------------------------------------- */

typedef struct findings {
  uint32_t n;
  bool quiet; /* none is printed */
} findings;

static void found(findings *f, const opi_op *op, const schema *s, const char *what,
                  const char *which) {
  ++f->n;
  if (!f->quiet) {
    printf("\n  %s %s %u: %s %s", op->domain[0] == '\0' ? "ai.onnx" : op->domain, op->name,
           s != NULL ? s->version : op->last, what, which);
  }
}

static bool same_preset(const opi_attr_rule *rule, const schema_attr *a) {
  if (rule->has_preset && (rule->kind == OPIPE_ATTR_INTS || rule->kind == OPIPE_ATTR_FLOATS))
    return a->preset == NULL; /* lists' defaults are in the text: one number along each axis */
  if (rule->has_preset && a->preset == NULL)
    return rule->honours == OPI_HONOURS_DEFAULT;
  if (rule->has_preset)
    return (float)strtod(a->preset, NULL) == (float)rule->preset;
  const size_t n = rule->texts != NULL && a->preset != NULL ? strlen(a->preset) : 0;
  return n == 0 || (strncmp(rule->texts, a->preset, n) == 0 &&
                    (rule->texts[n] == ' ' || rule->texts[n] == '\0'));
}

/* The attributes of one schema version, which the row takes from opset `from` on. Old schemas'
 * defaults may differ. */
static void compare_attrs(findings *f, const opi_op *op, const schema *s, uint32_t from,
                          bool newest) {
  for (uint32_t i = 0; i < s->n_attrs; ++i) {
    const schema_attr *a = &s->attrs[i];
    const char *kind = strcmp(a->kind, "SPARSE_TENSOR") == 0 ? "TENSOR" : a->kind;
    const opi_attr_rule *rule = NULL;
    for (const opi_attr_rule *r = op->attrs; r->name != NULL && rule == NULL; ++r) {
      if (strcmp(r->name, a->name) == 0 && strcmp(opi_attr_kind_name(r->kind), kind) == 0 &&
          opi_attr_in_version(r, from))
        rule = r;
    }
    if (rule == NULL)
      found(f, op, s, "the row does not list attribute", a->name);
    else if (newest && !same_preset(rule, a))
      found(f, op, s, "another default of attribute", a->name);
  }
  for (const opi_attr_rule *r = op->attrs; r->name != NULL; ++r) {
    bool listed = r->honours == OPI_HONOURS_NOTHING || !opi_attr_in_version(r, from);
    for (uint32_t i = 0; i < s->n_attrs && !listed; ++i)
      listed = strcmp(s->attrs[i].name, r->name) == 0;
    if (!listed)
      found(f, op, s, "the schema has no attribute", r->name);
  }
}

static void compare_types(findings *f, const opi_op *op, const schema *s) {
  /* Refused wherever they occur: string, complex64, complex128, float6e2m3, float6e3m2. */
  const uint64_t refused = 1u << 8 | 1u << 14 | 1u << 15 | 1u << 27 | 1u << 28;
  for (uint32_t t = 1; t < 64; ++t) {
    char number[16];
    if ((s->types >> t & 1) == 0 || (refused >> t & 1) != 0 ||
        (t < OPIPE_N_DTYPES && opi_dtype_bits(t) != 0))
      continue;
    (void)snprintf(number, sizeof(number), "%u", t);
    found(f, op, s, "nothing is known of element type", number);
  }
}

/* A row against all schemas of its operator in `list`, sorted by version. */
static void compare_row(findings *f, const opi_op *op, const schema *list, uint32_t n) {
  const schema *newest = NULL;
  uint32_t most_in = 0;
  if (op->attrs == NULL) {
    found(f, op, NULL, "the row lists no attributes:", "OPI_ATTRS or OPI_NO_ATTRS");
    return;
  }
  for (uint32_t i = 0; i < n; ++i) {
    const schema *s = &list[i];
    if (strcmp(s->name, op->name) != 0 || strcmp(s->domain, op->domain) != 0 || s->deprecated ||
        s->version > op->last)
      continue;
    newest = s;
    const bool more = i + 1 < n && strcmp(s[1].name, op->name) == 0 && !s[1].deprecated &&
                      s[1].version <= op->last;
    const schema *next = more ? s + 1 : NULL;
    if (next != NULL && next->version <= op->first)
      continue; /* the row begins behind it */
    compare_attrs(f, op, s, s->version > op->first ? s->version : op->first, next == NULL);
    compare_types(f, op, s);
    most_in = s->max_in > most_in ? s->max_in : most_in;
  }
  if (newest == NULL)
    found(f, op, NULL, "no schema has this", "operator");
  else if (newest->version != op->schema)
    found(f, op, newest, "the row was read at another", "version");
  else if (op->max_in != 255 && op->max_in > most_in)
    found(f, op, newest, "the row takes more inputs than", "its schemas");
}

/* Opsets between op->last and the newest known one that no row takes: none but what was removed. */
static void compare_last(findings *f, const opi_op *op, const schema *list, uint32_t n) {
  const uint32_t newest = opi_newest_opset(op->domain);
  if (op->last == newest)
    return;
  for (uint32_t i = 0; i < n; ++i) {
    if (strcmp(list[i].name, op->name) == 0 && list[i].deprecated &&
        strcmp(list[i].domain, op->domain) == 0 && list[i].version == (uint32_t)op->last + 1)
      return;
  }
  found(f, op, NULL, "the row ends before the newest opset of its", "domain");
}

static const schemas *tables_of(const opi_op *op) {
  const bool own = strcmp(op->name, "SimplifiedLayerNormalization") == 0;
  return &tables[op->domain[0] == '\0' && !own ? 0 : 1];
}

static void test_rows(void) {
  uint32_t n_rows = 0;
  findings f = {0};
  for (uint32_t i = 0; opi_op_at(i) != NULL; ++i) {
    const opi_op *op = opi_op_at(i);
    if (strcmp(op->domain, "opipe") == 0)
      continue; /* of bound graphs only */
    const schemas *t = tables_of(op);
    compare_row(&f, op, t->list, t->n);
    compare_last(&f, op, t->list, t->n);
    ++n_rows;
  }
  OPI_ASSERT_INT(f.n, 0);
  OPI_ASSERT(n_rows > 150);
}

/* -- the comparison itself --------------------------------------------------------------------- */

static uint32_t findings_with(const char *op_name, const char *domain, const schema *changed) {
  findings f = {.quiet = true};
  const opi_op *op = opi_op_find(domain, op_name);
  OPI_ASSERT_FATAL(op != NULL);
  compare_row(&f, op, changed, 1);
  return f.n;
}

static const schema *newest_schema(const char *domain, const char *name) {
  const opi_op *op = opi_op_find(domain, name);
  const schemas *t = op != NULL ? tables_of(op) : NULL;
  const schema *newest = NULL;
  for (uint32_t i = 0; t != NULL && i < t->n; ++i) {
    if (strcmp(t->list[i].name, name) == 0 && strcmp(t->list[i].domain, domain) == 0)
      newest = &t->list[i];
  }
  OPI_ASSERT_FATAL(newest != NULL);
  return newest;
}

/* An attribute, type, default or version that is added to a copy of a schema is found. */
static void test_changes_are_found(void) {
  static const char *const of[][2] = {{"", "Attention"},
                                      {"", "MatMul"},
                                      {"", "Softmax"},
                                      {"com.microsoft", "BiasGelu"},
                                      {"com.microsoft", "GroupQueryAttention"}};
  for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); ++i) {
    const schema as_is = *newest_schema(of[i][0], of[i][1]);
    char name[] = "added", kind[] = "INT", other[] = "STRING", preset[] = "77";
    OPI_ASSERT_INT(findings_with(of[i][1], of[i][0], &as_is), 0);
    schema changed = as_is;
    changed.attrs[changed.n_attrs++] = (schema_attr){name, kind, NULL};
    OPI_ASSERT_INT(findings_with(of[i][1], of[i][0], &changed), 1);
    changed = as_is;
    changed.types |= UINT64_C(1) << 40;
    OPI_ASSERT_INT(findings_with(of[i][1], of[i][0], &changed), 1);
    changed = as_is;
    changed.version = as_is.version + 1;
    OPI_ASSERT(findings_with(of[i][1], of[i][0], &changed) > 0);
    if (as_is.n_attrs == 0)
      continue;
    changed = as_is;
    changed.attrs[0].kind = other;
    OPI_ASSERT(findings_with(of[i][1], of[i][0], &changed) > 0);
    changed = as_is;
    changed.n_attrs -= 1; /* a row's attribute that the schema lacks */
    OPI_ASSERT(findings_with(of[i][1], of[i][0], &changed) > 0 || i == 4);
    changed = as_is;
    changed.attrs[0].preset = preset;
    const bool listed = opi_op_find(of[i][0], of[i][1])->attrs[0].has_preset != 0;
    OPI_ASSERT(findings_with(of[i][1], of[i][0], &changed) > 0 || !listed);
  }
}

static void test_row_without_attributes(void) {
  findings f = {.quiet = true};
  opi_op bare = *opi_op_find("", "MatMul");
  bare.attrs = NULL;
  compare_row(&f, &bare, tables[0].list, tables[0].n);
  OPI_ASSERT_INT(f.n, 1);
  bare = *opi_op_find("", "MatMul");
  bare.last = 27;
  compare_last(&f, &bare, tables[0].list, tables[0].n);
  OPI_ASSERT_INT(f.n, 2);
}

static void test_tables(void) {
  OPI_ASSERT_FATAL(read_table("onnx.txt", &tables[0]));
  OPI_ASSERT_FATAL(read_table("onnxruntime.txt", &tables[1]));
  OPI_ASSERT(tables[0].n > 500);
  OPI_ASSERT(tables[1].n > 100);
}

OPI_TEST_MAIN("schemas", OPI_TEST(test_tables), OPI_TEST(test_rows),
              OPI_TEST(test_changes_are_found), OPI_TEST(test_row_without_attributes))
