/* SPDX-License-Identifier: Apache-2.0 */
/* Which initializers are trained, and why.
 *
 * Candidates are floats on a differentiable path to the loss. They are told apart, in this order,
 * by
 * - the file's metadata of parameters and buffers (loader/passes/origins.c)
 * - use: weights of products and norms are trained, except ones and zeros under an exporter's name
 * - place (column `meets`): exponents, bounds, fill values, tables that reach the loss only through
 *   Sin, Cos or as those of a RotaryEmbedding, running statistics, and means or deviations applied
 *   to a graph input are not trained
 * - numbers: masks, sines, slopes of ALiBi, slopes on integers, coordinates, repeated factors are
 *   not trained
 * - name: constants that an exporter named after a node ("unsqueeze_11"), or counted ("c_12"), are
 *   not trained if their numbers are equal, few, plain or from a function
 *
 * A literal (one element, unless it is the scale or the bias of a norm, a product or a convolution)
 * is not trained. A plain number among named parameters is a literal if it only scales or shifts
 * terms of the loss, and doubtful elsewhere. Globs come after, the last match wins; one-element
 * initializers and running statistics are taken by their full name only.
 */
#include <math.h>
#include <string.h>

#include "loader/gradient/roles.h"
#include "loader/gradient/values.h"
#include "loader/ops/kit.h"
#include "loader/passes/keep.h"

static bool is_float(const opi_graph *graph, uint32_t v) {
  return v != OPIPE_NONE && opi_dtype_is_float(graph->values[v].dtype);
}

/* From the loss backwards: what reaches it over differentiable edges. */
static void mark_reach(opi_grad_state *s) {
  const opi_graph *graph = s->training->graph;
  s->flags[s->training->loss] |= OPI_V_REACHES | OPI_V_DIRECT;
  for (uint32_t n = graph->n_nodes; n-- > 0;) {
    const opi_node *node = &graph->nodes[n];
    const opi_op *op = opi_op_of(node);
    uint8_t reach = 0;
    for (uint32_t o = 0; o < node->n_out; ++o) {
      if (is_float(graph, node->out[o]))
        reach |= s->flags[node->out[o]] & (OPI_V_REACHES | OPI_V_DIRECT);
    }
    if (op->meets == OPI_MEETS_ANGLES)
      reach &= (uint8_t)~OPI_V_DIRECT;
    const bool tables = op->meets == OPI_MEETS_TABLES; /* of Cos and Sin */
    for (uint32_t i = 0; i < node->n_in && reach != 0; ++i) {
      if (is_float(graph, node->in[i]) && !opi_grad_stops(op, i))
        s->flags[node->in[i]] |= tables && i > 0 ? reach & (uint8_t)~OPI_V_DIRECT : reach;
    }
  }
}

static bool is_layer(const opi_op *op) {
  return op->meets == OPI_MEETS_LAYER || op->meets == OPI_MEETS_NORM ||
         op->meets == OPI_MEETS_BATCH_NORM || op->meets == OPI_MEETS_GROUP_NORM;
}

/* One element, but the scale or bias of a layer that happens to be one wide. */
static bool is_layer_part(const opi_graph *graph, uint32_t v) {
  if (graph->values[v].rank != 1)
    return false;
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    for (uint32_t i = 0; i < node->n_in; ++i) {
      if (node->in[i] != v)
        continue;
      if (i > 0 && is_layer(opi_op_of(node)))
        return true;
      const uint32_t other = node->n_in == 2 ? node->in[1 - i] : OPIPE_NONE;
      const uint32_t p = other == OPIPE_NONE ? OPIPE_NONE : graph->values[other].producer;
      if (strcmp(node->op, "Add") == 0 && p != OPIPE_NONE &&
          strcmp(graph->nodes[p].op, "MatMul") == 0 &&
          graph->values[other].shape[graph->values[other].rank - 1] == 1)
        return true;
    }
  }
  return false;
}

static bool is_statistic(const opi_graph *graph, uint32_t v) {
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    if (opi_op_of(node)->meets != OPI_MEETS_BATCH_NORM)
      continue;
    if (opi_node_in(node, 3) == v || opi_node_in(node, 4) == v)
      return true;
  }
  return false;
}

/* More than one dimension is longer than 1: no bias, which may well be given two numbers at first.
 */
static bool is_wide(const opi_value *value) {
  uint32_t n = 0;
  for (int32_t d = 0; d < value->rank; ++d)
    n += value->shape[d] > 1;
  return n > 1;
}

/* A value that only a module's buffer or an exporter has, whatever its name: the reason, or
 * OPI_TRAINED. */
static uint32_t by_values(const opi_value *value, uint32_t roles, bool made) {
  const bool scores = (roles & OPI_ROLE_SCORE) != 0;
  if (opi_values_mask(value))
    return OPI_NOT_MASK;
  const bool firm = (roles & (OPI_ROLE_WEIGHT | OPI_ROLE_NORM)) != 0;
  if ((made || (!firm && is_wide(value))) && opi_k_elems(value) >= 4 && opi_values_two(value))
    return OPI_NOT_MASK;
  if (firm)
    return OPI_TRAINED;
  if (made && scores && opi_values_masked(value))
    return OPI_NOT_MASK;
  if (opi_values_pairs(value) || opi_values_wave(value))
    return OPI_NOT_TABLE;
  if ((scores || made) && opi_values_affine(value))
    return OPI_NOT_TABLE;
  if ((roles & OPI_ROLE_COUNT) != 0 && (made || opi_values_slopes(value)))
    return OPI_NOT_FACTOR;
  if ((roles & OPI_ROLE_LEFT) != 0 && opi_values_repeat(value))
    return OPI_NOT_TABLE;
  if (made && opi_values_equal(value))
    return OPI_NOT_MADE;
  return OPI_TRAINED;
}

static void doubt(opi_train_param *p, const char *text) {
  if (p->doubt == NULL)
    p->doubt = text;
}

/* A name that an exporter made up, or that was counted up among constants of every kind. */
static bool is_made(const opi_roles *r, const char *name) {
  const opi_origin *o = opi_roles_origin(r, name);
  return opi_name_is_made(name) || (o != NULL && o->kind == OPI_ORIGIN_COUNTED);
}

/* Parameters of this file are named by modules, and this name is such a one. */
static bool is_named(const opi_roles *r, const char *name) {
  return r->dotted && strchr(name, '.') != NULL && !is_made(r, name);
}

/* A row [1, ..., V] on top of the logits, under a name that no layer has: final_logits_bias. */
static bool is_logits_row(const opi_roles *r, const opi_value *value, uint32_t roles) {
  return (roles & OPI_ROLE_JUDGED) != 0 && value->rank > 1 &&
         (double)value->shape[value->rank - 1] == opi_k_elems(value) && r->dotted &&
         strchr(value->name, '.') == NULL;
}

/* One plain number ("one", "half") beside parameters that layers named. */
static bool is_stray(const opi_roles *r, const opi_value *value) {
  return r->dotted && strchr(value->name, '.') == NULL && !is_made(r, value->name) &&
         value->data != NULL && opi_number_is_plain(value);
}

/* A whole number or its inverse, of rank 0, that a module keeps as a factor ("act.beta", 0.5):
 * scales that are learned begin with 0 or 1, or are tensors of rank 1. */
static bool is_kept_factor(const opi_value *value, uint32_t roles) {
  const double x = value->data != NULL ? fabs(opi_known_element(value, 0)) : 1;
  return value->rank == 0 && (roles & OPI_ROLE_SCALE) != 0 && x != 0 && x != 1 &&
         (x == floor(x) || 1 / x == floor(1 / x));
}

/* All uses are of these roles. */
static bool is_only(uint32_t roles, uint32_t wanted) {
  return roles != 0 && (roles & ~(wanted | (uint32_t)OPI_ROLE_HALF)) == 0;
}

/* The verdict by place alone, regardless of the name: a reason, or OPI_TRAINED. */
static uint32_t by_place(const opi_roles *r, const opi_value *value, uint32_t roles,
                         opi_train_param *p) {
  const uint32_t input = OPI_ROLE_INPUT | OPI_ROLE_IMAGE | OPI_ROLE_MEAN | OPI_ROLE_SHIFT |
                         OPI_ROLE_SCALE | OPI_ROLE_COUNT | OPI_ROLE_NUMBER;
  const double n = opi_k_elems(value);
  if (is_only(roles, OPI_ROLE_NUMBER)) {
    if (is_made(r, value->name) || opi_values_two(value) ||
        (value->rank == 0 && !is_named(r, value->name)))
      return OPI_NOT_NUMBER;
    doubt(p, "an exponent or a bound under a name of its own: learned, or a number?");
    return n == 1 && is_named(r, value->name) && value->rank > 0 ? OPI_TRAINED : OPI_NOT_NUMBER;
  }
  if ((roles & OPI_ROLE_INPUT) == 0 || !is_only(roles, input))
    return OPI_TRAINED;
  if (n == 1) {
    if (is_named(r, value->name))
      doubt(p, "one number that scales or shifts a graph input itself, under a layer's name");
    return OPI_NOT_FACTOR;
  }
  if ((roles & OPI_ROLE_MEAN) != 0 || ((roles & OPI_ROLE_IMAGE) != 0 && n <= 4)) {
    if (n > 4)
      doubt(p, "subtracted from a graph input itself, or its divisor: means and deviations?");
    return OPI_NOT_FACTOR;
  }
  return OPI_TRAINED;
}

/* One element: a parameter where a module named it and it scales or shifts an activation. Where it
 * only scales or shifts terms of the loss, training would make these small and no model better: a
 * stray number is none there. */
static uint32_t rule_of_one(const opi_roles *r, const opi_value *value, uint32_t roles,
                            opi_train_param *p) {
  const bool made = is_made(r, value->name);
  const bool computed = made && !opi_name_keeps_numbers(value->name);
  if ((value->flags & OPI_VALUE_KEPT) != 0 && !computed &&
      (roles & ~(uint32_t)OPI_ROLE_COUNT) != 0) {
    if (made)
      doubt(p, "an exporter's name, and a number that no formula gives: taken for a parameter");
    if (is_kept_factor(value, roles)) {
      doubt(p, "a factor that is a whole number or its inverse: taken for a buffer");
      return OPI_NOT_LITERAL;
    }
    if (made && value->data != NULL && opi_number_is_plain(value))
      return OPI_NOT_LITERAL; /* under a name that was counted up */
    if (!is_stray(r, value))
      return OPI_TRAINED;
    doubt(p,
          "a plain number under a name that no layer has: a parameter of its own, or a literal?");
    return (roles & ~(uint32_t)OPI_ROLE_TERM) == 0 ? OPI_NOT_LITERAL : OPI_TRAINED;
  }
  const uint32_t acting = OPI_ROLE_SHIFT | OPI_ROLE_SCALE | OPI_ROLE_TERM;
  if (value->data == NULL && !made && (roles & acting) != 0)
    doubt(p, "its number is not available: a scale that is learned, or one derived from a width");
  else if (made && r->dotted && (roles & acting) != 0 && value->data != NULL &&
           (!opi_number_is_plain(value) || computed) &&
           (value->rank > 0 || opi_name_is_of_function(value->name)))
    doubt(p, "one number that no formula gives: what an exporter made of a parameter?");
  return OPI_NOT_LITERAL;
}

/* Computed by an exporter of a parameter that the file has, too. */
static bool follows_another(const opi_roles *r, const opi_value *value) {
  const opi_graph *graph = r->s->training->graph;
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opi_value *other = &graph->values[v];
    if ((other->flags & OPI_VALUE_INITIALIZER) != 0 && other->dtype == value->dtype &&
        other->n_bytes == value->n_bytes && other != value && !opi_name_is_made(other->name) &&
        opi_values_follow(value, other))
      return true;
  }
  return false;
}

/* True for the constants that an exporter writes where a norm operator needs a scale and a bias
 * that the module lacks. */
static bool is_neutral(const opi_roles *r, const opi_value *value, uint32_t roles) {
  return (roles & (OPI_ROLE_GROUP | OPI_ROLE_NORM)) != 0 && (roles & OPI_ROLE_WEIGHT) == 0 &&
         is_made(r, value->name) && opi_values_neutral(value);
}

/* Numbers that no training gives: a few different ones, again and again. */
static bool is_pattern(const opi_value *value, uint32_t roles) {
  return is_only(roles, OPI_ROLE_SCALE) && value->rank > 1 && opi_values_repeat(value);
}

/* Reports decisions based on a name alone, or on equal numbers, as doubtful. */
static void doubt_equal(const opi_roles *r, const opi_value *value, uint32_t roles, uint32_t why,
                        opi_train_param *p) {
  const uint32_t terms = OPI_ROLE_SHIFT | OPI_ROLE_SCALE;
  if (!opi_values_equal(value) || !is_only(roles, terms))
    return;
  if (why == OPI_NOT_MADE && opi_name_keeps_numbers(value->name) && opi_k_elems(value) >= 8)
    doubt(p, "equal numbers under an exporter's name: a constant, or a fresh parameter?");
  if (why == OPI_TRAINED && !is_named(r, value->name) && r->dotted)
    doubt(p, "equal numbers under a name that no layer has: a fresh parameter, or a constant?");
  if (why == OPI_TRAINED && value->rank > 1 && (roles & OPI_ROLE_SCALE) != 0)
    doubt(p, "equal factors with dimensions of their own: a fresh parameter, or a buffer?");
}

static uint32_t rule_of_many(const opi_roles *r, const opi_value *value, uint32_t roles,
                             opi_train_param *p) {
  const bool made = r->dotted && is_made(r, value->name);
  const uint32_t firm = OPI_ROLE_WEIGHT | OPI_ROLE_NORM;
  if ((roles & OPI_ROLE_HALF) != 0 && !r->half && (roles & firm) == 0)
    return OPI_NOT_HALF;
  if (value->data == NULL && (roles & firm) == 0) {
    const bool frozen = made || (roles & OPI_ROLE_COUNT) != 0 || is_logits_row(r, value, roles);
    if (frozen ||
        (roles & (OPI_ROLE_SCORE | OPI_ROLE_LEFT | OPI_ROLE_COUNT | OPI_ROLE_PLACES)) != 0)
      doubt(p, "its numbers are not available to tell a parameter from a table");
    return frozen ? OPI_NOT_MADE : OPI_TRAINED;
  }
  const uint32_t why =
      is_pattern(value, roles) ? (uint32_t)OPI_NOT_FACTOR : by_values(value, roles, made);
  if (made && (roles & firm) == 0 && opi_name_is_of_function(value->name))
    doubt(p, "numbers that an exporter computed, of a parameter perhaps");
  doubt_equal(r, value, roles, why, p);
  if (why != OPI_TRAINED || (roles & firm) != 0)
    return why;
  if (is_logits_row(r, value, roles))
    return OPI_NOT_MADE;
  if ((roles & OPI_ROLE_INPUT) != 0 && value->rank > 2 && value->shape[value->rank - 1] == 1 &&
      opi_k_elems(value) <= 4) /* means and deviations of channels */
    return OPI_NOT_FACTOR;
  if (made && opi_k_elems(value) < 8)
    return OPI_NOT_MADE;
  if (made && follows_another(r, value)) {
    doubt(p, "its numbers are 1 - x, 1 + x or -x of another parameter's");
    return OPI_NOT_MADE;
  }
  if (made && opi_name_is_of_function(value->name))
    return OPI_NOT_MADE;
  if (made) {
    doubt(p,
          "an exporter's name, and numbers without a pattern: taken for a parameter that the "
          "exporter reshaped");
  } else if ((roles & OPI_ROLE_COUNT) != 0) {
    doubt(p, "it multiplies only values made of integers");
  }
  return OPI_TRAINED;
}

static uint32_t base_rule(opi_roles *r, const opi_value *value, uint32_t v, opi_train_param *p) {
  const opi_origin *o = opi_roles_origin(r, value->name);
  const opi_grad_state *s = r->s;
  const opi_graph *graph = s->training->graph;
  uint64_t n = 0;
  if (!opi_dtype_is_float(value->dtype))
    return OPI_NOT_FLOAT;
  if (v != OPIPE_NONE && is_statistic(graph, v))
    return OPI_NOT_BUFFER;
  if (v == OPIPE_NONE || (s->flags[v] & OPI_V_REACHES) == 0)
    return OPI_NOT_REACHED;
  if ((s->flags[v] & OPI_V_DIRECT) == 0 || (o != NULL && o->kind == OPI_ORIGIN_BUFFER))
    return OPI_NOT_BUFFER;
  if (!opi_shape_elems(value->shape, (uint32_t)value->rank, &n) || n == 0)
    return OPI_NOT_LITERAL;
  const uint32_t roles = opi_roles_of(r, v);
  if (o != NULL && o->kind == OPI_ORIGIN_PARAMETER)
    return OPI_TRAINED;
  if (is_neutral(r, &graph->values[v], roles)) {
    if ((roles & OPI_ROLE_GROUP) == 0)
      doubt(p, "ones or zeros under an exporter's name: of a norm without weights, or fresh ones");
    p->origin = NULL;
    return OPI_NOT_MADE;
  }
  const uint32_t place = by_place(r, &graph->values[v], roles, p);
  if (place != OPI_TRAINED || is_only(roles, OPI_ROLE_NUMBER))
    return place;
  if (n > 1)
    return rule_of_many(r, &graph->values[v], roles, p);
  return is_layer_part(graph, v) ? OPI_TRAINED : rule_of_one(r, &graph->values[v], roles, p);
}

/* Exporters make one initializer of parameters that are equal at first: nobody can tell it from a
 * layer that is used again. */
static void doubt_merged(const opi_roles *r, const opi_value *value, opi_train_param *p) {
  if (r->n_layers < 2 || !opi_values_equal(value))
    return;
  p->doubt =
      "its numbers are all equal, and several layers read it: parameters that an exporter "
      "merged because they were equal at first? They stay one here; export without its "
      "optimiser (optimize=False)";
  opi_log(r->s->options->logger, OPIPE_LOG_WARN,
          "initializer '%s' is read by %u layers, and all its numbers are equal: if they are "
          "parameters that the exporter merged, they are trained as one; export without its "
          "optimiser (optimize=False) to keep them apart",
          p->name, r->n_layers);
}

static bool is_plain(const char *pattern) {
  return strpbrk(pattern, "*?") == NULL;
}

/* Only patterns of what is trained were given: they say all of it. A full name adds to the rule. */
static bool is_all_asked(const opi_gradient_options *options) {
  bool all = options->n_globs != 0;
  for (uint32_t g = 0; g < options->n_globs && all; ++g)
    all = options->globs[g].trainable && !is_plain(options->globs[g].pattern);
  return all;
}

/* Globs over the base rule, on the initializer's name and the one that its module gave it. shy:
 * taken by its full name only. used [n_globs]. */
static uint32_t by_globs(const opi_grad_state *s, const opi_train_param *p, uint32_t why, bool shy,
                         bool *used) {
  const opi_train_glob *hit = NULL;
  for (uint32_t g = 0; g < s->options->n_globs; ++g) {
    const opi_train_glob *glob = &s->options->globs[g];
    if (!opi_glob(glob->pattern, p->name) &&
        (p->origin == NULL || !opi_glob(glob->pattern, p->origin)))
      continue;
    used[g] = true;
    if (glob->trainable && shy && !is_plain(glob->pattern))
      continue;
    hit = glob;
  }
  if (hit == NULL && why == OPI_TRAINED && is_all_asked(s->options))
    return OPI_NOT_ASKED;
  if (hit == NULL || why == OPI_NOT_FLOAT || why == OPI_NOT_REACHED)
    return why;
  if (!hit->trainable)
    return why == OPI_TRAINED ? OPI_FROZEN_BY_GLOB : why;
  return why == OPI_TRAINED ? OPI_TRAINED : OPI_TRAINED_BY_GLOB;
}

static opipe_status warn_unused(const opi_grad_state *s, const bool *used, opipe_error *err) {
  opi_training *t = s->training;
  t->unmatched = OPI_ARENA_ARRAY(&t->arena, const char *, s->options->n_globs);
  if (t->unmatched == NULL)
    return opi_fail_nomem(err, s->options->n_globs * sizeof *t->unmatched, "patterns");
  for (uint32_t g = 0; g < s->options->n_globs; ++g) {
    const opi_train_glob *glob = &s->options->globs[g];
    if (used[g])
      continue;
    opi_log(s->options->logger, OPIPE_LOG_WARN, "%s '%s' matches no initializer of the bound graph",
            glob->trainable ? "trainable" : "frozen", glob->pattern);
    t->unmatched[t->n_unmatched++] = opi_arena_strdup(&t->arena, glob->pattern);
    if (t->unmatched[t->n_unmatched - 1] == NULL)
      return opi_fail_nomem(err, strlen(glob->pattern) + 1, "a pattern");
  }
  return OPIPE_OK;
}

/* Marks all values that depend on trained parameters. */
static void mark_wanted(opi_grad_state *s) {
  const opi_graph *graph = s->training->graph;
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    const opi_op *op = opi_op_of(node);
    bool wanted = false;
    for (uint32_t i = 0; i < node->n_in && !wanted; ++i) {
      wanted = is_float(graph, node->in[i]) && !opi_grad_stops(op, i) &&
               (s->flags[node->in[i]] & OPI_V_WANTED) != 0;
    }
    for (uint32_t o = 0; o < node->n_out && wanted; ++o) {
      if (is_float(graph, node->out[o]))
        s->flags[node->out[o]] |= OPI_V_WANTED;
    }
  }
}

/* OPI_V_CONSTANT in the training graph. */
static void mark_constants(opi_grad_state *s) {
  const opi_graph *graph = s->training->graph;
  for (uint32_t v = 0; v < graph->n_values; ++v) {
    const opi_value *value = &graph->values[v];
    if (value->producer == OPIPE_NONE && (value->flags & (OPI_VALUE_INPUT | OPI_VALUE_SCALAR)) == 0)
      s->flags[v] |= OPI_V_CONSTANT;
  }
  for (uint32_t n = 0; n < graph->n_nodes; ++n) {
    const opi_node *node = &graph->nodes[n];
    bool constant = true;
    for (uint32_t i = 0; i < node->n_in && constant; ++i)
      constant = node->in[i] == OPIPE_NONE || (s->flags[node->in[i]] & OPI_V_CONSTANT) != 0;
    for (uint32_t o = 0; o < node->n_out && constant; ++o) {
      if (node->out[o] != OPIPE_NONE)
        s->flags[node->out[o]] |= OPI_V_CONSTANT;
    }
  }
}

/* By the plan's list, which was made by the rule below or by hand. */
static uint32_t by_choice(const opi_grad_state *s, const opi_map *listed, const char *name,
                          uint32_t v) {
  uint32_t place = 0;
  if (v == OPIPE_NONE || (s->flags[v] & OPI_V_REACHES) == 0)
    return OPI_NOT_REACHED;
  return opi_map_get(listed, name, &place) ? OPI_TRAINED : OPI_NOT_LISTED;
}

/* Taken by its full name only: what no glob should train by accident. */
static bool is_shy(uint32_t why, bool statistic) {
  return statistic || why == OPI_NOT_LITERAL || why == OPI_NOT_MASK || why == OPI_NOT_FACTOR ||
         why == OPI_NOT_MADE || why == OPI_NOT_NUMBER;
}

/* The rule, then the globs. used [n_globs]. */
static void judge(opi_roles *roles, const opi_value *value, opi_train_param *p, bool *used) {
  const opi_grad_state *s = roles->s;
  const opi_origin *o = opi_roles_origin(roles, p->name);
  p->origin = o != NULL ? o->name : NULL;
  roles->n_layers = 0;
  const uint32_t why = base_rule(roles, value, p->value, p);
  const bool statistic = why == OPI_NOT_BUFFER && is_statistic(s->training->graph, p->value);
  p->why = by_globs(s, p, why, is_shy(why, statistic), used);
  if (p->why != why)
    p->doubt = NULL; /* somebody said what it is */
  if (p->why == OPI_TRAINED || p->why == OPI_TRAINED_BY_GLOB)
    doubt_merged(roles, value, p);
}

static opipe_status list_choice(const opi_grad_state *s, opi_map *out_listed, opipe_error *err) {
  for (uint32_t i = 0; i < s->options->choice->n_trained; ++i)
    OPI_TRY(opi_map_set(out_listed, s->options->choice->trained[i], i, err));
  return OPIPE_OK;
}

/* listed NULL: the rule is asked, which `roles` is for. */
static opipe_status list_params(opi_grad_state *s, const opi_map *listed, opi_roles *roles,
                                opipe_error *err) {
  const opi_graph *bound = s->bound->graph;
  opi_training *t = s->training;
  bool *used = OPI_ARENA_ARRAY(&s->scratch, bool, s->options->n_globs);
  uint32_t n = 0;
  for (uint32_t v = 0; v < bound->n_values; ++v)
    n += (bound->values[v].flags & OPI_VALUE_INITIALIZER) != 0;
  t->params = OPI_ARENA_ARRAY(&t->arena, opi_train_param, n);
  if (t->params == NULL || used == NULL)
    return opi_fail_nomem(err, n * sizeof(*t->params), "the parameters");
  for (uint32_t v = 0; v < bound->n_values; ++v) {
    const opi_value *value = &bound->values[v];
    if ((value->flags & OPI_VALUE_INITIALIZER) == 0)
      continue;
    opi_train_param *p = &t->params[t->n_params++];
    p->name = value->name;
    p->value = s->map[v];
    if (listed != NULL)
      p->why = by_choice(s, listed, p->name, p->value);
    else
      judge(roles, value, p, used);
    if (p->why != OPI_TRAINED && p->why != OPI_TRAINED_BY_GLOB)
      continue;
    ++t->n_trained;
    s->flags[p->value] |= OPI_V_TRAINED | OPI_V_WANTED;
  }
  return listed == NULL ? warn_unused(s, used, err) : OPIPE_OK;
}

static opipe_status list_by_rule(opi_grad_state *s, opipe_error *err) {
  opi_roles roles;
  opipe_status status = opi_roles_open(&roles, s, err);
  if (status == OPIPE_OK)
    status = list_params(s, NULL, &roles, err);
  opi_roles_close(&roles);
  return status;
}

static opipe_status list_by(opi_grad_state *s, opipe_error *err) {
  opi_map *listed = NULL;
  if (s->options->choice == NULL || s->options->choice->n_trained == 0)
    return list_by_rule(s, err);
  OPI_TRY(opi_map_create(s->options->allocator, &listed, err));
  opipe_status status = list_choice(s, listed, err);
  if (status == OPIPE_OK)
    status = list_params(s, listed, NULL, err);
  opi_map_free(listed);
  return status;
}

static uint32_t n_frozen(const opi_training *training) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < training->n_params; ++i)
    n += training->params[i].why == OPI_FROZEN_BY_GLOB;
  return n;
}

opipe_status opi_grad_trainable(opi_grad_state *s, opipe_error *err) {
  OPI_TRY(opi_grad_flags(s, err));
  mark_constants(s);
  opi_grad_mark_states(s);
  mark_reach(s);
  OPI_TRY(list_by(s, err));
  if (s->training->n_trained == 0) {
    const uint32_t n = n_frozen(s->training);
    return n != 0 ? opi_fail(err, OPIPE_E_INVALID,
                             "nothing can be trained: %u of %u initializers could be, and are "
                             "frozen by name",
                             n, s->training->n_params)
                  : opi_fail(err, OPIPE_E_INVALID,
                             "nothing can be trained: none of %u initializers is a float tensor on "
                             "a differentiable path to the loss",
                             s->training->n_params);
  }
  mark_wanted(s);
  return OPIPE_OK;
}
