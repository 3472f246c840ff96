/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the mask of an attention number by number, over the whole context. A row must see its own
 * key, none behind it, and of those before it all or the last ones; what the mask adds must be
 * constant in a row, or fall with the distance at a slope of the head's own (ALiBi). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "loader/ops/attention.h"
#include "loader/passes/rower.h"

static const double LOW = -1e3; /* as token_mask.c */

typedef struct reader {
  rower *r;
  const opi_node *node;
  opi_arena *arena;          /* of slopes */
  const opi_value *known;    /* the mask's content; NULL: `content` */
  opi_token_content content; /* numbers NULL too: no mask */
  int64_t stride[3];         /* head, row, key */
  int64_t heads;             /* that differ */
  int64_t keys;              /* that the mask has */
  bool causal;
} reader;

static double number_at(const reader *m, int64_t head, int64_t row, int64_t key) {
  const uint64_t at = (uint64_t)(head * m->stride[0] + row * m->stride[1] + key * m->stride[2]);
  if (m->known == NULL && m->content.numbers == NULL)
    return 0;
  if (m->known == NULL)
    return (double)m->content.numbers[at];
  return opi_known_element(m->known, at);
}

/* In bool masks, 0 stands for minus infinity. */
static double added(const reader *m, int64_t head, int64_t row, int64_t key) {
  const uint32_t v = opi_node_in(m->node, OPI_ATT_MASK);
  const double x = number_at(m, head, row, key);
  if (v != OPIPE_NONE && m->r->s.whole->values[v].dtype == OPIPE_BOOL)
    return x != 0 ? 0 : -(double)INFINITY;
  return x;
}

static opipe_status strides_of(reader *m, const int64_t *shape, int32_t rank, int64_t all_heads,
                               int64_t keys) {
  const int64_t full[4] = {1, all_heads, m->r->form->context, keys};
  int64_t stride = 1;
  m->heads = 1;
  m->keys = keys;
  for (int32_t d = rank; d-- > 0;) {
    const int32_t at = d + 4 - rank;
    if (at < 0 ? shape[d] != 1 : shape[d] != 1 && shape[d] != full[at] && at != 3)
      return opi_s_refuse(&m->r->s, m->node, "its mask is of another shape than the scores");
    if (at > 0 && shape[d] != 1)
      m->stride[at - 1] = stride;
    if (at == 1)
      m->heads = shape[d];
    if (at == 3 && shape[d] != 1)
      m->keys = shape[d];
    stride *= shape[d];
  }
  return OPIPE_OK;
}

static opipe_status open_mask(reader *m, int64_t all_heads, int64_t keys) {
  const uint32_t v = opi_node_in(m->node, OPI_ATT_MASK);
  slicer *s = &m->r->s;
  char why[240];
  m->heads = 1;
  m->keys = keys;
  if (v == OPIPE_NONE)
    return OPIPE_OK;
  const opi_value *mask = &s->whole->values[v];
  if (opi_value_known(mask)) {
    m->known = mask;
    return strides_of(m, mask->shape, mask->rank, all_heads, keys);
  }
  OPI_TRY(opi_tokens_content(s->t, v, s->evaluator, &s->scratch, &m->content, s->err));
  if (m->content.numbers != NULL)
    return strides_of(m, m->content.shape, (int32_t)m->content.rank, all_heads, keys);
  if (m->content.input == NULL && opi_elems(mask) > OPI_TOKEN_MOST) {
    (void)snprintf(why, sizeof why,
                   "its mask '%.80s' has %" PRIu64 " numbers for a context of %" PRId64
                   ", more than %" PRIu64,
                   mask->name, opi_elems(mask), m->r->form->context, (uint64_t)OPI_TOKEN_MOST);
    return opi_s_refuse(s, m->node, why);
  }
  (void)snprintf(why, sizeof why, "its mask '%.80s' is not known from constants%s%.60s%s",
                 mask->name, m->content.input == NULL ? "" : "; it depends on input '",
                 m->content.input == NULL ? "" : m->content.input,
                 m->content.input == NULL ? "" : "'");
  return opi_s_refuse(s, m->node, why);
}

static bool is_seen(const reader *m, int64_t head, int64_t row, int64_t key) {
  return (!m->causal || key <= row) && key < m->keys && added(m, head, row, key) > LOW;
}

/* The window, over all rows of a head. */
static opipe_status find_window(const reader *m, int64_t head, int64_t keys, int64_t *out_window) {
  const int64_t n = m->r->form->context;
  int64_t hidden = n, seen = -1; /* the least distance that is hidden, the largest that is seen */
  char why[160];
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < keys; ++j) {
      const bool sees = is_seen(m, head, i, j);
      if (j > i && sees) {
        (void)snprintf(why, sizeof why,
                       "it is not causal: row %" PRId64 " reads token %" PRId64 "%s", i, j,
                       opi_node_in(m->node, OPI_ATT_MASK) == OPIPE_NONE ? ", it has no mask" : "");
        return opi_s_refuse(&m->r->s, m->node, why);
      }
      if (j > i)
        continue;
      if (sees && i - j > seen)
        seen = i - j;
      if (!sees && i - j < hidden)
        hidden = i - j;
    }
  }
  *out_window = hidden < n ? hidden : 0;
  if (seen < hidden && hidden > 0)
    return OPIPE_OK;
  (void)snprintf(why, sizeof why,
                 "its mask is no window: keys %" PRId64
                 " tokens before a row are hidden, and some "
                 "%" PRId64 " before seen",
                 hidden, seen);
  return opi_s_refuse(&m->r->s, m->node, why);
}

/* The slope of a head, over all that is seen. */
static opipe_status find_slope(const reader *m, int64_t head, int64_t window, float *out_slope) {
  const int64_t n = m->r->form->context, last = n - 1;
  const int64_t far = window > 0 && window < n ? window - 1 : last;
  const uint32_t v = opi_node_in(m->node, OPI_ATT_MASK);
  const uint32_t dtype = m->r->s.whole->values[v].dtype;
  const double step = dtype == OPIPE_FLOAT16 ? 0x1p-10 : dtype == OPIPE_BFLOAT16 ? 0x1p-7 : 0x1p-22;
  char why[160];
  *out_slope = 0;
  if (far == 0)
    return OPIPE_OK;
  const double slope =
      (added(m, head, last, last) - added(m, head, last, last - far)) / (double)far;
  for (int64_t i = 0; i < n; ++i) {
    const double own = added(m, head, i, i);
    for (int64_t j = i > far ? i - far : 0; j < i; ++j) {
      const double x = added(m, head, i, j), off = x - own - slope * (double)(j - i);
      if (fabs(off) <= 4 * step * fmax(fabs(x), fabs(own)))
        continue;
      (void)snprintf(why, sizeof why,
                     "its mask adds %g to the score of token %" PRId64 " in row %" PRId64
                     ", no multiple of the distance: a table of relative positions",
                     x, j, i);
      return opi_s_refuse(&m->r->s, m->node, why);
    }
  }
  *out_slope = (float)slope;
  return OPIPE_OK;
}

static opipe_status find_slopes(const reader *m, int64_t heads, int64_t window, opi_row_mask *out) {
  float *slopes = OPI_ARENA_ARRAY(m->arena, float, (size_t)heads);
  bool any = false;
  if (slopes == NULL)
    return opi_fail_nomem(m->r->s.err, (uint64_t)heads * sizeof *slopes, "slopes");
  for (int64_t h = 0; h < heads; ++h) {
    if (h < m->heads)
      OPI_TRY(find_slope(m, h, window, &slopes[h]));
    else
      slopes[h] = slopes[0];
    any = any || slopes[h] != 0;
  }
  out->slopes = any ? slopes : NULL;
  return OPIPE_OK;
}

static opipe_status read_mask(reader *m, int64_t heads, int64_t keys, opi_row_mask *out) {
  const opi_attention how = opi_attention_of(m->node);
  const uint32_t v = opi_node_in(m->node, OPI_ATT_MASK);
  *out = (opi_row_mask){.window = how.window};
  OPI_TRY(open_mask(m, heads, keys));
  if (v == OPIPE_NONE && how.causal)
    return OPIPE_OK;
  for (int64_t h = 0; h < m->heads; ++h) {
    int64_t window = 0;
    OPI_TRY(find_window(m, h, keys, &window));
    if (h == 0 && (how.window == 0 || (window > 0 && window < how.window)))
      out->window = window;
    if (window != 0 && window != out->window)
      return opi_s_refuse(&m->r->s, m->node, "its heads have windows of unlike lengths");
  }
  if (v == OPIPE_NONE || m->r->s.whole->values[v].dtype == OPIPE_BOOL)
    return OPIPE_OK;
  return find_slopes(m, heads, out->window, out);
}

/* ---- masks that were read before: layers share them, and so do graphs of one form ---- */

typedef struct known_mask {
  struct known_mask *next;
  uint32_t value;
  bool causal;
  int64_t heads, keys, window; /* of the attention */
  opi_row_mask mask;
} known_mask;

struct opi_row_masks {
  opi_arena *arena;
  known_mask *first;
};

opi_row_masks *opi_row_masks_new(opi_arena *arena) {
  opi_row_masks *masks = OPI_ARENA_NEW(arena, opi_row_masks);
  if (masks != NULL)
    *masks = (opi_row_masks){.arena = arena};
  return masks;
}

opipe_status opi_r_mask(rower *r, const opi_node *node, int64_t heads, int64_t keys,
                        opi_row_mask *out_mask) {
  const opi_attention how = opi_attention_of(node);
  const uint32_t v = opi_node_in(node, OPI_ATT_MASK);
  opi_row_masks *masks = r->form->masks;
  reader m = {.r = r, .node = node, .arena = masks->arena, .causal = how.causal};
  for (const known_mask *k = masks->first; k != NULL; k = k->next) {
    if (k->value == v && k->causal == how.causal && k->heads == heads && k->keys == keys &&
        k->window == how.window) {
      *out_mask = k->mask;
      return OPIPE_OK;
    }
  }
  OPI_TRY(read_mask(&m, heads, keys, out_mask));
  known_mask *made = OPI_ARENA_NEW(masks->arena, known_mask);
  if (made == NULL)
    return opi_fail_nomem(r->s.err, sizeof *made, "a mask");
  *made = (known_mask){masks->first, v, how.causal, heads, keys, how.window, *out_mask};
  masks->first = made;
  return OPIPE_OK;
}
