/* SPDX-License-Identifier: Apache-2.0 */
/* ORT's graph -> tables of opipe/build.h. Names and numbers are copied, since ORT's go when Compile
 * returns; so is content that is small. Large content is mapped where it lies in a file of its own
 * (what ORT has transposed too, if the original is read as well), else lent by ORT, which keeps it
 * as long as the fused node has it as an input.
 */
#include <string.h>
#include <unistd.h>

#include "adapter.h"

typedef struct reader {
  const factory *f;
  tables *t;
  const char *path; /* of the model's file; NULL or "": made from bytes */
  bool is_set;      /* of nodes: what comes in may have no known shape */
} reader;

/* An array in the pool, never NULL. */
#define TAKE(r, to, n)                                                \
  do {                                                                \
    (to) = host_pool_take(&(r)->t->memory, ((n) + 1) * sizeof *(to)); \
    if ((to) == NULL)                                                 \
      return ep_no_memory((r)->f);                                    \
  } while (0)

/* A list of `object`'s: its length, then its entries. */
#define LIST(r, kind, of, to, n)                            \
  do {                                                      \
    ORT_TRY(ORT((r)->f->ort, kind##Num##of)(object, &(n))); \
    TAKE(r, to, n);                                         \
    ORT_TRY(ORT((r)->f->ort, kind##of)(object, (to), (n))); \
  } while (0)

/* ---- values ---- */

static ort_status *name_of(const factory *f, host_pool *p, const ort_value_info *value,
                           const char **out) {
  const char *name = "";
  if (value != NULL)
    ORT_TRY(ORT(f->ort, GetValueInfoName)(value, &name));
  *out = host_pool_text(p, name);
  return *out == NULL ? ep_no_memory(f) : NULL;
}

ort_status *tables_names(const factory *f, host_pool *p, const ort_value_info *const *list,
                         size_t n, const char ***out) {
  const char **names = host_pool_take(p, (n + 1) * sizeof *names);
  if (names == NULL)
    return ep_no_memory(f);
  for (size_t i = 0; i < n; ++i)
    ORT_TRY(name_of(f, p, list[i], &names[i]));
  *out = names;
  return NULL;
}

static ort_status *read_type(const factory *f, const ort_shape_info *info, host_pool *p,
                             int64_t *room, tensor_type *out) {
  ORT_TRY(ORT(f->ort, GetTensorElementType)(info, &out->dtype));
  ORT_TRY(ORT(f->ort, GetDimensionsCount)(info, &out->rank));
  out->shape = room != NULL && out->rank <= OPIPE_MAX_RANK
                   ? room
                   : host_pool_take(p, (out->rank + 1) * sizeof *out->shape);
  return out->shape == NULL ? ep_no_memory(f)
                            : ORT(f->ort, GetDimensions)(info, out->shape, out->rank);
}

ort_status *tables_type(const factory *f, const ort_value *value, host_pool *p, int64_t *room,
                        tensor_type *out) {
  ort_shape_info *info = NULL;
  ORT_TRY(ORT(f->ort, GetTensorTypeAndShape)(value, &info));
  ort_status *status = read_type(f, info, p, room, out);
  ORT(f->ort, ReleaseTensorTypeAndShapeInfo)(info);
  return status;
}

/* Type and shape; of what is no tensor nothing is known. */
static ort_status *read_value(reader *r, const ort_value_info *value, opipe_build_value *out) {
  const ort_table *ort = r->f->ort;
  const ort_type_info *known = NULL;
  const ort_shape_info *info = NULL;
  const char **dims = NULL;
  tensor_type is = {0};
  out->rank = -1;
  ORT_TRY(name_of(r->f, &r->t->memory, value, &out->name));
  ORT_TRY(ORT(ort, GetValueInfoTypeInfo)(value, &known));
  if (known != NULL)
    ORT_TRY(ORT(ort, CastTypeInfoToTensorInfo)(known, &info));
  if (info == NULL)
    return NULL;
  ORT_TRY(read_type(r->f, info, &r->t->memory, NULL, &is));
  out->dtype = (uint32_t)is.dtype;
  /* No shape looks as that of a scalar does; before 1.24 nothing tells them apart. */
  if (is.rank == 0 &&
      (r->f->version < 24 ? r->is_set : !ORT(ort, TensorTypeAndShape_HasShape)(info)))
    return NULL;
  TAKE(r, dims, is.rank);
  ORT_TRY(ORT(ort, GetSymbolicDimensions)(info, dims, is.rank));
  for (size_t d = 0; d < is.rank; ++d) {
    dims[d] = dims[d] == NULL || dims[d][0] == '\0' ? NULL : host_pool_text(&r->t->memory, dims[d]);
    if (is.shape[d] < 0)
      is.shape[d] = -1;
  }
  out->rank = (int32_t)is.rank;
  out->shape = is.shape;
  out->dim_names = dims;
  return NULL;
}

/* Adds a list to *out [*io_n]; of outputs the shapes are ours to say. */
static ort_status *add_values(reader *r, const ort_value_info *const *list, size_t n, bool shaped,
                              const opipe_build_value **out, uint32_t *io_n) {
  opipe_build_value *values = NULL;
  TAKE(r, values, *io_n + n);
  if (*io_n != 0)
    memcpy(values, *out, *io_n * sizeof *values);
  for (size_t i = 0; i < n; ++i) {
    opipe_build_value *to = &values[(*io_n)++];
    ORT_TRY(list[i] == NULL ? name_of(r->f, &r->t->memory, NULL, &to->name)
                            : read_value(r, list[i], to));
    to->rank = shaped ? to->rank : -1;
  }
  *out = values;
  return NULL;
}

/* ---- tensors ---- */

static ort_status *read_tensor(reader *r, const ort_value *value, opipe_literal *out) {
  const ort_table *ort = r->f->ort;
  tensor_type is = {0};
  size_t n_bytes = 0;
  void *data = NULL;
  ORT_TRY(tables_type(r->f, value, &r->t->memory, NULL, &is));
  if (is.dtype != OPIPE_STRING) {
    ORT_TRY(ORT(ort, GetTensorSizeInBytes)(value, &n_bytes));
    ORT_TRY(ORT(ort, GetTensorMutableData)((ort_value *)(uintptr_t)value, &data));
  }
  *out = (opipe_literal){.data = data,
                         .shape = is.shape,
                         .n_bytes = n_bytes,
                         .dtype = (uint32_t)is.dtype,
                         .rank = (uint32_t)is.rank};
  return NULL;
}

static ort_status *copy_content(reader *r, const void **io_data, size_t n_bytes) {
  *io_data = host_pool_copy(&r->t->memory, *io_data, n_bytes);
  return *io_data == NULL ? ep_no_memory(r->f) : NULL;
}

/* The place of an initializer in a file of external data; out->file NULL: it has none that can be
 * read. */
static ort_status *find_file(reader *r, const ort_value_info *value, opipe_build_tensor *out) {
  const ort_table *ort = r->f->ort;
  ort_external *external = NULL;
  ORT_TRY(ORT(ort, ValueInfo_GetExternalInitializerInfo)(value, &external));
  if (external == NULL)
    return NULL;
  const char *file = host_pool_beside(&r->t->memory, r->path,
                                      ORT(ort, ExternalInitializerInfo_GetFilePath)(external));
  if (file != NULL && access(file, R_OK) == 0) {
    out->file = file;
    out->offset_bytes = (uint64_t)ORT(ort, ExternalInitializerInfo_GetFileOffset)(external);
    out->n_bytes = ORT(ort, ExternalInitializerInfo_GetByteSize)(external);
  }
  ORT(ort, ReleaseExternalInitializerInfo)(external);
  return NULL;
}

/* is_main: of the main graph, whose content is where ORT has it, for now. */
static ort_status *read_initializer(reader *r, const ort_value_info *value, bool is_main,
                                    opipe_build_tensor *out) {
  const ort_value *content = NULL;
  opipe_literal literal;
  opipe_build_value known = {.rank = -1};
  ORT_TRY(read_value(r, value, &known));
  *out = (opipe_build_tensor){.name = known.name,
                              .shape = known.shape,
                              .dtype = known.dtype,
                              .rank = known.rank < 0 ? 0 : (uint32_t)known.rank};
  if (is_main && known.rank >= 0)
    ORT_TRY(find_file(r, value, out));
  if (out->file != NULL)
    return NULL;
  ORT_TRY(ORT(r->f->ort, ValueInfo_GetInitializerValue)(value, &content));
  if (content == NULL)
    return ep_fail_text(r->f, ORT_FAIL, "onnx-pipe: initializer '%s' has no content", known.name);
  ORT_TRY(read_tensor(r, content, &literal));
  if (!is_main)
    ORT_TRY(copy_content(r, &literal.data, literal.n_bytes));
  out->shape = literal.shape;
  out->data = literal.data;
  out->n_bytes = literal.n_bytes;
  out->dtype = literal.dtype;
  out->rank = literal.rank;
  return NULL;
}

/* Constant ones; others are inputs that a caller may leave out. */
static ort_status *read_initializers(reader *r, const ort_graph *object, bool is_main,
                                     opipe_build_graph *out) {
  const ort_value_info **list = NULL;
  opipe_build_tensor *tensors = NULL;
  size_t n = 0;
  LIST(r, Graph_Get, Initializers, list, n);
  TAKE(r, tensors, n);
  for (size_t i = 0; i < n; ++i) {
    bool constant = true;
    if (is_main)
      ORT_TRY(ORT(r->f->ort, ValueInfo_IsConstantInitializer)(list[i], &constant));
    if (constant)
      ORT_TRY(read_initializer(r, list[i], is_main, &tensors[out->n_tensors++]));
  }
  host_sort_tensors(tensors, out->n_tensors); /* ORT's order differs now and then */
  out->tensors = tensors;
  return NULL;
}

/* ---- nodes ---- */

static ort_status *read_graph(reader *r, const ort_graph *graph, const ort_node *const *set,
                              size_t n, bool is_main, opipe_build_graph *out);

/* Numbers, or text, with room for a NUL: [*out_n] bytes. */
static ort_status *read_bytes(reader *r, const ort_attr *from, int kind, const void **out,
                              size_t *out_n) {
  char *data = NULL;
  ort_status *status = ORT(r->f->ort, ReadOpAttr)(from, kind, NULL, 0, out_n);
  if (status != NULL) /* it wants room, and has said how much */
    ORT(r->f->ort, ReleaseStatus)(status);
  TAKE(r, data, *out_n);
  *out = data;
  return *out_n == 0 ? NULL : ORT(r->f->ort, ReadOpAttr)(from, kind, data, *out_n, out_n);
}

/* n bytes of strings, one after the other, each with its NUL. */
static ort_status *split_strings(reader *r, opipe_attr *out, size_t n) {
  const char *at = out->data, *end = at + n;
  const char **list = NULL;
  TAKE(r, list, n);
  for (; at < end; at += strlen(at) + 1)
    list[out->n++] = at;
  out->data = list;
  return NULL;
}

/* Name and kind, and what is not a tensor or a graph. */
static ort_status *read_attr(reader *r, const ort_attr *from, opipe_attr *out) {
  static const struct {
    uint32_t kind;
    size_t size; /* of an element; 0: it has none that are read here */
  } rows[] = {[ORT_ATTR_INT] = {OPIPE_ATTR_INT, sizeof(int64_t)},
              [ORT_ATTR_INTS] = {OPIPE_ATTR_INTS, sizeof(int64_t)},
              [ORT_ATTR_FLOAT] = {OPIPE_ATTR_FLOAT, sizeof(float)},
              [ORT_ATTR_FLOATS] = {OPIPE_ATTR_FLOATS, sizeof(float)},
              [ORT_ATTR_STRING] = {OPIPE_ATTR_STRING, 1},
              [ORT_ATTR_STRINGS] = {OPIPE_ATTR_STRINGS, 1},
              [ORT_ATTR_TENSOR] = {OPIPE_ATTR_TENSOR, 0},
              [ORT_ATTR_GRAPH] = {OPIPE_ATTR_GRAPH, 0}};
  const char *name = NULL;
  int kind = 0;
  size_t n = 0;
  ORT_TRY(ORT(r->f->ort, OpAttr_GetName)(from, &name));
  ORT_TRY(ORT(r->f->ort, OpAttr_GetType)(from, &kind));
  if (kind < ORT_ATTR_INT || kind > ORT_ATTR_TENSOR)
    return ep_fail_text(r->f, ORT_FAIL, "onnx-pipe: attribute '%s' is of kind %d", name, kind);
  out->kind = rows[kind].kind;
  out->name = host_pool_text(&r->t->memory, name);
  if (out->name == NULL)
    return ep_no_memory(r->f);
  if (rows[kind].size == 0)
    return NULL;
  ORT_TRY(read_bytes(r, from, kind, &out->data, &n));
  if (kind == ORT_ATTR_STRINGS)
    return split_strings(r, out, n);
  if (kind == ORT_ATTR_STRING) {
    out->n = (uint32_t)strlen(out->data); /* ORT counts the NUL */
  } else if (kind == ORT_ATTR_INT || kind == ORT_ATTR_FLOAT) {
    out->i = kind == ORT_ATTR_INT ? *(const int64_t *)out->data : 0;
    out->f = kind == ORT_ATTR_FLOAT ? (double)*(const float *)out->data : 0;
    out->data = NULL;
  } else {
    out->n = (uint32_t)(n / rows[kind].size);
  }
  return NULL;
}

static ort_status *read_literal(reader *r, const ort_attr *from, opipe_attr *out) {
  ort_value *value = NULL;
  opipe_literal *literal = NULL;
  TAKE(r, literal, 1);
  ORT_TRY(ORT(r->f->ort, OpAttr_GetTensorAttributeAsOrtValue)(from, &value));
  ort_status *status = read_tensor(r, value, literal);
  if (status == NULL)
    status = copy_content(r, &literal->data, literal->n_bytes);
  ORT(r->f->ort, ReleaseValue)(value);
  out->data = literal;
  out->n = 1;
  return status;
}

/* The body that is called as the attribute is. */
static ort_status *read_body(reader *r, const ort_node *object, opipe_attr *out) {
  const ort_graph **graphs = NULL;
  const char **names = NULL;
  size_t n = 0;
  ORT_TRY(ORT(r->f->ort, Node_GetNumSubgraphs)(object, &n));
  TAKE(r, graphs, n);
  TAKE(r, names, n);
  ORT_TRY(ORT(r->f->ort, Node_GetSubgraphs)(object, graphs, n, names));
  for (size_t i = 0; i < n; ++i) {
    opipe_build_graph *body = NULL;
    if (strcmp(names[i], out->name) != 0)
      continue;
    TAKE(r, body, 1);
    out->data = body;
    out->n = 1;
    return read_graph(r, graphs[i], NULL, 0, false, body);
  }
  return ep_fail_text(r->f, ORT_FAIL, "onnx-pipe: attribute '%s' has no graph", out->name);
}

static ort_status *list_values(reader *r, const ort_node *object, const ort_value_info ***in,
                               size_t *n_in, const ort_value_info ***to, size_t *n_out) {
  LIST(r, Node_Get, Inputs, *in, *n_in);
  LIST(r, Node_Get, Outputs, *to, *n_out);
  return NULL;
}

static ort_status *read_node(reader *r, const ort_node *object, opipe_build_node *out) {
  const ort_table *ort = r->f->ort;
  host_pool *p = &r->t->memory;
  const ort_value_info **in = NULL, **to = NULL;
  const ort_attr **list = NULL;
  opipe_attr *attrs = NULL;
  const char *name = NULL, *op = NULL, *domain = NULL;
  size_t n_in = 0, n_out = 0, n = 0;
  ORT_TRY(ORT(ort, Node_GetName)(object, &name));
  ORT_TRY(ORT(ort, Node_GetOperatorType)(object, &op));
  ORT_TRY(ORT(ort, Node_GetDomain)(object, &domain));
  ORT_TRY(list_values(r, object, &in, &n_in, &to, &n_out));
  LIST(r, Node_Get, Attributes, list, n);
  TAKE(r, attrs, n);
  for (size_t i = 0; i < n; ++i) {
    ORT_TRY(read_attr(r, list[i], &attrs[i]));
    if (attrs[i].kind == OPIPE_ATTR_TENSOR)
      ORT_TRY(read_literal(r, list[i], &attrs[i]));
    if (attrs[i].kind == OPIPE_ATTR_GRAPH)
      ORT_TRY(read_body(r, object, &attrs[i]));
  }
  const char **inputs = NULL, **outputs = NULL;
  ORT_TRY(tables_names(r->f, p, in, n_in, &inputs));
  ORT_TRY(tables_names(r->f, p, to, n_out, &outputs));
  *out = (opipe_build_node){.name = host_pool_text(p, name),
                            .op = host_pool_text(p, op),
                            .domain = host_pool_text(p, domain),
                            .inputs = inputs,
                            .outputs = outputs,
                            .attrs = attrs,
                            .n_inputs = (uint32_t)n_in,
                            .n_outputs = (uint32_t)n_out,
                            .n_attrs = (uint32_t)n};
  return out->name == NULL || out->op == NULL || out->domain == NULL ? ep_no_memory(r->f) : NULL;
}

/* ---- graphs ---- */

/* set [n] not NULL: of those nodes, whose inputs have the types that they have around them. */
static ort_status *read_graph(reader *r, const ort_graph *object, const ort_node *const *set,
                              size_t n, bool is_main, opipe_build_graph *out) {
  const ort_value_info **in = NULL, **to = NULL;
  const ort_node **all = NULL;
  opipe_build_node *nodes = NULL;
  size_t n_in = 0, n_out = 0;
  *out = opipe_build_graph_init();
  for (size_t i = 0; i < (set == NULL ? 1 : n); ++i) {
    if (set != NULL) {
      ORT_TRY(list_values(r, set[i], &in, &n_in, &to, &n_out));
    } else {
      LIST(r, Graph_Get, Inputs, in, n_in);
      LIST(r, Graph_Get, Outputs, to, n_out);
      LIST(r, Graph_Get, Nodes, all, n);
    }
    ORT_TRY(add_values(r, in, n_in, true, &out->inputs, &out->n_inputs));
    ORT_TRY(add_values(r, to, n_out, false, &out->outputs, &out->n_outputs));
  }
  ORT_TRY(read_initializers(r, object, is_main, out));
  TAKE(r, nodes, n);
  for (size_t i = 0; i < n; ++i)
    ORT_TRY(read_node(r, set == NULL ? all[i] : set[i], &nodes[i]));
  out->nodes = nodes;
  out->n_nodes = (uint32_t)n;
  host_drop_values(out, true, &out->n_inputs);
  if (set != NULL)
    host_drop_values(out, false, &out->n_outputs);
  return NULL;
}

static ort_status *read_opsets(reader *r, const ort_graph *object) {
  tables *t = r->t;
  const char **domains = NULL;
  int64_t *versions = NULL, ir = 0;
  opipe_build_opset *opsets = NULL;
  size_t n = 0;
  ORT_TRY(ORT(r->f->ort, Graph_GetNumOperatorSets)(object, &n));
  TAKE(r, domains, n);
  TAKE(r, versions, n);
  TAKE(r, opsets, n);
  ORT_TRY(ORT(r->f->ort, Graph_GetOperatorSets)(object, domains, versions, n));
  ORT_TRY(ORT(r->f->ort, Graph_GetOnnxIRVersion)(object, &ir));
  for (size_t i = 0; i < n; ++i)
    opsets[i] = (opipe_build_opset){host_pool_text(&t->memory, domains[i]), versions[i]};
  t->params = opipe_build_params_init();
  t->params.graph = &t->graph;
  t->params.opsets = opsets;
  t->params.n_opsets = (uint32_t)n;
  t->params.ir_version = ir >= 10 && ir <= 13 ? (uint32_t)ir : 0;
  return NULL;
}

/* Lends large initializers that are not in files; others are copied. */
static ort_status *lend(reader *r) {
  tables *t = r->t;
  opipe_build_tensor *tensors = (opipe_build_tensor *)(uintptr_t)t->graph.tensors; /* the pool's */
  TAKE(r, t->lent, t->graph.n_tensors);
  for (uint32_t i = 0; i < t->graph.n_tensors; ++i) {
    opipe_build_tensor *of = &tensors[i];
    if (of->file != NULL)
      continue;
    if (t->copies || of->n_bytes < LENT_LEAST)
      ORT_TRY(copy_content(r, &of->data, of->n_bytes));
    else
      t->lent[t->n_lent++] = (lent){of->name, of->data};
  }
  return NULL;
}

ort_status *tables_read(const factory *f, const ort_graph *graph, const ort_node *const *set,
                        size_t n, tables *out) {
  reader r = {.f = f, .t = out, .is_set = set != NULL};
  ORT_TRY(ORT(f->ort, Graph_GetModelPath)(graph, &r.path));
  ORT_TRY(read_opsets(&r, graph));
  ORT_TRY(read_graph(&r, graph, set, n, true, &out->graph));
  if (set == NULL && !host_find_turned(&out->graph, &out->memory, LENT_LEAST, &out->n_turned))
    return ep_no_memory(f);
  return lend(&r);
}
