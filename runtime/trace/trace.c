/* SPDX-License-Identifier: Apache-2.0 */
/* Writes traces. The picture has one scale for both kinds, so that they can be compared. */
#include "runtime/trace/trace.h"

#include <string.h>

enum { LANE = 22, THIN = 4, LEFT = 76, WIDTH = 1400, TOP = 26, GAP = 30 };

const char *const opi_clock_names[OPI_CLOCKS] = {NULL, "host", "device"};
static const char *const titles[OPI_TRACE_KINDS] = {"measured", "planned"};

/* Does the event run in the background, beside programs? */
static bool is_beside(const opi_trace_event *e) {
  return e->microbatch == OPIPE_NONE && e->stage != OPIPE_NONE;
}

/* The lanes of a rank beside its programs: sums, and copies each way. */
static const char *const besides[] = {", sums", ", offloads", ", reloads"};

static uint32_t beside_of(const opi_trace_event *e) {
  return strcmp(e->pass, "offload") == 0 ? 1 : strcmp(e->pass, "reload") == 0 ? 2 : 0;
}

static void label(const opi_trace_event *e, opi_text *text) {
  if (e->stage == OPIPE_NONE) {
    opi_text_puts(text, e->pass);
    return;
  }
  opi_text_printf(text, "%s stage %u", e->pass, e->stage);
  if (e->microbatch != OPIPE_NONE)
    opi_text_printf(text, ", micro-batch %u", e->microbatch);
  if (e->slice != 0)
    opi_text_printf(text, ", slice %u", e->slice - 1);
  if (e->replica != 0)
    opi_text_printf(text, ", replica %u", e->replica);
}

/* way: of the messages that the rank sends. */
static void name_thread(uint32_t process, uint32_t thread, uint32_t rank, const char *what,
                        uint32_t clock, uint32_t way, opi_text *text) {
  opi_text_printf(text,
                  ",\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %u, \"tid\": %u, "
                  "\"args\": {\"name\": \"rank %u%s\"",
                  process, thread, rank, what);
  if (opi_clock_names[clock] != NULL)
    opi_text_printf(text, ", \"clock\": \"%s\"", opi_clock_names[clock]);
  if (way > OPIPE_WAY_HOST)
    opi_text_printf(text, ", \"messages\": \"%s\"", opi_way_name(way));
  opi_text_puts(text, "}}");
}

void opi_trace_chrome(const opi_trace_list *list, opi_text *text) {
  const opi_trace_event *events = list->events;
  const uint32_t n = list->n, n_ranks = list->n_ranks;
  bool beside[OPI_COUNT(besides)] = {false};
  for (uint32_t i = 0; i < n; ++i)
    beside[beside_of(&events[i])] |= is_beside(&events[i]);
  opi_text_puts(text, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [");
  for (uint32_t k = 0; k < OPI_TRACE_KINDS; ++k) {
    opi_text_printf(text,
                    "%s\n{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %u, \"args\": "
                    "{\"name\": \"%s\"}}",
                    k == 0 ? "" : ",", k, titles[k]);
    for (uint32_t r = 0; r < n_ranks; ++r) {
      name_thread(k, r, r, "", k == OPI_TRACE_MEASURED ? list->clocks[r] : OPI_CLOCK_NONE,
                  k == OPI_TRACE_MEASURED && list->ways != NULL ? list->ways[r] : 0u, text);
    }
    for (uint32_t i = 0; i < OPI_COUNT(besides) * n_ranks && k == OPI_TRACE_MEASURED; ++i) {
      const uint32_t lane = i / n_ranks, r = i % n_ranks;
      if (!beside[lane])
        continue;
      const uint32_t clock = lane == 0 ? (uint32_t)OPI_CLOCK_HOST : list->clocks[r];
      name_thread(k, n_ranks + i, r, besides[lane], clock, OPIPE_WAY_NONE, text);
    }
  }
  for (uint32_t i = 0; i < n; ++i) {
    const opi_trace_event *e = &events[i];
    opi_text_puts(text, ",\n{\"name\": \"");
    label(e, text);
    opi_text_printf(text,
                    "\", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": %u, \"tid\": %u, \"ts\": %.3f, "
                    "\"dur\": %.3f}",
                    e->pass, e->kind,
                    is_beside(e) ? n_ranks * (1 + beside_of(e)) + e->rank : e->rank,
                    (double)e->start_ns * 1e-3, (double)(e->end_ns - e->start_ns) * 1e-3);
  }
  opi_text_puts(text, "\n]}\n");
}

/* ---- picture ---- */

static uint32_t hue_of(const char *pass) {
  switch (pass[0]) {
    case 'F':
      return 215;
    case 'B':
      return 140;
    case 'I':
      return 190;
    case 'W':
      return 90;
    default:
      return 30;
  }
}

static void draw(const opi_trace_event *e, uint32_t n_ranks, double scale, opi_text *text) {
  const uint32_t top = TOP + e->kind * (n_ranks * LANE + GAP) + e->rank * LANE;
  const uint32_t y = is_beside(e) ? top + LANE - THIN : top; /* across the programs */
  const double x = LEFT + (double)e->start_ns * scale;
  const double width = (double)(e->end_ns - e->start_ns) * scale;
  const uint32_t shade =
      e->stage == OPIPE_NONE ? 70 : 62 + 24 * (e->stage % 2) - 8 * (e->replica % 2);
  opi_text_puts(text, "<g><title>");
  label(e, text);
  opi_text_printf(text,
                  ", %.3f ms</title><rect x=\"%.2f\" y=\"%u\" width=\"%.2f\" height=\"%d\" "
                  "fill=\"hsl(%u,60%%,%u%%)\" stroke=\"#333\" stroke-width=\"0.4\"/>",
                  (double)(e->end_ns - e->start_ns) * 1e-6, x, y, width,
                  is_beside(e) ? THIN : LANE - 4, hue_of(e->pass), shade);
  if (width >= 12 && e->microbatch != OPIPE_NONE) {
    opi_text_printf(text, "<text x=\"%.2f\" y=\"%u\" text-anchor=\"middle\">%u</text>",
                    x + width / 2, y + LANE / 2 + 2, e->microbatch);
  }
  opi_text_puts(text, "</g>\n");
}

static void name_lane(uint32_t y, uint32_t rank, const char *clock, opi_text *text) {
  opi_text_printf(text, "<text x=\"6\" y=\"%u\">rank %u", y, rank);
  if (clock != NULL) {
    opi_text_printf(text, "<tspan x=\"6\" dy=\"8\" font-size=\"7\" fill=\"#555\">%s clock</tspan>",
                    clock);
  }
  opi_text_puts(text, "</text>\n");
}

void opi_trace_svg(const opi_trace_list *list, opi_text *text) {
  const opi_trace_event *events = list->events;
  const uint32_t n = list->n, n_ranks = list->n_ranks;
  uint64_t last[OPI_TRACE_KINDS] = {1, 1};
  for (uint32_t i = 0; i < n; ++i) {
    if (events[i].end_ns > last[events[i].kind])
      last[events[i].kind] = events[i].end_ns;
  }
  const uint64_t most = last[0] > last[1] ? last[0] : last[1];
  opi_text_printf(text,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%u\" "
                  "font-family=\"sans-serif\" font-size=\"10\">\n",
                  LEFT + WIDTH + 20, TOP + OPI_TRACE_KINDS * (n_ranks * LANE + GAP));
  for (uint32_t k = 0; k < OPI_TRACE_KINDS; ++k) {
    const uint32_t top = TOP + k * (n_ranks * LANE + GAP);
    opi_text_printf(text, "<text x=\"6\" y=\"%u\" font-weight=\"bold\">%s: %.3f ms</text>\n",
                    top - 8, titles[k], (double)last[k] * 1e-6);
    for (uint32_t r = 0; r < n_ranks; ++r) {
      const bool measured = k == OPI_TRACE_MEASURED;
      name_lane(top + r * LANE + (measured ? LANE / 2 - 2 : LANE / 2 + 2), r,
                opi_clock_names[measured ? list->clocks[r] : OPI_CLOCK_NONE], text);
    }
  }
  for (uint32_t i = 0; i < n; ++i)
    draw(&events[i], n_ranks, (double)WIDTH / (double)most, text);
  opi_text_puts(text, "</svg>\n");
}
