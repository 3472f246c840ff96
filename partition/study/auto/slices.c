/* SPDX-License-Identifier: Apache-2.0 */
/* Costs of token slices, if the layers state them: longer slices use the device better, later ones
 * look back on more tokens (Li et al., TeraPipe, section 3). A stage's time divides over slices as
 * that of all layers does.
 */
#include <inttypes.h>

#include "partition/study/auto/space.h"

opipe_status opi_slices_know(opi_space *s) {
  const opi_auto *q = s->question;
  const opi_layers *layers = q->planning.layers;
  if (layers->slices.n == 0 || layers->tokens == 0 || q->slice_ns > 0)
    return OPIPE_OK;
  s->curves = OPI_ARENA_ARRAY(&s->arena, opi_slice_curve, OPI_WIDTHS_MOST);
  if (s->curves == NULL)
    return opi_fail_nomem(s->err, OPI_WIDTHS_MOST * sizeof *s->curves, "a planner");
  for (uint32_t w = 1; w <= OPI_WIDTHS_MOST; ++w) {
    opi_slice_curve *c = &s->curves[w - 1];
    opi_layers_slices_sum(layers, 0, layers->n_layers, w, c->alone_ns, &c->context_ns);
  }
  return OPIPE_OK;
}

static double slice_ns(const opi_space *s, const opi_point *p, double length, double before) {
  const opi_slice_curve *c = &s->curves[p->width - 1];
  const double rows = p->samples;
  return opi_layers_alone_ns(s->question->planning.layers, c->alone_ns, rows * length) +
         rows * c->context_ns * length * (before + length / 2);
}

/* Tokens of slice k in sequences that the lengths add up to. */
static double length_of(const opi_space *s, const opi_method_layout *l, uint32_t k) {
  const uint32_t tokens = s->question->planning.layers->tokens;
  return l->slice_lengths != NULL ? l->slice_lengths[k]
                                  : tokens / l->n_slices + (k < tokens % l->n_slices);
}

void opi_point_slices(const opi_space *s, const opi_point *p, double *out_times, double *out_sum,
                      double *out_first) {
  const opi_method_layout *l = p->places;
  double before = 0, all = 0, first = 0;
  *out_sum = 1;
  *out_first = opi_places_first_slice(l);
  if (l->n_slices < 2 || s->curves == NULL)
    return;
  for (uint32_t k = 0; k < l->n_slices; ++k) {
    const double length = length_of(s, l, k), ns = slice_ns(s, p, length, before);
    if (out_times != NULL)
      out_times[k] = ns;
    first = k == 0 ? ns : first;
    all += ns;
    before += length;
  }
  const double whole = slice_ns(s, p, before, 0);
  if (!(all > 0) || !(whole > 0))
    return;
  *out_sum = all > whole ? all / whole : 1;
  *out_first = first / all;
  for (uint32_t k = 0; out_times != NULL && k < l->n_slices; ++k)
    out_times[k] *= *out_sum / all;
}

opipe_status opi_slices_check(const opi_space *s, const opi_decision *plan, opipe_error *err) {
  const uint32_t tokens = s->question->planning.layers->tokens;
  uint64_t sum = 0;
  if (tokens == 0 || plan->n_slices < 2)
    return OPIPE_OK;
  if (plan->n_slices > tokens) {
    return opi_fail(err, OPIPE_E_INVALID, "%u token slices of %u tokens: at most one for each",
                    plan->n_slices, tokens);
  }
  for (uint32_t i = 0; plan->slice_lengths != NULL && i < plan->n_slices; ++i)
    sum += plan->slice_lengths[i];
  if (plan->slice_lengths == NULL || sum == tokens)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID, "token slices of %" PRIu64 " tokens together, and %u there",
                  sum, tokens);
}
