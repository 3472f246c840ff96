/* SPDX-License-Identifier: Apache-2.0 */
/* Where initializers come from, as the file's nodes tell it.
 *
 * Exporters rename what they transposed or cast ("val_77", "onnx::MatMul_1039"), but the nodes that
 * read it still say in which module they stand: torch.onnx writes metadata of each node
 * ("pkg.torch.onnx.name_scopes", and in "pkg.torch.onnx.fx_node" its arguments, parameters as
 * %p_... and buffers as %b_..., with "_" for every dot), TorchScript's exporter names the node by
 * the path ("/layers.0/q_proj/MatMul"). The last part of the name is the argument's, or what the
 * place in the operator implies: "weight", "bias".
 */
#include <string.h>

#include "loader/passes/keep.h"
#include "loader/passes/private.h"

enum { MOST_NAME = 512 };

/* A stretch of text in the model's bytes. */
typedef struct stretch {
  const char *text;
  uint64_t n;
} stretch;

/* The metadata of one node. */
typedef struct node_text {
  stretch scopes, arguments;
} node_text;

typedef struct finder {
  const opi_graph *file;
  opi_arena *scratch, *arena; /* arena: of what stays */
  opi_map *known;             /* names of initializers */
  opi_map *stems;             /* of names that constants have -> how many */
  opi_uses uses;
  node_text *texts; /* [n_texts] nodes of the file's main graph */
  uint32_t n_texts, room_texts;
  uint32_t *todo, *seen; /* [n_values] */
  opi_origin found;      /* the initializer at hand */
  bool single;           /* it has one element */
  opipe_error *err;
} finder;

/* ---- metadata ---- */

static bool is_key(const char *key, uint64_t n, const char *wanted) {
  return n == strlen(wanted) && memcmp(key, wanted, n) == 0;
}

static opipe_status take_entry(void *ctx, uint32_t node, const char *key, uint64_t n_key,
                               const char *value, uint64_t n_value) {
  finder *f = ctx;
  const bool scopes = is_key(key, n_key, "pkg.torch.onnx.name_scopes");
  const bool arguments = is_key(key, n_key, "pkg.torch.onnx.fx_node");
  if (!scopes && !arguments)
    return OPIPE_OK;
  if (!opi_arena_grow(f->scratch, (void **)&f->texts, &f->room_texts, node + 1, sizeof *f->texts))
    return opi_fail_nomem(f->err, (node + 1) * sizeof *f->texts, "metadata of nodes");
  for (; f->n_texts <= node; ++f->n_texts)
    f->texts[f->n_texts] = (node_text){{NULL, 0}, {NULL, 0}};
  *(scopes ? &f->texts[node].scopes : &f->texts[node].arguments) = (stretch){value, n_value};
  return OPIPE_OK;
}

/* The last but one of "['', 'layers.0', 'layers.0.q', 'linear']"; text NULL: there is none. */
static stretch last_scope(stretch list) {
  stretch before = {NULL, 0}, last = {NULL, 0};
  uint64_t at = 0;
  while (at < list.n) {
    const char quote = list.text[at++];
    if (quote != '\'' && quote != '"')
      continue;
    const uint64_t from = at;
    while (at < list.n && list.text[at] != quote)
      ++at;
    before = last;
    last = (stretch){list.text + from, at - from};
    ++at;
  }
  return before;
}

/* Path of the module that a node stands in, dotted; false: not known. out [MOST_NAME]. */
static bool module_of(const finder *f, const opi_node *node, char *out) {
  stretch path = {NULL, 0};
  if (node->source < f->n_texts)
    path = last_scope(f->texts[node->source].scopes);
  const char *end = node->name[0] == '/' ? strrchr(node->name, '/') : NULL;
  if (path.text == NULL && end != NULL && end != node->name)
    path = (stretch){node->name + 1, (uint64_t)(end - node->name - 1)};
  if (path.text == NULL || path.n >= MOST_NAME)
    return false;
  for (uint64_t i = 0; i < path.n; ++i)
    out[i] = path.text[i] == '/' ? '.' : path.text[i];
  out[path.n] = '\0';
  return true;
}

/* ---- arguments ---- */

static bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* The next %p_... or %b_... of a text, behind that sign; *out_kind says which. */
static bool next_argument(stretch text, uint64_t *io_at, stretch *out, uint32_t *out_kind) {
  while (*io_at + 3 < text.n) {
    const char *at = text.text + (*io_at)++;
    if (at[0] != '%' || (at[1] != 'p' && at[1] != 'b') || at[2] != '_')
      continue;
    *out_kind = at[1] == 'p' ? OPI_ORIGIN_PARAMETER : OPI_ORIGIN_BUFFER;
    *out = (stretch){at + 3, 0};
    while (*io_at + 2 + out->n < text.n && is_word(out->text[out->n]))
      ++out->n;
    return true;
  }
  return false;
}

/* Does the argument begin with a dotted name? Its length there, 0: it does not. */
static uint64_t begins_with(stretch argument, const char *name) {
  uint64_t i = 0;
  for (; name[i] != '\0'; ++i) {
    if (i >= argument.n || argument.text[i] != (is_word(name[i]) ? name[i] : '_'))
      return 0;
  }
  return i;
}

/* ---- names that are counted up ---- */

/* The name without the number at its end ("c_12": "c_"); 0: it has none, or a layer gave it. */
static uint64_t stem_of(const char *name) {
  size_t n = strlen(name);
  const size_t whole = n;
  while (n > 0 && name[n - 1] >= '0' && name[n - 1] <= '9')
    --n;
  return n == whole || strchr(name, '.') != NULL ? 0 : n;
}

/* A float of rank 1 and more may be somebody's "w1"; what stands beside it decides. */
static bool is_plain_constant(const opi_value *value) {
  return (value->flags & OPI_VALUE_INITIALIZER) != 0 &&
         (!opi_dtype_is_float(value->dtype) || value->rank == 0);
}

/* Notes stems that constants of other kinds have. */
static opipe_status list_stems(finder *f) {
  for (uint32_t v = 0; v < f->file->n_values; ++v) {
    const opi_value *value = &f->file->values[v];
    const uint64_t n = is_plain_constant(value) ? stem_of(value->name) : 0;
    if (n == 0)
      continue;
    const char *stem = opi_arena_strndup(f->scratch, value->name, n);
    uint32_t count = 0;
    if (stem == NULL)
      return opi_fail_nomem(f->err, n, "a name");
    (void)opi_map_get(f->stems, stem, &count);
    OPI_TRY(opi_map_set(f->stems, stem, count + 1, f->err));
  }
  return OPIPE_OK;
}

static opipe_status mark_counted(finder *f) {
  const uint64_t n = stem_of(f->found.initializer);
  uint32_t count = 0;
  if (n == 0 || f->found.kind != OPI_ORIGIN_UNKNOWN)
    return OPIPE_OK;
  const char *stem = opi_arena_strndup(f->scratch, f->found.initializer, n);
  if (stem == NULL)
    return opi_fail_nomem(f->err, n, "a name");
  if (opi_map_get(f->stems, stem, &count) && count > 2)
    f->found.kind = OPI_ORIGIN_COUNTED;
  return OPIPE_OK;
}

/* ---- places ---- */

/* A layer's name for a constant that it reads as input i; NULL: the place does not tell. */
static const char *name_of_place(const finder *f, const opi_node *node, uint32_t i) {
  const uint32_t other = node->n_in == 2 ? node->in[1 - i] : OPIPE_NONE;
  const uint32_t p = other != OPIPE_NONE ? f->file->values[other].producer : OPIPE_NONE;
  switch (opi_op_of(node)->meets) {
    case OPI_MEETS_PRODUCT:
    case OPI_MEETS_LAYER:
      return i < 2 ? "weight" : "bias";
    case OPI_MEETS_NORM:
    case OPI_MEETS_BATCH_NORM:
    case OPI_MEETS_GROUP_NORM:
      return i == 1 ? "weight" : i == 2 ? "bias" : NULL;
    case OPI_MEETS_ROWS:
      return i == 0 ? "weight" : NULL;
    case OPI_MEETS_SHIFT: {
      const uint32_t made = p != OPIPE_NONE ? opi_op_of(&f->file->nodes[p])->meets : 0u;
      return made == OPI_MEETS_PRODUCT || made == OPI_MEETS_LAYER ? "bias" : NULL;
    }
    default:
      return NULL;
  }
}

static opipe_status set_name(finder *f, const char *module, const char *leaf, uint64_t n_leaf) {
  uint32_t unused = 0;
  const char *name = opi_arena_printf(f->scratch, "%s%s%.*s", module, module[0] != '\0' ? "." : "",
                                      (int)n_leaf, leaf);
  if (name == NULL)
    return opi_fail_nomem(f->err, MOST_NAME, "a name");
  if (!opi_map_get(f->known, name, &unused)) /* else it is another initializer's */
    f->found.name = name;
  return OPIPE_OK;
}

/* A lost name by the arguments of a node in `module`: the one that the place calls so, else the
 * only one. One number may as well be the operator's own. */
static opipe_status by_arguments(finder *f, stretch text, const char *module, const char *place) {
  stretch one, chosen = {NULL, 0};
  uint32_t kind = 0, chosen_kind = 0, n = 0;
  uint64_t at = 0;
  bool fits = false;
  while (!fits && next_argument(text, &at, &one, &kind)) {
    const uint64_t begun = begins_with(one, module);
    const uint64_t skip = module[0] == '\0' ? 0 : begun + 1;
    if ((begun == 0 && module[0] != '\0') || skip >= one.n)
      continue;
    chosen = (stretch){one.text + skip, one.n - skip};
    chosen_kind = kind;
    fits = place != NULL && is_key(chosen.text, chosen.n, place);
    ++n;
  }
  if (!fits && (n != 1 || f->single))
    return OPIPE_OK;
  OPI_TRY(set_name(f, module, chosen.text, chosen.n));
  if (f->found.name != NULL)
    f->found.kind = chosen_kind;
  return OPIPE_OK;
}

/* Evidence of a node about the initializer that it reads as input i, directly or in another form.
 */
static opipe_status ask_node(finder *f, const opi_node *node, uint32_t i, bool lost) {
  char module[MOST_NAME];
  const stretch text =
      node->source < f->n_texts ? f->texts[node->source].arguments : (stretch){NULL, 0};
  stretch one;
  uint64_t at = 0;
  uint32_t kind = 0;
  if (!lost) {
    while (next_argument(text, &at, &one, &kind)) {
      if (begins_with(one, f->found.initializer) == one.n)
        f->found.kind = kind;
    }
    return OPIPE_OK;
  }
  const char *place = name_of_place(f, node, i);
  if (!module_of(f, node, module))
    return OPIPE_OK;
  if (text.n != 0)
    return by_arguments(f, text, module, place);
  return place != NULL && module[0] != '\0' ? set_name(f, module, place, strlen(place)) : OPIPE_OK;
}

/* From the initializer through what gives its numbers another form, until somebody knows. */
static opipe_status ask_readers(finder *f, uint32_t v, bool lost) {
  const uint32_t forms = OPI_TAKES_FORM | OPI_TAKES_TURNED | OPI_TAKES_CAST | OPI_TAKES_STRETCHED;
  uint32_t n = 0;
  f->todo[n++] = v;
  f->seen[v] = v + 1;
  while (n > 0 && (lost ? f->found.name == NULL : f->found.kind == OPI_ORIGIN_UNKNOWN)) {
    const uint32_t at = f->todo[--n];
    for (uint32_t u = f->uses.first[at]; u < f->uses.first[at + 1]; ++u) {
      const opi_node *node = &f->file->nodes[f->uses.users[u]];
      for (uint32_t i = 0; i < node->n_in && f->found.name == NULL; ++i) {
        if (node->in[i] == at)
          OPI_TRY(ask_node(f, node, i, lost));
      }
      const uint32_t out = opi_node_out(node, 0);
      if (out == OPIPE_NONE || f->seen[out] == v + 1 || (opi_op_of(node)->takes & forms) == 0)
        continue;
      f->seen[out] = v + 1;
      f->todo[n++] = out;
    }
  }
  return OPIPE_OK;
}

static opipe_status add_origin(finder *f, opi_bound *bound) {
  const opi_origin *o = &f->found;
  if (o->name == NULL && o->kind == OPI_ORIGIN_UNKNOWN)
    return OPIPE_OK;
  opi_origin *to = &bound->origins[bound->n_origins++];
  *to = *o;
  to->initializer = opi_arena_strdup(f->arena, o->initializer);
  to->name = o->name == NULL ? NULL : opi_arena_strdup(f->arena, o->name);
  return to->initializer != NULL && (o->name == NULL || to->name != NULL)
             ? OPIPE_OK
             : opi_fail_nomem(f->err, MOST_NAME, "a name");
}

static bool is_asked(const opi_value *value) {
  return (value->flags & OPI_VALUE_INITIALIZER) != 0 && opi_dtype_is_float(value->dtype);
}

static opipe_status find_all(finder *f, const opi_model *model, opi_bound *bound) {
  const opi_graph *file = f->file;
  uint32_t n = 0;
  OPI_TRY(opi_model_metadata(model, take_entry, f, f->err));
  OPI_TRY(opi_graph_uses(file, f->scratch, &f->uses, f->err));
  for (uint32_t v = 0; v < file->n_values; ++v) {
    n += is_asked(&file->values[v]);
    if ((file->values[v].flags & OPI_VALUE_INITIALIZER) != 0)
      OPI_TRY(opi_map_set(f->known, file->values[v].name, 1, f->err));
  }
  f->todo = OPI_ARENA_ARRAY(f->scratch, uint32_t, (size_t)file->n_values + 1);
  f->seen = OPI_ARENA_ARRAY(f->scratch, uint32_t, file->n_values);
  bound->origins = OPI_ARENA_ARRAY(f->arena, opi_origin, n);
  if (f->todo == NULL || f->seen == NULL || bound->origins == NULL)
    return opi_fail_nomem(f->err, (uint64_t)file->n_values * 8, "names of initializers");
  for (uint32_t v = 0; v < file->n_values; ++v) {
    const opi_value *value = &file->values[v];
    if (!is_asked(value))
      continue;
    f->found = (opi_origin){.initializer = value->name};
    f->single = value->n_bytes * 8 == opi_dtype_bits(value->dtype);
    OPI_TRY(ask_readers(f, v, opi_name_is_made(value->name)));
    OPI_TRY(mark_counted(f));
    OPI_TRY(add_origin(f, bound));
  }
  return OPIPE_OK;
}

opipe_status opi_find_origins(const opi_model *model, opi_arena *scratch, opi_bound *bound,
                              opipe_error *err) {
  finder f = {.file = model->graph, .scratch = scratch, .arena = &bound->arena, .err = err};
  opipe_status status = opi_map_create(scratch->allocator, &f.known, err);
  if (status == OPIPE_OK)
    status = opi_map_create(scratch->allocator, &f.stems, err);
  if (status == OPIPE_OK)
    status = list_stems(&f);
  if (status == OPIPE_OK)
    status = find_all(&f, model, bound);
  opi_map_free(f.known);
  opi_map_free(f.stems);
  return status;
}
