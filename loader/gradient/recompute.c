/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses what is made again, and clones it: see recompute.h. */
#include "loader/gradient/recompute.h"

#include <stdlib.h>
#include <string.h>

/* -- the choice -------------------------------------------------------------------------------- */

/* Where the values of one stage are made and last read, by place among the stage's nodes. */
typedef struct lives {
  uint32_t *nodes; /* [n] of the stage */
  uint32_t n;
  uint32_t *made, *last; /* [n_forward_values] places; last: n where a later stage reads it */
  uint32_t *uses;        /* [n_forward_values] */
} lives;

static void find_lives(const opi_grad_state *s, uint32_t stage, lives *l) {
  const opi_graph *graph = s->training->graph;
  memset(l->made, 0xff, s->n_forward_values * sizeof(*l->made));
  memset(l->uses, 0, s->n_forward_values * sizeof(*l->uses));
  l->n = 0;
  for (uint32_t n = 0; n < s->n_forward_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    const bool mine = s->stage[n] == stage;
    for (uint32_t i = 0; i < node->n_in; ++i) {
      const uint32_t v = node->in[i];
      if (v == OPIPE_NONE || l->made[v] == OPIPE_NONE)
        continue;
      l->last[v] = mine ? l->n : UINT32_MAX;
      ++l->uses[v];
    }
    for (uint32_t o = 0; o < node->n_out && mine; ++o) {
      if (node->out[o] != OPIPE_NONE)
        l->made[node->out[o]] = l->last[node->out[o]] = l->n;
    }
    if (mine)
      l->nodes[l->n++] = n;
  }
}

/* Does v carry gradients and go from one part of the stage to the next, not along all of it (as an
 * encoder's output does)? */
static bool is_trunk(const opi_grad_state *s, const lives *l, uint32_t v) {
  const uint8_t both = OPI_V_WANTED | OPI_V_REACHES;
  if ((s->flags[v] & both) != both || (s->flags[v] & OPI_V_CONSTANT) != 0)
    return false;
  const uint32_t end = l->last[v] < l->n ? l->last[v] : l->n;
  return l->uses[v] < 3 || (end - l->made[v]) <= l->n / 4 + 8;
}

static bool crosses(const lives *l, uint32_t v, uint32_t place) {
  return l->made[v] != OPIPE_NONE && l->made[v] <= place && l->last[v] > place;
}

/* Keeps what crosses the cheapest place of each run of places that one trunk value alone crosses.
 */
static void keep_narrow(const opi_grad_state *s, const lives *l, uint32_t *trunks, uint64_t *bytes,
                        bool *kept) {
  const opi_graph *graph = s->training->graph;
  memset(trunks, 0, (l->n + 1) * sizeof(*trunks));
  memset(bytes, 0, (l->n + 1) * sizeof(*bytes));
  for (uint32_t v = 0; v < s->n_forward_values; ++v) {
    if (l->made[v] == OPIPE_NONE || (s->flags[v] & OPI_V_CONSTANT) != 0)
      continue;
    for (uint32_t p = l->made[v]; p < l->n && p < l->last[v]; ++p) {
      trunks[p] += is_trunk(s, l, v);
      bytes[p] += graph->values[v].n_bytes;
    }
  }
  for (uint32_t p = 0; p < l->n; ++p) {
    if (trunks[p] != 1)
      continue;
    uint32_t best = p;
    for (; p + 1 < l->n && trunks[p + 1] == 1; ++p) {
      if (bytes[p + 1] <= bytes[best])
        best = p + 1;
    }
    for (uint32_t v = 0; v < s->n_forward_values; ++v)
      kept[v] = kept[v] || (crosses(l, v, best) && (s->flags[v] & OPI_V_CONSTANT) == 0);
  }
}

static opipe_status choose_blocks(opi_grad_state *s, opi_recompute *out, opipe_error *err) {
  opi_arena *arena = &s->scratch;
  const uint32_t n = s->n_forward_nodes, n_values = s->n_forward_values;
  lives l = {.nodes = OPI_ARENA_ARRAY(arena, uint32_t, n),
             .made = OPI_ARENA_ARRAY(arena, uint32_t, n_values),
             .last = OPI_ARENA_ARRAY(arena, uint32_t, n_values),
             .uses = OPI_ARENA_ARRAY(arena, uint32_t, n_values)};
  uint32_t *trunks = OPI_ARENA_ARRAY(arena, uint32_t, n + 1);
  uint64_t *bytes = OPI_ARENA_ARRAY(arena, uint64_t, n + 1);
  if (l.nodes == NULL || l.made == NULL || l.last == NULL || l.uses == NULL || trunks == NULL ||
      bytes == NULL)
    return opi_fail_nomem(err, n_values * 12u + n * 16u, "recomputation");
  for (uint32_t stage = 0; stage < s->n_stages; ++stage) {
    find_lives(s, stage, &l);
    keep_narrow(s, &l, trunks, bytes, out->kept);
  }
  memset(out->chosen, 1, n * sizeof(bool));
  return OPIPE_OK;
}

static int by_text(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Notes the values kept for the graphs that are built later. */
static opipe_status note_blocks(const opi_grad_state *s, const bool *kept, opi_kept_blocks *out,
                                opipe_error *err) {
  const opi_graph *graph = s->training->graph;
  out->names = OPI_ARENA_ARRAY(out->arena, const char *, (size_t)s->n_forward_values + 1);
  if (out->names == NULL)
    return opi_fail_nomem(err, s->n_forward_values * sizeof(char *), "recomputation");
  for (uint32_t v = 0; v < s->n_forward_values; ++v) {
    if (!kept[v])
      continue;
    out->names[out->n] = opi_arena_strdup(out->arena, graph->values[v].name);
    if (out->names[out->n++] == NULL)
      return opi_fail_nomem(err, strlen(graph->values[v].name), "recomputation");
  }
  qsort(out->names, out->n, sizeof *out->names, by_text);
  return OPIPE_OK;
}

static void repeat_blocks(const opi_grad_state *s, const opi_kept_blocks *blocks, bool *out_kept) {
  for (uint32_t v = 0; v < s->n_forward_values; ++v) {
    const char *name = s->training->graph->values[v].name;
    out_kept[v] = bsearch(&name, blocks->names, blocks->n, sizeof *blocks->names, by_text) != NULL;
  }
}

static opipe_status share_blocks(opi_grad_state *s, opi_recompute *out, opipe_error *err) {
  opi_kept_blocks *blocks = s->options->blocks;
  if (blocks != NULL && blocks->names != NULL) {
    repeat_blocks(s, blocks, out->kept);
    memset(out->chosen, 1, s->n_forward_nodes * sizeof(bool));
    return OPIPE_OK;
  }
  OPI_TRY(choose_blocks(s, out, err));
  return blocks == NULL ? OPIPE_OK : note_blocks(s, out->kept, blocks, err);
}

static bool is_product(const opi_node *node) {
  return opi_op_of(node)->kind == OPI_KIND_PRODUCT;
}

/* Scores: as many elements as the probabilities. */
static bool is_as_large(const opi_grad_state *s, uint32_t v, uint32_t other) {
  const opi_graph *graph = s->training->graph;
  return opi_k_elems_of(graph, v) == opi_k_elems_of(graph, other);
}

/* Nodes between a product that makes scores and the Softmax, both with it; true: found one. */
static bool mark_scores(const opi_grad_state *s, uint32_t softmax, uint32_t *stack, bool *marks) {
  const opi_graph *graph = s->training->graph;
  const uint32_t like = graph->nodes[softmax].out[0];
  uint32_t n = 0;
  bool found = false;
  stack[n++] = softmax;
  marks[softmax] = true;
  while (n != 0) {
    const opi_node *node = &graph->nodes[stack[--n]];
    if (is_product(node)) {
      found = true;
      continue;
    }
    for (uint32_t i = 0; i < node->n_in; ++i) {
      const uint32_t p =
          node->in[i] == OPIPE_NONE ? OPIPE_NONE : graph->values[node->in[i]].producer;
      if (p == OPIPE_NONE || p >= s->n_forward_nodes || marks[p] ||
          !is_as_large(s, node->in[i], like))
        continue;
      marks[p] = true;
      stack[n++] = p;
    }
  }
  return found;
}

/* Nodes between the Softmax and the product that reads probabilities, without it; true: found one.
 */
static bool mark_probabilities(const opi_grad_state *s, uint32_t softmax, bool *marks) {
  const opi_graph *graph = s->training->graph;
  const uint32_t like = graph->nodes[softmax].out[0];
  bool found = false;
  for (uint32_t n = softmax + 1; n < s->n_forward_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    bool reads = false;
    for (uint32_t i = 0; i < node->n_in && !reads; ++i) {
      const uint32_t p =
          node->in[i] == OPIPE_NONE ? OPIPE_NONE : graph->values[node->in[i]].producer;
      reads =
          p != OPIPE_NONE && p >= softmax && p < n && marks[p] && is_as_large(s, node->in[i], like);
    }
    found = found || (reads && is_product(node));
    marks[n] = marks[n] || (reads && !is_product(node) && is_as_large(s, node->out[0], like));
  }
  return found;
}

static opipe_status choose_attention(opi_grad_state *s, opi_recompute *out, opipe_error *err) {
  const opi_graph *graph = s->training->graph;
  bool *marks = OPI_ARENA_ARRAY(&s->scratch, bool, s->n_forward_nodes);
  if (marks == NULL)
    return opi_fail_nomem(err, s->n_forward_nodes, "recomputation");
  for (uint32_t n = 0; n < s->n_forward_nodes; ++n) {
    if (opi_op_of(&graph->nodes[n])->kind != OPI_KIND_SOFTMAX)
      continue;
    memset(marks, 0, s->n_forward_nodes * sizeof(*marks));
    if (!mark_scores(s, n, out->stack, marks) || !mark_probabilities(s, n, marks))
      continue;
    for (uint32_t k = 0; k < s->n_forward_nodes; ++k)
      out->chosen[k] = out->chosen[k] || marks[k];
  }
  return OPIPE_OK;
}

/* Casts and transposes of weights: never kept for every micro-batch in flight. */
static bool makes_constants(const opi_grad_state *s, const opi_node *node) {
  bool all = node->n_out != 0;
  for (uint32_t o = 0; o < node->n_out; ++o)
    all = all && (node->out[o] == OPIPE_NONE || (s->flags[node->out[o]] & OPI_V_CONSTANT) != 0);
  return all;
}

/* A half type widened to fp32: what it was made of is half as large. */
static bool widens(const opi_grad_state *s, const opi_node *node) {
  const opi_graph *graph = s->training->graph;
  if (opi_op_of(node)->takes != OPI_TAKES_CAST || node->in[0] == OPIPE_NONE)
    return false;
  const uint32_t from = graph->values[node->in[0]].dtype, to = graph->values[node->out[0]].dtype;
  return to == OPIPE_FLOAT && (from == OPIPE_BFLOAT16 || from == OPIPE_FLOAT16);
}

/* Rows of all members of a tensor group, for products whose parameters are divided: the gradients
 * of these gather them again (Korthikanti et al. 2022, section 4.2.2), so that each member keeps
 * its own. */
static bool gathers_rows(const opi_node *node) {
  return opi_op_of(node)->kind == OPI_KIND_COLLECTIVE && opi_attr_int(node, "sum", 0) != 0;
}

/* The elements of what is made again, in another shape: kept, they would be kept for the first. */
static bool is_form_of_lost(const opi_grad_state *s, const opi_recompute *again, uint32_t n) {
  const opi_graph *graph = s->training->graph;
  const opi_node *node = &graph->nodes[n];
  if (opi_op_of(node)->takes != OPI_TAKES_FORM || node->n_in == 0 || node->in[0] == OPIPE_NONE)
    return false;
  const uint32_t v = node->in[0], p = graph->values[v].producer;
  return p != OPIPE_NONE && p < n && again->chosen[p] && !again->kept[v] &&
         s->stage[p] == s->stage[n];
}

static bool is_form_of_rows(const opi_grad_state *s, const opi_recompute *again, uint32_t n) {
  const opi_graph *graph = s->training->graph;
  const opi_node *node = &graph->nodes[n];
  if (opi_op_of(node)->takes != OPI_TAKES_FORM || node->n_in == 0 || node->in[0] == OPIPE_NONE)
    return false;
  const uint32_t p = graph->values[node->in[0]].producer;
  return p != OPIPE_NONE && p < n && again->rows[p] && s->stage[p] == s->stage[n];
}

/* Room for clones of what gathers rows of gradients. */
static opipe_status choose_gradients(opi_grad_state *s, const bool *alive, opi_recompute *out,
                                     opipe_error *err) {
  const opi_graph *graph = s->training->graph;
  if (s->options->apart == NULL)
    return OPIPE_OK;
  out->n_values = graph->n_values;
  out->gradients = OPI_ARENA_ARRAY(&s->scratch, bool, 2 * (size_t)graph->n_nodes + out->n_chosen);
  out->of_gradient = OPI_ARENA_ARRAY(&s->scratch, uint32_t, (size_t)graph->n_values + 1);
  if (out->gradients == NULL || out->of_gradient == NULL)
    return opi_fail_nomem(err, graph->n_values * 4u + graph->n_nodes * 2u, "recomputation");
  memset(out->of_gradient, 0xff, graph->n_values * sizeof(*out->of_gradient));
  out->in_inputs = OPI_ARENA_ARRAY(&s->scratch, bool, (size_t)graph->n_values + 1);
  if (out->in_inputs == NULL)
    return opi_fail_nomem(err, graph->n_values, "recomputation");
  for (uint32_t n = s->n_forward_nodes; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    out->n_chosen += gathers_rows(node) || opi_op_of(node)->takes == OPI_TAKES_FORM;
    for (uint32_t i = 0; alive[n] && node->pass == OPIPE_PASS_BACKWARD_INPUT && i < node->n_in;
         ++i) {
      if (node->in[i] != OPIPE_NONE)
        out->in_inputs[node->in[i]] = true;
    }
  }
  return OPIPE_OK;
}

/* Gathers what another stage sent. By blocks it is kept, as what a stage receives is. */
static bool is_arrival(const opi_grad_state *s, uint32_t n) {
  const opi_graph *graph = s->training->graph;
  const opi_node *node = &graph->nodes[n];
  if (opi_op_of(node)->kind != OPI_KIND_COLLECTIVE || gathers_rows(node))
    return false;
  const uint32_t p = graph->values[node->in[0]].producer;
  return p != OPIPE_NONE && p < n && s->stage[p] != s->stage[n];
}

opipe_status opi_recompute_choose(opi_grad_state *s, const bool *alive, opi_recompute *out,
                                  opipe_error *err) {
  const uint32_t n = s->n_forward_nodes;
  memset(out, 0, sizeof(*out));
  out->chosen = OPI_ARENA_ARRAY(&s->scratch, bool, n);
  out->kept = OPI_ARENA_ARRAY(&s->scratch, bool, s->n_forward_values);
  out->rows = OPI_ARENA_ARRAY(&s->scratch, bool, n);
  out->clone = OPI_ARENA_ARRAY(&s->scratch, uint32_t, 2 * (size_t)s->n_forward_values);
  out->stack = OPI_ARENA_ARRAY(&s->scratch, uint32_t, n + 1);
  if (out->chosen == NULL || out->kept == NULL || out->rows == NULL || out->clone == NULL ||
      out->stack == NULL)
    return opi_fail_nomem(err, s->n_forward_values * 9u + n * 6u, "recomputation");
  memset(out->clone, 0xff, 2 * (size_t)s->n_forward_values * sizeof(uint32_t));
  switch (s->options->recompute) {
    case OPI_RECOMPUTE_NONE:
      break;
    case OPI_RECOMPUTE_STAGE:
      memset(out->chosen, 1, n * sizeof(bool));
      break;
    case OPI_RECOMPUTE_BLOCK:
      OPI_TRY(share_blocks(s, out, err));
      break;
    case OPI_RECOMPUTE_ATTENTION:
      OPI_TRY(choose_attention(s, out, err));
      break;
    default:
      return opi_fail(err, OPIPE_E_INVALID, "recomputation %u is not known", s->options->recompute);
  }
  for (uint32_t k = 0; k < n; ++k) {
    const opi_node *node = &s->training->graph->nodes[k];
    if (s->options->recompute == OPI_RECOMPUTE_BLOCK && is_arrival(s, k))
      out->chosen[k] = false;
    out->chosen[k] = out->chosen[k] || makes_constants(s, node) || widens(s, node) ||
                     gathers_rows(node) || is_form_of_lost(s, out, k);
    out->rows[k] = gathers_rows(node) || is_form_of_rows(s, out, k);
    out->n_chosen += out->chosen[k] + out->rows[k]; /* room for one clone of each in I and in W */
  }
  return choose_gradients(s, alive, out, err);
}

/* -- clones ------------------------------------------------------------------------------------ */

/* Where the clone of a value is noted, for a reader in W or elsewhere. */
static uint32_t *clone_of(const opi_grad_state *s, const opi_recompute *again, uint32_t v,
                          bool weight) {
  const uint32_t p = s->training->graph->values[v].producer;
  const bool rows = weight && p != OPIPE_NONE && p < s->n_forward_nodes && again->rows[p];
  return &again->clone[(rows ? s->n_forward_values : 0) + v];
}

/* Is there a clone's output for v in `stage`, where v was made? */
static bool is_remade(const opi_grad_state *s, const opi_recompute *again, uint32_t v,
                      uint32_t stage, bool weight) {
  return v != OPIPE_NONE && v < s->n_forward_values &&
         *clone_of(s, again, v, weight) != OPIPE_NONE &&
         s->stage[s->training->graph->values[v].producer] == stage;
}

/* Appends a copy of node n of the new array, with the same inputs and new outputs. */
static opipe_status copy_node(const opi_grad_state *s, opi_recompute *again, uint32_t n,
                              bool weight, opipe_error *err) {
  opi_graph *graph = s->training->graph;
  opi_arena *arena = graph->arena;
  const uint32_t at = again->n_nodes;
  const char *form = weight ? "%s/weights/again" : "%s/again";
  opi_node *to = &again->nodes[at];
  *to = again->nodes[n];
  to->name = opi_arena_printf(arena, form, to->name);
  to->in = opi_arena_copy(arena, to->in, to->n_in * sizeof(uint32_t));
  to->out = opi_arena_copy(arena, to->out, to->n_out * sizeof(uint32_t));
  if (to->name == NULL || to->in == NULL || to->out == NULL)
    return opi_fail_nomem(err, sizeof(*to), "a node made again");
  to->pass = weight ? OPIPE_PASS_BACKWARD_WEIGHT : OPIPE_PASS_BACKWARD_INPUT;
  for (uint32_t o = 0; o < to->n_out; ++o) {
    if (to->out[o] == OPIPE_NONE)
      continue;
    const opi_value from = graph->values[to->out[o]];
    const char *name = opi_arena_printf(arena, form, from.name);
    const uint32_t made = name == NULL
                              ? OPIPE_NONE
                              : opi_graph_add_value(graph, name, from.dtype, from.shape, from.rank);
    if (made == OPIPE_NONE)
      return opi_fail_nomem(err, sizeof(from), "a value made again");
    graph->values[made].n_bytes = from.n_bytes;
    graph->values[made].producer = at;
    to->out[o] = made;
  }
  ++again->n_nodes;
  return OPIPE_OK;
}

/* weight: of gathered rows, for W. Forward nodes keep their places in the new array. */
static opipe_status write_clone(const opi_grad_state *s, opi_recompute *again, uint32_t n,
                                bool weight, opipe_error *err) {
  const uint32_t at = again->n_nodes;
  OPI_TRY(copy_node(s, again, n, weight, err));
  opi_node *to = &again->nodes[at];
  for (uint32_t i = 0; i < to->n_in; ++i) {
    if (is_remade(s, again, to->in[i], s->stage[n], weight))
      to->in[i] = *clone_of(s, again, to->in[i], weight);
  }
  for (uint32_t o = 0; o < to->n_out; ++o) {
    const uint32_t v = again->nodes[n].out[o];
    if (v != OPIPE_NONE && !again->kept[v])
      *clone_of(s, again, v, weight) = to->out[o];
  }
  s->training->anchor[at] = n;
  s->training->stage[at] = s->stage[n];
  return OPIPE_OK;
}

/* Is v made in `stage` by a node that is to be made again? */
static bool is_lost(const opi_grad_state *s, const opi_recompute *again, uint32_t v, uint32_t stage,
                    bool weight) {
  if (v == OPIPE_NONE || v >= s->n_forward_values || *clone_of(s, again, v, weight) != OPIPE_NONE ||
      again->kept[v])
    return false;
  const uint32_t p = s->training->graph->values[v].producer;
  return p != OPIPE_NONE && p < s->n_forward_nodes && again->chosen[p] && s->stage[p] == stage;
}

/* A node whose clone is due; the highest bit: as one of gathered rows in W. */
enum { IN_WEIGHTS = 31 };

static uint32_t due(const opi_grad_state *s, const opi_recompute *again, uint32_t v, bool weight) {
  const uint32_t n = s->training->graph->values[v].producer;
  return n | (uint32_t)(weight && again->rows[n]) << IN_WEIGHTS;
}

/* Pushes a node that makes what the clone of the last one reads. False: none is needed. */
static bool push_deeper(const opi_grad_state *s, const opi_recompute *again, uint32_t stage,
                        uint32_t *io_n) {
  const uint32_t last = again->stack[*io_n - 1];
  const bool weight = last >> IN_WEIGHTS != 0;
  const opi_node *node = &again->nodes[last & ~(1u << IN_WEIGHTS)];
  for (uint32_t k = 0; k < node->n_in; ++k) {
    if (!is_lost(s, again, node->in[k], stage, weight))
      continue;
    again->stack[(*io_n)++] = due(s, again, node->in[k], weight);
    return true;
  }
  return false;
}

/* -- rows of gradients ------------------------------------------------------------------------- */

/* Is v made by a node of the new array that gathers rows of gradients in I? */
static bool is_gathered_gradient(const opi_grad_state *s, const opi_recompute *again, uint32_t v,
                                 uint32_t stage) {
  const opi_training *t = s->training;
  if (again->gradients == NULL || v == OPIPE_NONE || v >= again->n_values ||
      v < s->n_forward_values)
    return false;
  const uint32_t p = t->graph->values[v].producer;
  return p != OPIPE_NONE && p < again->n_nodes && again->gradients[p] && t->stage[p] == stage;
}

void opi_recompute_behind(const opi_grad_state *s, opi_recompute *again) {
  const uint32_t at = again->n_nodes - 1, stage = s->training->stage[at];
  const opi_node *node = &again->nodes[at];
  if (again->gradients == NULL || !s->options->apart[stage] ||
      node->pass != OPIPE_PASS_BACKWARD_INPUT || !again->in_inputs[node->out[0]])
    return;
  again->gradients[at] =
      gathers_rows(node) || (opi_op_of(node)->takes == OPI_TAKES_FORM && node->n_in != 0 &&
                             is_gathered_gradient(s, again, node->in[0], stage));
}

/* W's own clones of gathered gradient v, from the gather to v's form of it. */
static opipe_status gather_again(const opi_grad_state *s, opi_recompute *again, uint32_t v,
                                 uint32_t stage, opipe_error *err) {
  opi_training *t = s->training;
  while (again->of_gradient[v] == OPIPE_NONE) {
    uint32_t next = v; /* the first that has no clone, in front of v */
    for (uint32_t in = v;
         is_gathered_gradient(s, again, in, stage) && again->of_gradient[in] == OPIPE_NONE;
         in = again->nodes[t->graph->values[in].producer].in[0])
      next = in;
    const uint32_t n = t->graph->values[next].producer, at = again->n_nodes;
    OPI_TRY(copy_node(s, again, n, true, err));
    opi_node *to = &again->nodes[at];
    if (is_gathered_gradient(s, again, to->in[0], stage))
      to->in[0] = again->of_gradient[to->in[0]];
    again->of_gradient[next] = to->out[0];
    t->anchor[at] = t->anchor[n];
    t->stage[at] = stage;
  }
  return OPIPE_OK;
}

/* Gathers again whatever W reads of gathered rows of gradients. */
static opipe_status gather_gradients(const opi_grad_state *s, opi_recompute *again,
                                     const opi_node *node, uint32_t stage, opipe_error *err) {
  for (uint32_t i = 0; node->pass == OPIPE_PASS_BACKWARD_WEIGHT && i < node->n_in; ++i) {
    if (!is_gathered_gradient(s, again, node->in[i], stage))
      continue;
    OPI_TRY(gather_again(s, again, node->in[i], stage, err));
    node->in[i] = again->of_gradient[node->in[i]];
  }
  return OPIPE_OK;
}

opipe_status opi_recompute_before(opi_grad_state *s, opi_recompute *again, const opi_node *node,
                                  uint32_t stage, opipe_error *err) {
  const bool weight = node->pass == OPIPE_PASS_BACKWARD_WEIGHT;
  if (again->n_chosen == 0)
    return OPIPE_OK;
  OPI_TRY(gather_gradients(s, again, node, stage, err));
  uint32_t *stack = again->stack, n_stack = 0;
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (!is_lost(s, again, node->in[i], stage, weight))
      continue;
    stack[n_stack++] = due(s, again, node->in[i], weight);
    while (n_stack != 0) { /* depth first: a chain never holds a node twice */
      if (push_deeper(s, again, stage, &n_stack))
        continue;
      const uint32_t last = stack[--n_stack];
      OPI_TRY(write_clone(s, again, last & ~(1u << IN_WEIGHTS), last >> IN_WEIGHTS != 0, err));
    }
  }
  for (uint32_t i = 0; i < node->n_in; ++i) {
    const uint32_t v = node->in[i];
    if (is_remade(s, again, v, stage, weight))
      node->in[i] = *clone_of(s, again, v, weight);
  }
  return OPIPE_OK;
}
