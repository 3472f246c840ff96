/* SPDX-License-Identifier: Apache-2.0 */
/* Order of nodes: the readers of each value, and an executable order that keeps the file's wherever
 * possible.
 *
 * Sorting takes, among the nodes whose inputs exist, the one that is first in the file (a binary
 * heap of indices), so a file in order stays as it is. A subgraph's captured values count as inputs
 * of the node that contains it. If no node is ready, the remaining ones contain a cycle, which is
 * printed.
 */
#include "loader/graph/graph.h"

#include <string.h>

/* Calls `visit` with each value of the node's own graph that the node reads, its subgraphs'
 * captures included. */
typedef void (*visit_fn)(void *ctx, uint32_t node, uint32_t value);

static void visit_reads(const opi_graph *graph, uint32_t n, visit_fn visit, void *ctx) {
  const opi_node *node = &graph->nodes[n];
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] != OPIPE_NONE)
      visit(ctx, n, node->in[i]);
  }
  for (uint32_t a = 0; a < node->n_attrs; ++a) {
    if (node->attrs[a].kind != OPI_ATTR_GRAPH)
      continue;
    const opi_graph *body = node->attrs[a].data;
    for (uint32_t c = 0; c < body->n_captures; ++c)
      visit(ctx, n, body->capture_outer[c]);
  }
}

static void count_use(void *ctx, uint32_t node, uint32_t value) {
  (void)node;
  ++((opi_uses *)ctx)->first[value + 1];
}

/* first[v] moves on as entries are written and is moved back afterwards. */
static void write_use(void *ctx, uint32_t node, uint32_t value) {
  opi_uses *uses = ctx;
  uses->users[uses->first[value]++] = node;
}

opipe_status opi_graph_uses(const opi_graph *graph, opi_arena *arena, opi_uses *out_uses,
                            opipe_error *err) {
  const size_t n_first = (size_t)graph->n_values + 1;
  opi_uses uses = {OPI_ARENA_ARRAY(arena, uint32_t, n_first), NULL};
  if (uses.first == NULL)
    return opi_fail_nomem(err, n_first * 4, "uses of values");
  for (uint32_t n = 0; n < graph->n_nodes; ++n)
    visit_reads(graph, n, count_use, &uses);
  for (uint32_t v = 0; v < graph->n_values; ++v)
    uses.first[v + 1] += uses.first[v];
  const uint32_t total = uses.first[graph->n_values];
  uses.users = OPI_ARENA_ARRAY(arena, uint32_t, total);
  if (uses.users == NULL)
    return opi_fail_nomem(err, (uint64_t)total * 4, "uses of values");
  for (uint32_t n = 0; n < graph->n_nodes; ++n)
    visit_reads(graph, n, write_use, &uses);
  for (uint32_t v = graph->n_values; v > 0; --v)
    uses.first[v] = uses.first[v - 1];
  uses.first[0] = 0;
  *out_uses = uses;
  return OPIPE_OK;
}

typedef struct heap {
  uint32_t *items;
  uint32_t n;
} heap;

static void heap_push(heap *h, uint32_t item) {
  uint32_t i = h->n++;
  while (i > 0 && h->items[(i - 1) / 2] > item) {
    h->items[i] = h->items[(i - 1) / 2];
    i = (i - 1) / 2;
  }
  h->items[i] = item;
}

static uint32_t heap_pop(heap *h) {
  const uint32_t top = h->items[0], last = h->items[--h->n];
  uint32_t i = 0;
  for (;;) {
    uint32_t child = 2 * i + 1;
    if (child >= h->n)
      break;
    if (child + 1 < h->n && h->items[child + 1] < h->items[child])
      ++child;
    if (h->items[child] >= last)
      break;
    h->items[i] = h->items[child];
    i = child;
  }
  h->items[i] = last;
  return top;
}

typedef struct sorter {
  opi_graph *graph;
  uint32_t *missing; /* [n_nodes] inputs that are not made yet */
  uint32_t *order;   /* [n_nodes] old index of each new place */
  uint32_t n;
  heap ready;
} sorter;

static void count_missing(void *ctx, uint32_t node, uint32_t value) {
  sorter *s = ctx;
  if (s->graph->values[value].producer != OPIPE_NONE)
    ++s->missing[node];
}

typedef struct step_back {
  const sorter *s;
  uint32_t found;
} step_back;

static void find_waiting(void *ctx, uint32_t node, uint32_t value) {
  (void)node;
  step_back *step = ctx;
  const uint32_t p = step->s->graph->values[value].producer;
  if (step->found == OPIPE_NONE && p != OPIPE_NONE && step->s->missing[p] != 0)
    step->found = p;
}

/* Walks back from any node that waits: after n_nodes steps it is on a cycle; then once around. */
static opipe_status report_cycle(const sorter *s, opipe_error *err) {
  const opi_graph *graph = s->graph;
  uint32_t at = 0;
  while (s->missing[at] == 0)
    ++at;
  step_back step = {s, OPIPE_NONE};
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    step.found = OPIPE_NONE;
    visit_reads(graph, at, find_waiting, &step);
    at = step.found;
  }
  opi_text text;
  opi_text_init(&text, graph->arena->allocator);
  uint32_t around = at;
  do {
    opi_text_printf(&text, "'%s' needs ", graph->nodes[around].name);
    step.found = OPIPE_NONE;
    visit_reads(graph, around, find_waiting, &step);
    around = step.found;
  } while (around != at && text.n < 300);
  opi_text_printf(&text, "%s'%s'", around == at ? "" : "... ", graph->nodes[at].name);
  const opipe_status status =
      opi_fail(err, OPIPE_E_INVALID, "graph '%s' has a cycle: node %s", graph->name,
               text.failed || text.data == NULL ? graph->nodes[at].name : text.data);
  opi_text_release(&text);
  return status;
}

static opipe_status apply_order(sorter *s, opipe_error *err) {
  opi_graph *graph = s->graph;
  opi_node *sorted = OPI_ARENA_ARRAY(graph->arena, opi_node, graph->n_nodes);
  if (sorted == NULL)
    return opi_fail_nomem(err, graph->n_nodes * sizeof(*sorted), "sorted nodes");
  for (uint32_t i = 0; i < graph->n_nodes; ++i) {
    sorted[i] = graph->nodes[s->order[i]];
    for (uint32_t o = 0; o < sorted[i].n_out; ++o) {
      if (sorted[i].out[o] != OPIPE_NONE)
        graph->values[sorted[i].out[o]].producer = i;
    }
  }
  graph->nodes = sorted;
  graph->room_nodes = graph->n_nodes;
  return OPIPE_OK;
}

static bool is_sorted(const sorter *s) {
  for (uint32_t i = 0; i < s->n; ++i) {
    if (s->order[i] != i)
      return false;
  }
  return true;
}

static void release_users(sorter *s, const opi_uses *uses, const opi_node *node) {
  for (uint32_t o = 0; o < node->n_out; ++o) {
    const uint32_t v = node->out[o];
    if (v == OPIPE_NONE)
      continue;
    for (uint32_t u = uses->first[v]; u < uses->first[v + 1]; ++u) {
      if (--s->missing[uses->users[u]] == 0)
        heap_push(&s->ready, uses->users[u]);
    }
  }
}

opipe_status opi_graph_sort(opi_graph *graph, opipe_error *err) {
  opi_arena scratch;
  opi_arena_init(&scratch, graph->arena->allocator, 0);
  sorter s = {.graph = graph};
  opi_uses uses;
  opipe_status status = opi_graph_uses(graph, &scratch, &uses, err);
  if (status < 0)
    goto done;
  s.missing = OPI_ARENA_ARRAY(&scratch, uint32_t, graph->n_nodes);
  s.order = OPI_ARENA_ARRAY(&scratch, uint32_t, graph->n_nodes);
  s.ready.items = OPI_ARENA_ARRAY(&scratch, uint32_t, graph->n_nodes);
  if (s.missing == NULL || s.order == NULL || s.ready.items == NULL) {
    status = opi_fail_nomem(err, (uint64_t)graph->n_nodes * 12, "sorting nodes");
    goto done;
  }
  for (uint32_t n = 0; n < graph->n_nodes; ++n)
    visit_reads(graph, n, count_missing, &s);
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    if (s.missing[n] == 0)
      heap_push(&s.ready, n);
  }
  while (s.ready.n > 0) {
    const uint32_t n = heap_pop(&s.ready);
    s.order[s.n++] = n;
    release_users(&s, &uses, &graph->nodes[n]);
  }
  if (s.n < graph->n_nodes)
    status = report_cycle(&s, err);
  else if (!is_sorted(&s))
    status = apply_order(&s, err);
done:
  opi_arena_release(&scratch);
  return status;
}
