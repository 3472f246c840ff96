/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of a training graph, on real models cut into stages at every n-th node: backward nodes
 * read what their stage has, I never waits for W, one Accumulate per parameter and stage, sums that
 * equal the uncut graph's, recomputation that changes no bit.
 *
 * ctest: timeout=300
 */
#include "loader/ops/kit.h"
#include "tests/loader/gradient/cut.h"

enum { PLACES = 16384 };

static const char *const models[] = {"gpt2/train",   "bert/train",      "t5/train",
                                     "llama/train",  "qwen2_moe/train", "perceiver/train",
                                     "whisper/train"};

/* -- inputs of backward nodes ------------------------------------------------------------------ */

static bool is_free(const opi_graph *g, uint32_t v) {
  return v == OPIPE_NONE || g->values[v].producer == OPIPE_NONE;
}

static bool reads_or_makes(const opi_node *node, uint32_t v) {
  for (uint32_t i = 0; i < node->n_in; ++i) {
    if (node->in[i] == v)
      return true;
  }
  for (uint32_t o = 0; o < node->n_out; ++o) {
    if (node->out[o] == v)
      return true;
  }
  return false;
}

/* A value made of constants alone. */
static bool is_constant(const opi_training *t, const bool *constant, uint32_t v) {
  return v == OPIPE_NONE || (t->graph->values[v].producer == OPIPE_NONE
                                 ? (t->graph->values[v].flags & OPI_VALUE_INPUT) == 0
                                 : constant[t->graph->values[v].producer]);
}

static void check_reads(const cut_case *c) {
  const opi_training *t = c->training;
  const opi_graph *g = t->graph;
  bool constant[PLACES] = {false};
  if (!OPI_ASSERT(g->n_nodes <= PLACES))
    return;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const opi_node *node = &g->nodes[n];
    const bool backward = node->pass != OPIPE_PASS_FORWARD;
    constant[n] = !backward;
    for (uint32_t i = 0; i < node->n_in; ++i) {
      const uint32_t v = node->in[i];
      constant[n] = constant[n] && is_constant(t, constant, v) &&
                    (v == OPIPE_NONE || (g->values[v].flags & OPI_VALUE_SCALAR) == 0);
      if (is_free(g, v))
        continue;
      const uint32_t p = g->values[v].producer;
      const bool forward = g->nodes[p].pass == OPIPE_PASS_FORWARD;
      if (forward) {
        const bool near =
            is_constant(t, constant, v) ? t->stage[p] == t->stage[n] : t->stage[p] <= t->stage[n];
        (void)opi_test_check(near, __FILE__, __LINE__, false,
                             "%s: '%s' of stage %u reads '%s' of %u", c->name, node->name,
                             t->stage[n], g->values[v].name, t->stage[p]);
      } else {
        (void)opi_test_check(t->stage[p] >= t->stage[n] && backward, __FILE__, __LINE__, false,
                             "%s: '%s' of stage %u reads '%s' of %u", c->name, node->name,
                             t->stage[n], g->values[v].name, t->stage[p]);
      }
      if (backward && forward) {
        (void)opi_test_check(reads_or_makes(&g->nodes[t->anchor[n]], v), __FILE__, __LINE__, false,
                             "%s: '%s' reads '%s', which its anchor '%s' does not", c->name,
                             node->name, g->values[v].name, g->nodes[t->anchor[n]].name);
      }
    }
    (void)opi_test_check(g->nodes[t->anchor[n]].pass == OPIPE_PASS_FORWARD &&
                             t->stage[t->anchor[n]] == t->stage[n] &&
                             (backward || t->anchor[n] == n),
                         __FILE__, __LINE__, false, "%s: anchor of '%s'", c->name, node->name);
  }
}

/* -- marks ------------------------------------------------------------------------------------- */

static void check_marks(const cut_case *c) {
  const opi_training *t = c->training;
  const opi_graph *g = t->graph;
  uint32_t n_i = 0, n_w = 0;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const opi_node *node = &g->nodes[n];
    const bool accumulates = strcmp(node->op, "Accumulate") == 0;
    n_i += node->pass == OPIPE_PASS_BACKWARD_INPUT;
    n_w += node->pass == OPIPE_PASS_BACKWARD_WEIGHT;
    if (accumulates)
      OPI_ASSERT_INT(node->pass, OPIPE_PASS_BACKWARD_WEIGHT);
    for (uint32_t i = 0; i < node->n_in; ++i) {
      if (is_free(g, node->in[i]))
        continue;
      const opi_node *from = &g->nodes[g->values[node->in[i]].producer];
      const bool waits =
          node->pass != OPIPE_PASS_BACKWARD_WEIGHT && from->pass == OPIPE_PASS_BACKWARD_WEIGHT;
      (void)opi_test_check(!waits, __FILE__, __LINE__, false, "%s: '%s' waits for W '%s'", c->name,
                           node->name, from->name);
      const bool crosses = from->pass == OPIPE_PASS_BACKWARD_WEIGHT &&
                           t->stage[g->values[node->in[i]].producer] != t->stage[n];
      (void)opi_test_check(!crosses, __FILE__, __LINE__, false, "%s: W '%s' feeds another stage",
                           c->name, from->name);
    }
  }
  OPI_ASSERT(n_i > 0 && n_w > 0);
}

/* Every Accumulate is some parameter's, listed by rising stage. */
static void check_accumulates(const cut_case *c, uint32_t *out_tied) {
  const opi_training *t = c->training;
  const opi_graph *g = t->graph;
  uint32_t n_accumulates = 0, n_listed = 0;
  *out_tied = 0;
  for (uint32_t n = 0; n < g->n_nodes; ++n)
    n_accumulates += strcmp(g->nodes[n].op, "Accumulate") == 0;
  for (uint32_t p = 0; p < t->n_params; ++p) {
    const opi_train_param *param = &t->params[p];
    n_listed += param->n_gradients;
    *out_tied += param->n_gradients > 1 &&
                 t->stage[g->values[param->gradients[0]].producer] !=
                     t->stage[g->values[param->gradients[param->n_gradients - 1]].producer];
    for (uint32_t k = 0; k < param->n_gradients; ++k) {
      const opi_value *v = &g->values[param->gradients[k]];
      OPI_ASSERT((v->flags & OPI_VALUE_GRADIENT) != 0 && v->dtype == OPIPE_FLOAT);
      if (k > 0)
        OPI_ASSERT(t->stage[g->values[param->gradients[k - 1]].producer] <= t->stage[v->producer]);
    }
  }
  OPI_ASSERT_INT(n_accumulates, n_listed);
}

/* -- tests ------------------------------------------------------------------------------------- */

/* Once whole and once in four stages; what is uneven between the two is reported. */
static void check_stages(cut_case *c, const char *model) {
  uint32_t tied = 0;
  double *whole[MOST];
  if (!build(c, 1, OPI_RECOMPUTE_NONE) || !run(c))
    return;
  const double loss = c->loss;
  memcpy(whole, c->gradients, sizeof(whole));
  check_reads(c);
  check_marks(c);
  if (!build(c, 4, OPI_RECOMPUTE_NONE) || !run(c))
    return;
  check_reads(c);
  check_marks(c);
  check_accumulates(c, &tied);
  OPI_ASSERT(c->loss == loss); /* the same nodes */
  for (uint32_t p = 0; p < c->training->n_params; ++p) {
    if (c->gradients[p] != NULL && OPI_ASSERT(whole[p] != NULL))
      OPI_ASSERT_CLOSE(c->gradients[p], whole[p], c->sizes[p], OPIPE_DOUBLE, 1e-5);
  }
  if (strncmp(model, "llama", 5) != 0 && strncmp(model, "qwen", 4) != 0)
    (void)opi_test_check(tied > 0, __FILE__, __LINE__, false, "%s: nothing tied", model);
}

static void test_stages(void) {
  for (size_t i = 0; i < OPI_COUNT(models); ++i) {
    cut_case *c = calloc(1, sizeof(*c));
    if (!open_model(c, models[i], i % 2 == 0 ? OPI_BIND_NO_FUSE : 0, OPI_DROPOUT_OFF)) {
      free(c);
      return;
    }
    check_stages(c, models[i]);
    close_model(c);
    free(c);
  }
}

static uint32_t n_clones(const opi_graph *g) {
  uint32_t n = 0;
  for (uint32_t k = 0; k < g->n_nodes; ++k) {
    const char *name = g->nodes[k].name;
    const size_t len = strlen(name);
    n += len > 6 && strcmp(name + len - 6, "/again") == 0;
  }
  return n;
}

/* Bytes of forward activations that backward nodes read. */
static uint64_t kept_bytes(const opi_training *t) {
  const opi_graph *g = t->graph;
  bool seen[PLACES] = {false};
  uint64_t sum = 0;
  for (uint32_t n = 0; n < g->n_nodes && g->n_values <= PLACES; ++n) {
    for (uint32_t i = 0; i < g->nodes[n].n_in && g->nodes[n].pass != OPIPE_PASS_FORWARD; ++i) {
      const uint32_t v = g->nodes[n].in[i];
      if (is_free(g, v) || seen[v] || g->nodes[g->values[v].producer].pass != OPIPE_PASS_FORWARD)
        continue;
      seen[v] = true;
      sum += g->values[v].n_bytes;
    }
  }
  return sum;
}

static void test_recomputation(void) {
  for (size_t i = 0; i < OPI_COUNT(models); ++i) {
    cut_case *c = calloc(1, sizeof(*c));
    if (!open_model(c, models[i], OPI_BIND_NO_FUSE, OPI_DROPOUT_OFF)) {
      free(c);
      return;
    }
    double *plain[MOST] = {NULL}, loss = 0;
    uint64_t bytes[4] = {0};
    uint32_t of_weights = 0;
    for (uint32_t mode = 0; mode < 4 && build(c, 2, mode) && run(c); ++mode) {
      bytes[mode] = kept_bytes(c->training);
      check_reads(c);
      check_marks(c);
      if (mode == 0) {
        loss = c->loss;
        memcpy(plain, c->gradients, sizeof(plain));
        of_weights = n_clones(c->training->graph); /* casts and transposes, always */
        continue;
      }
      OPI_ASSERT(n_clones(c->training->graph) > of_weights);
      OPI_ASSERT(c->loss == loss);
      for (uint32_t p = 0; p < c->training->n_params; ++p) {
        if (c->gradients[p] != NULL && OPI_ASSERT(plain[p] != NULL))
          OPI_ASSERT_BITS(c->gradients[p], plain[p], c->sizes[p], OPIPE_DOUBLE);
      }
    }
    (void)opi_test_check(bytes[1] < bytes[2] && bytes[2] < bytes[3] && bytes[3] < bytes[0],
                         __FILE__, __LINE__, false,
                         "%s: kept bytes none %llu, stage %llu, block %llu, attention %llu",
                         models[i], (unsigned long long)bytes[0], (unsigned long long)bytes[1],
                         (unsigned long long)bytes[2], (unsigned long long)bytes[3]);
    close_model(c);
    free(c);
  }
}

OPI_TEST_MAIN("training graphs", OPI_TEST(test_stages), OPI_TEST(test_recomputation))
