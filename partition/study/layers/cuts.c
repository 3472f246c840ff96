/* SPDX-License-Identifier: Apache-2.0 */
/* Crossings listed in a plan's file, summed by pairs of stages. */
#include "partition/study/layers/cuts.h"

#include <inttypes.h>

#include "loader/base/json.h"

#define BYTES_MOST (UINT64_C(1) << 48)

/* ---- read ---- */

static int order(const opi_plan_cut *a, const opi_plan_cut *b) {
  if (a->src_stage != b->src_stage)
    return a->src_stage < b->src_stage ? -1 : 1;
  return a->dst_stage < b->dst_stage ? -1 : a->dst_stage > b->dst_stage;
}

static opipe_status read_one(const json_t *object, const char *what, size_t i, uint32_t n_stages,
                             opi_plan_cut *out, opipe_error *err) {
  uint64_t src = 0, dst = 0;
  if (!json_is_object(object)) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: entry %zu of \"crossings\" must be an object", what,
                    i);
  }
  OPI_TRY(opi_json_get_u64(object, what, "from", UINT32_MAX, &src, err));
  OPI_TRY(opi_json_get_u64(object, what, "to", UINT32_MAX, &dst, err));
  if (src >= dst || dst >= n_stages) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: entry %zu of \"crossings\" runs from stage %" PRIu64 " to %" PRIu64
                    "; the plan has %u stages",
                    what, i, src, dst, n_stages);
  }
  *out = (opi_plan_cut){.src_stage = (uint32_t)src, .dst_stage = (uint32_t)dst, .n_tensors = 1};
  OPI_TRY(opi_json_get_u64(object, what, "bytes", BYTES_MOST, &out->n_bytes, err));
  return opi_json_get_u64(object, what, "message_bytes", BYTES_MOST, &out->message_bytes, err);
}

opipe_status opi_plan_cuts_read(const json_t *root, const char *what, uint32_t n_stages,
                                opi_arena *arena, opi_plan_cut **out_cuts, uint32_t *out_n,
                                bool *out_known, opipe_error *err) {
  const json_t *list = NULL;
  *out_n = 0;
  *out_known = json_object_get(root, "crossings") != NULL;
  if (!*out_known)
    return OPIPE_OK;
  OPI_TRY(opi_json_get_array(root, what, "crossings", &list, err));
  const size_t n = json_array_size(list);
  opi_plan_cut *cuts = OPI_ARENA_ARRAY(arena, opi_plan_cut, n + 1);
  if (cuts == NULL)
    return opi_fail_nomem(err, n * sizeof *cuts, "a plan's cuts");
  uint32_t used = 0;
  for (size_t i = 0; i < n; ++i) {
    opi_plan_cut one;
    OPI_TRY(read_one(json_array_get(list, i), what, i, n_stages, &one, err));
    const int after = used == 0 ? 1 : order(&one, &cuts[used - 1]);
    if (after < 0) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "%s: entry %zu of \"crossings\", %u to %u, must not follow %u to %u", what, i,
                      one.src_stage, one.dst_stage, cuts[used - 1].src_stage,
                      cuts[used - 1].dst_stage);
    }
    if (after > 0) {
      cuts[used++] = one;
      continue;
    }
    opi_plan_cut *sum = &cuts[used - 1];
    sum->n_bytes += one.n_bytes;
    ++sum->n_tensors;
    if (one.message_bytes > sum->message_bytes)
      sum->message_bytes = one.message_bytes;
  }
  *out_cuts = cuts;
  *out_n = used;
  return OPIPE_OK;
}

/* ---- side by side ---- */

/* The next pair of stages between which something crosses on either side, and the crossings of
 * each; {0} if a side has none. False: no more. at [2]: positions in the two lists. */
static bool next_pair(const opi_plan_cuts sides[2], uint32_t at[2], opi_plan_cut out[2]) {
  const opi_plan_cut *next[2];
  for (uint32_t i = 0; i < 2; ++i)
    next[i] = at[i] < sides[i].n ? &sides[i].cuts[at[i]] : NULL;
  if (next[0] == NULL && next[1] == NULL)
    return false;
  const int which = next[0] == NULL ? 1 : next[1] == NULL ? -1 : order(next[0], next[1]);
  const opi_plan_cut *first = which <= 0 ? next[0] : next[1];
  for (uint32_t i = 0; i < 2; ++i) {
    const bool mine = which == 0 || (which < 0) == (i == 0);
    out[i] = mine ? *next[i]
                  : (opi_plan_cut){.src_stage = first->src_stage, .dst_stage = first->dst_stage};
    at[i] += mine ? 1 : 0;
  }
  return true;
}

static void print_bytes(const opi_plan_cuts *side, uint64_t n_bytes, int width, opi_text *t) {
  if (side->known)
    opi_text_printf(t, " %-*.3f", width, (double)n_bytes / 1024);
  else
    opi_text_printf(t, " %-*s", width, "-");
}

static void print_row(const opi_plan_cuts sides[2], const char *head, uint64_t a, uint64_t b,
                      int width, opi_text *t) {
  opi_text_printf(t, "%c %-23s", sides[0].known && sides[1].known && a != b ? '*' : ' ', head);
  print_bytes(&sides[0], a, width, t);
  print_bytes(&sides[1], b, width, t);
  if (sides[0].known && sides[1].known && a > 0)
    opi_text_printf(t, " %+.1f %%", 100 * ((double)b / (double)a - 1));
  opi_text_puts(t, "\n");
}

void opi_plan_cuts_print(const opi_plan_cuts sides[2], int width, opi_text *text) {
  uint32_t at[2] = {0, 0};
  uint64_t sum[2] = {0, 0};
  opi_plan_cut pair[2];
  char head[64];
  while (next_pair(sides, at, pair)) {
    (void)snprintf(head, sizeof head, "cut %u -> %u (KiB)", pair[0].src_stage, pair[0].dst_stage);
    print_row(sides, head, pair[0].n_bytes, pair[1].n_bytes, width, text);
    sum[0] += pair[0].n_bytes;
    sum[1] += pair[1].n_bytes;
  }
  if (at[0] + at[1] > 0)
    print_row(sides, "all cuts (KiB)", sum[0], sum[1], width, text);
}

static void put_both(const opi_plan_cuts sides[2], const char *name, uint64_t a, uint64_t b,
                     opi_text *t) {
  const uint64_t both[2] = {a, b};
  opi_text_printf(t, ", \"%s\": {", name);
  for (uint32_t i = 0; i < 2; ++i) {
    opi_text_puts(t, i == 0 ? "\"a\": " : ", \"b\": ");
    if (sides[i].known)
      opi_text_printf(t, "%" PRIu64, both[i]);
    else
      opi_text_puts(t, "null");
  }
  opi_text_puts(t, "}");
}

void opi_plan_cuts_put(const opi_plan_cuts sides[2], opi_text *text) {
  uint32_t at[2] = {0, 0};
  opi_plan_cut pair[2];
  bool first = true;
  opi_text_puts(text, "[");
  while (next_pair(sides, at, pair)) {
    opi_text_printf(text, "%s\n  {\"from\": %u, \"to\": %u", first ? "" : ",", pair[0].src_stage,
                    pair[0].dst_stage);
    put_both(sides, "bytes", pair[0].n_bytes, pair[1].n_bytes, text);
    put_both(sides, "tensors", pair[0].n_tensors, pair[1].n_tensors, text);
    opi_text_puts(text, "}");
    first = false;
  }
  opi_text_puts(text, "]");
}
