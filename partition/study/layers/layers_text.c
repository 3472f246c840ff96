/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the profiles of PipeDream and DAPPLE. */
#include <stdlib.h>
#include <string.h>

#include "partition/study/layers/layers.h"

enum { TEXT_MOST = 64 << 20, EDGES_MOST = 1 << 20, LINE_SHOWN = 60, FIELDS = 4, NUMBER_ROOM = 64 };

typedef struct line {
  const char *at, *end;
  uint32_t number; /* from 1 */
} line;

typedef struct edge {
  uint64_t src, dst; /* numbers of nodes, later their indices */
  uint32_t line;
} edge;

typedef struct node {
  uint64_t number;
  const char *name;
  double forward_ms, backward_ms;
  uint64_t activation_bytes, param_bytes;
  uint32_t line;
} node;

typedef struct reader {
  const char *name;
  opi_arena arena; /* scratch */
  node *nodes;     /* sorted by number after reading */
  edge *edges;
  uint32_t n_nodes, room_nodes, n_edges, room_edges;
  opipe_error *err;
} reader;

static opipe_status refuse(const reader *r, const line *l, const char *why) {
  const size_t n = (size_t)(l->end - l->at);
  char shown[LINE_SHOWN + 1];
  const size_t kept = n > LINE_SHOWN ? LINE_SHOWN : n;
  memcpy(shown, l->at, kept);
  shown[kept] = '\0';
  (void)opi_text_clean(shown, kept);
  return opi_fail(r->err, OPIPE_E_INVALID, "'%.80s', line %u: %s: \"%s\"", r->name, l->number, why,
                  shown);
}

/* ---- tokens ---- */

static void trim(const char **at, const char **end) {
  while (*at < *end && (**at == ' ' || **at == '\t' || **at == '\r'))
    ++*at;
  while (*at < *end && ((*end)[-1] == ' ' || (*end)[-1] == '\t' || (*end)[-1] == '\r'))
    --*end;
}

/* Parses all of [at, end) as a number >= 0. */
static bool read_number(const char *at, const char *end, double *out) {
  char text[NUMBER_ROOM];
  char *stop = NULL;
  trim(&at, &end);
  const size_t n = (size_t)(end - at);
  if (n == 0 || n >= sizeof text)
    return false;
  memcpy(text, at, n);
  text[n] = '\0';
  if (strspn(text, "0123456789.eE+-") < n)
    return false;
  *out = strtod(text, &stop);
  return stop == text + n && *out >= 0 && *out <= 1e300;
}

/* A number, or a bracketed list of numbers, which are summed. */
static bool read_sum(const char *at, const char *end, double *out) {
  trim(&at, &end);
  if (at == end || *at != '[')
    return read_number(at, end, out);
  if (end[-1] != ']' || end - at < 2)
    return false;
  *out = 0;
  for (++at, --end;;) {
    const char *stop = memchr(at, ';', (size_t)(end - at));
    double one = 0;
    if (!read_number(at, stop == NULL ? end : stop, &one))
      return false;
    *out += one;
    if (stop == NULL)
      return true;
    at = stop + 1;
  }
}

/* "node12" */
static bool read_node_number(const char *at, const char *end, uint64_t *out) {
  static const char word[] = "node";
  trim(&at, &end);
  if ((size_t)(end - at) < sizeof word || memcmp(at, word, sizeof word - 1) != 0)
    return false;
  *out = 0;
  for (at += sizeof word - 1; at < end; ++at) {
    if (*at < '0' || *at > '9' || opi_mul_u64(*out, 10, out) ||
        opi_add_u64(*out, (uint64_t)(*at - '0'), out))
      return false;
  }
  return true;
}

static const char *find(const char *at, const char *end, const char *what, size_t n) {
  for (; at + n <= end; ++at) {
    if (memcmp(at, what, n) == 0)
      return at;
  }
  return NULL;
}

static const char *find_last(const char *at, const char *end, const char *what, size_t n) {
  const char *found = NULL;
  for (const char *hit = find(at, end, what, n); hit != NULL; hit = find(hit + 1, end, what, n))
    found = hit;
  return found;
}

/* ---- lines ---- */

static opipe_status read_fields(const reader *r, const line *l, const char *at, node *out) {
  static const char *const names[FIELDS] = {"forward_compute_time", "backward_compute_time",
                                            "activation_size", "parameter_size"};
  double values[FIELDS] = {-1, -1, -1, -1};
  while (at < l->end) {
    const char *stop = memchr(at, ',', (size_t)(l->end - at));
    const char *end = stop == NULL ? l->end : stop, *name = at;
    const char *equals = memchr(at, '=', (size_t)(end - at));
    uint32_t f = 0;
    at = stop == NULL ? l->end : stop + 1;
    if (equals == NULL)
      return refuse(r, l, "a field without '='");
    const char *name_end = equals;
    trim(&name, &name_end);
    while (f < FIELDS && (strlen(names[f]) != (size_t)(name_end - name) ||
                          memcmp(names[f], name, (size_t)(name_end - name)) != 0))
      ++f;
    if (f == FIELDS)
      continue; /* other fields, such as the stage of an earlier partition */
    if (values[f] >= 0)
      return refuse(r, l, "a field is given twice");
    if (!read_sum(equals + 1, end, &values[f]) || values[f] > 1e14)
      return refuse(r, l, "a field is not a number from 0 to 1e14");
  }
  for (uint32_t f = 0; f < FIELDS; ++f) {
    if (values[f] < 0)
      return refuse(r, l, "a field is missing");
  }
  out->forward_ms = values[0];
  out->backward_ms = values[1];
  out->activation_bytes = (uint64_t)values[2];
  out->param_bytes = (uint64_t)values[3];
  return OPIPE_OK;
}

static opipe_status add_node(reader *r, const line *l, uint64_t number, const char *what,
                             const char *fields) {
  static const char separator[] = " -- ";
  node n = {.number = number, .line = l->number};
  const char *what_end = fields - (sizeof separator - 1);
  if (r->n_nodes == OPI_LAYERS_MOST) {
    return opi_fail(r->err, OPIPE_E_LIMIT, "'%.80s' has more than %d nodes", r->name,
                    OPI_LAYERS_MOST);
  }
  trim(&what, &what_end);
  char *name = opi_arena_strndup(&r->arena, what, (size_t)(what_end - what));
  n.name = name;
  if (name == NULL ||
      !opi_arena_grow(&r->arena, (void **)&r->nodes, &r->room_nodes, r->n_nodes + 1, sizeof(node)))
    return opi_fail_nomem(r->err, sizeof(node), "a profile of layers");
  (void)opi_text_clean(name, strlen(name)); /* it will be written as JSON */
  OPI_TRY(read_fields(r, l, fields, &n));
  r->nodes[r->n_nodes++] = n;
  return OPIPE_OK;
}

static opipe_status read_line(reader *r, const line *l) {
  static const char separator[] = " -- ";
  const size_t width = sizeof separator - 1;
  const char *first = find(l->at, l->end, separator, width);
  uint64_t number = 0, other = 0;
  if (first == NULL || !read_node_number(l->at, first, &number))
    return refuse(r, l, "neither a node nor an edge");
  const char *last = find_last(first, l->end, separator, width);
  if (last != first)
    return add_node(r, l, number, first + width, last + width);
  if (!read_node_number(first + width, l->end, &other))
    return refuse(r, l, "neither a node nor an edge");
  if (r->n_edges == EDGES_MOST)
    return opi_fail(r->err, OPIPE_E_LIMIT, "'%.80s' has more than %d edges", r->name, EDGES_MOST);
  if (!opi_arena_grow(&r->arena, (void **)&r->edges, &r->room_edges, r->n_edges + 1, sizeof(edge)))
    return opi_fail_nomem(r->err, sizeof(edge), "a profile of layers");
  r->edges[r->n_edges++] = (edge){number, other, l->number};
  return OPIPE_OK;
}

static opipe_status read_lines(reader *r, const char *text, size_t n_bytes) {
  line l = {text, text, 0};
  for (const char *at = text, *end = text + n_bytes; at < end;) {
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    l = (line){at, stop == NULL ? end : stop, l.number + 1};
    at = stop == NULL ? end : stop + 1;
    trim(&l.at, &l.end);
    if (l.at < l.end)
      OPI_TRY(read_line(r, &l));
  }
  return r->n_nodes > 0 ? OPIPE_OK
                        : opi_fail(r->err, OPIPE_E_INVALID, "'%.80s' has no node", r->name);
}

/* ---- order ---- */

static int by_number(const void *left, const void *right) {
  const uint64_t a = ((const node *)left)->number, b = ((const node *)right)->number;
  return a < b ? -1 : a > b;
}

static int by_source(const void *left, const void *right) {
  const edge *a = left, *b = right;
  return a->src != b->src ? (a->src < b->src ? -1 : 1) : (a->dst < b->dst ? -1 : a->dst > b->dst);
}

static opipe_status find_node(const reader *r, uint64_t *io_number, uint32_t line_number) {
  const node key = {.number = *io_number};
  const node *found = bsearch(&key, r->nodes, r->n_nodes, sizeof(node), by_number);
  if (found == NULL) {
    return opi_fail(r->err, OPIPE_E_INVALID,
                    "'%.80s', line %u: an edge names node%llu, which is not one of the %u nodes",
                    r->name, line_number, (unsigned long long)*io_number, r->n_nodes);
  }
  *io_number = (uint64_t)(found - r->nodes);
  return OPIPE_OK;
}

static opipe_status resolve(reader *r) {
  qsort(r->nodes, r->n_nodes, sizeof(node), by_number);
  for (uint32_t i = 1; i < r->n_nodes; ++i) {
    if (r->nodes[i].number == r->nodes[i - 1].number) {
      return opi_fail(
          r->err, OPIPE_E_INVALID, "'%.80s': node%llu is defined in lines %u and %u", r->name,
          (unsigned long long)r->nodes[i].number,
          r->nodes[i - 1].line < r->nodes[i].line ? r->nodes[i - 1].line : r->nodes[i].line,
          r->nodes[i - 1].line < r->nodes[i].line ? r->nodes[i].line : r->nodes[i - 1].line);
    }
  }
  for (uint32_t e = 0; e < r->n_edges; ++e) {
    OPI_TRY(find_node(r, &r->edges[e].src, r->edges[e].line));
    OPI_TRY(find_node(r, &r->edges[e].dst, r->edges[e].line));
  }
  if (r->n_edges > 0)
    qsort(r->edges, r->n_edges, sizeof(edge), by_source);
  return OPIPE_OK;
}

/* A heap of indices, the smallest on top. */
static void heap_push(uint32_t *heap, uint32_t *io_n, uint32_t value) {
  uint32_t i = (*io_n)++;
  for (; i > 0 && heap[(i - 1) / 2] > value; i = (i - 1) / 2)
    heap[i] = heap[(i - 1) / 2];
  heap[i] = value;
}

static uint32_t heap_pop(uint32_t *heap, uint32_t *io_n) {
  const uint32_t top = heap[0], value = heap[--*io_n];
  uint32_t i = 0;
  for (uint32_t child = 1; child < *io_n; child = 2 * i + 1) {
    if (child + 1 < *io_n && heap[child + 1] < heap[child])
      ++child;
    if (heap[child] >= value)
      break;
    heap[i] = heap[child];
    i = child;
  }
  heap[i] = value;
  return top;
}

/* Topological order, smallest number first: position [n_nodes] of every node. */
static opipe_status sort(const reader *r, uint32_t *first_edge, uint32_t *n_before, uint32_t *heap,
                         uint32_t *out_position) {
  uint32_t n_heap = 0, n_done = 0;
  for (uint32_t e = 0; e < r->n_edges; ++e) {
    ++first_edge[r->edges[e].src + 1];
    ++n_before[r->edges[e].dst];
  }
  for (uint32_t i = 0; i < r->n_nodes; ++i) {
    first_edge[i + 1] += first_edge[i];
    if (n_before[i] == 0)
      heap_push(heap, &n_heap, i);
  }
  while (n_heap > 0) {
    const uint32_t i = heap_pop(heap, &n_heap);
    out_position[i] = n_done++;
    for (uint32_t e = first_edge[i]; e < first_edge[i + 1]; ++e) {
      if (--n_before[r->edges[e].dst] == 0)
        heap_push(heap, &n_heap, (uint32_t)r->edges[e].dst);
    }
  }
  for (uint32_t i = 0; n_done < r->n_nodes && i < r->n_nodes; ++i) {
    if (n_before[i] > 0) {
      return opi_fail(r->err, OPIPE_E_INVALID,
                      "'%.80s': node%llu ('%.60s') is on a cycle, or after one", r->name,
                      (unsigned long long)r->nodes[i].number, r->nodes[i].name);
    }
  }
  return OPIPE_OK;
}

/* Bytes alive across each position: every output, up to its last reader. */
static void fill_cuts(const reader *r, const uint32_t *first_edge, const uint32_t *position,
                      opi_layers *out) {
  for (uint32_t i = 0; i < r->n_nodes; ++i) {
    uint32_t last = position[i];
    for (uint32_t e = first_edge[i]; e < first_edge[i + 1]; ++e) {
      const uint32_t reader_at = position[r->edges[e].dst];
      last = reader_at > last ? reader_at : last;
    }
    for (uint32_t p = position[i]; p < last; ++p)
      out->at[p].cut_bytes += r->nodes[i].activation_bytes;
  }
}

static opipe_status fill(reader *r, opi_layers *out) {
  const size_t n = r->n_nodes;
  uint32_t *first_edge = OPI_ARENA_ARRAY(&r->arena, uint32_t, n + 1);
  uint32_t *n_before = OPI_ARENA_ARRAY(&r->arena, uint32_t, n);
  uint32_t *heap = OPI_ARENA_ARRAY(&r->arena, uint32_t, n);
  uint32_t *position = OPI_ARENA_ARRAY(&r->arena, uint32_t, n);
  if (first_edge == NULL || n_before == NULL || heap == NULL || position == NULL)
    return opi_fail_nomem(r->err, n * sizeof(uint32_t), "a profile of layers");
  OPI_TRY(sort(r, first_edge, n_before, heap, position));
  for (uint32_t i = 0; i < r->n_nodes; ++i) {
    const node *from = &r->nodes[i];
    opi_layer *to = &out->at[position[i]];
    *to = (opi_layer){.forward_ns = from->forward_ms * 1e6,
                      .input_ns = from->backward_ms * 0.5e6,
                      .weight_ns = from->backward_ms * 0.5e6,
                      .output_bytes = from->activation_bytes,
                      .stash_bytes = from->activation_bytes,
                      .param_bytes = from->param_bytes};
    out->names[position[i]] = opi_arena_strdup(&out->arena, from->name);
    if (out->names[position[i]] == NULL)
      return opi_fail_nomem(r->err, strlen(from->name), "a profile of layers");
  }
  fill_cuts(r, first_edge, position, out);
  return opi_layers_check(out, r->err);
}

opipe_status opi_layers_read_text(const char *name, const char *text, size_t n_bytes,
                                  uint32_t samples, const opipe_allocator *allocator,
                                  opi_layers **out_layers, opipe_error *err) {
  reader r = {.name = name, .err = err};
  opi_layers *layers = NULL;
  if (n_bytes > TEXT_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "'%.80s' has %zu bytes; at most %d can be read", name,
                    n_bytes, TEXT_MOST);
  }
  opi_arena_init(&r.arena, allocator, 0);
  opipe_status status = read_lines(&r, text, n_bytes);
  if (status == OPIPE_OK)
    status = resolve(&r);
  if (status == OPIPE_OK)
    status = opi_layers_new(name, r.n_nodes, 1, allocator, &layers, err);
  if (status == OPIPE_OK) {
    layers->samples[0] = samples;
    status = fill(&r, layers);
  }
  opi_arena_release(&r.arena);
  if (status < 0) {
    opi_layers_free(layers);
    return status;
  }
  *out_layers = layers;
  return OPIPE_OK;
}
