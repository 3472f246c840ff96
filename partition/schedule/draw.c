/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes are as wide as their time; the hue shows the pass, the shade the stage (and replica). */
#include "partition/schedule/draw.h"

#include <math.h>

enum { LANE = 26, LEFT = 64, TOP = 30, COMPUTES_MOST = 200000, LABEL_LEAST = 14 };

/* Hue of a pass; OPI_DO_R is drawn as a forward. */
static uint32_t hue_of(uint32_t kind) {
  switch (kind) {
    case OPI_DO_B:
      return 140;
    case OPI_DO_I:
      return 190;
    case OPI_DO_W:
      return 90;
    case OPI_DO_R:
      return 280;
    default:
      return 215;
  }
}

static void draw_box(const opi_problem *p, const opi_do *a, double x, double width, uint32_t lane,
                     opi_text *text) {
  char label[64];
  const uint32_t shade =
      88 - (p->n_stages > 1 ? 40 * a->stage / (p->n_stages - 1) : 0) - (a->replica % 2) * 6;
  (void)opi_do_text(p, a, label, sizeof label);
  opi_text_printf(text,
                  "<g><title>%s</title><rect x=\"%.2f\" y=\"%u\" width=\"%.2f\" height=\"%d\" "
                  "fill=\"hsl(%u,%d%%,%u%%)\" stroke=\"#333\" stroke-width=\"0.5\"/>",
                  label, x, TOP + lane * LANE, width, LANE - 4, hue_of(a->kind),
                  a->replica % 2 == 0 ? 60 : 35, shade);
  if (width >= LABEL_LEAST) {
    opi_text_printf(text, "<text x=\"%.2f\" y=\"%u\" text-anchor=\"middle\">%u</text>",
                    x + width / 2, TOP + lane * LANE + LANE / 2 + 2, a->microbatch);
  }
  opi_text_puts(text, "</g>\n");
}

static void draw_lanes(const opi_problem *p, const opi_do_list *list, const opi_timeline *line,
                       double scale, opi_text *text) {
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    opi_text_printf(text, "<text x=\"6\" y=\"%u\">rank %u</text>\n",
                    TOP + rank * LANE + LANE / 2 + 2, rank);
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
      if (opi_do_is_compute(list->items[i].kind)) {
        draw_box(p, &list->items[i], LEFT + line->start[i] * scale,
                 (line->end[i] - line->start[i]) * scale, rank, text);
      }
    }
  }
}

static double shortest(const opi_do_list *list, const opi_timeline *line) {
  double least = line->makespan;
  for (uint32_t i = 0; i < list->n_items; ++i) {
    const double width = line->end[i] - line->start[i];
    if (width > 0 && width < least)
      least = width;
  }
  return least;
}

opipe_status opi_draw_order(const opi_problem *problem, const opi_do_list *list,
                            const opi_costs *costs, const opipe_allocator *allocator,
                            opi_text *text, opipe_error *err) {
  opi_arena arena;
  opi_timeline line;
  OPI_TRY(opi_pass_check(problem, list, allocator, err));
  if (list->n_items > COMPUTES_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "%u actions; at most %d are drawn", list->n_items,
                    COMPUTES_MOST);
  }
  opi_arena_init(&arena, allocator, 0);
  const opipe_status status = opi_timeline_build(problem, list, costs, &arena, &line, err);
  if (status == OPIPE_OK) {
    const double least = shortest(list, &line);
    const double wide = line.makespan > 0 ? line.makespan : 1;
    const double scale = fmin(fmax(18 / (least > 0 ? least : 1), 600 / wide), 16000 / wide);
    opi_text_printf(text,
                    "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%u\" "
                    "font-family=\"sans-serif\" font-size=\"10\">\n"
                    "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
                    "<text x=\"%d\" y=\"16\">%u ranks, %u stages, %u micro-batches, makespan "
                    "%g; blue F, green B, cyan I, lime W</text>\n",
                    LEFT + line.makespan * scale + 16, TOP + list->n_ranks * LANE + 10, LEFT,
                    list->n_ranks, problem->n_stages, problem->n_microbatches, line.makespan);
    draw_lanes(problem, list, &line, scale, text);
    opi_text_puts(text, "</svg>\n");
  }
  opi_arena_release(&arena);
  if (status < 0)
    return status;
  return text->failed ? opi_fail_nomem(err, text->room, "a drawing") : OPIPE_OK;
}
