/* SPDX-License-Identifier: Apache-2.0 */
/* Figures and traces of a play. */
#include "partition/study/simulate/report.h"

#include <inttypes.h>

#include "loader/base/json.h"

static uint32_t n_played(const opi_play_report *r) {
  return r->play->n_lists * r->result->n_classes;
}

static void put_number(opi_text *t, const char *name, double value) {
  opi_text_puts(t, name);
  opi_json_double(t, value);
}

/* ---- figures ---- */

typedef struct figure {
  const char *name, *title;
  double value;
  bool is_unknown; /* unknown flops of a plan or rates of a cluster: not 0 */
  bool is_missing; /* it is not a plan */
} figure;

enum { FIGURES = 10, TIMES = 4 /* come first */ };

static void find_figures(const opi_play_report *r, figure out[FIGURES]) {
  const figure figures[FIGURES] = {
      {"step_ns", "step (ms)", r->step_ns},
      {"makespan_ns", "makespan (ms)", r->result->makespan},
      {"request_ns", "alone (ms)", r->request_ns, .is_missing = r->request_ns < 0},
      {"interval_ns", "interval (ms)", r->interval_ns, .is_missing = r->interval_ns < 0},
      {"bubble", "bubble, of all time", r->bubble},
      {"bubble_overhead", "bubble, over busy", r->bubble_overhead},
      {"microbatches_per_s", "micro-batches/s",
       r->step_ns > 0 ? r->n_microbatches / (r->step_ns * 1e-9) : 0},
      {"flops_per_s", "flops/s", r->flops, r->flops <= 0},
      {"utilisation", "utilisation", r->utilisation, r->utilisation <= 0},
      {"devices", "devices", r->n_ranks}};
  for (uint32_t i = 0; i < FIGURES; ++i)
    out[i] = figures[i];
}

static void describe_ranks(const opi_play_report *r, bool json, opi_text *t) {
  const uint32_t n = r->result->n_classes;
  if (!json) {
    opi_text_puts(t,
                  "rank  copies   busy (ms)    end (ms)   sent (MiB)   kept (MiB)  total (MiB)\n");
  }
  for (uint32_t rank = 0; rank < n_played(r); ++rank) {
    const opi_played *p = r->result;
    const uint32_t list = rank / n, copies = p->class_size[rank % n];
    const double total = p->peak_bytes[rank] + r->fixed_bytes[list];
    if (json) {
      opi_text_printf(t, "%s\n  {\"rank\": %u, \"copies\": %u", rank == 0 ? "" : ",", list, copies);
      put_number(t, ", \"busy_ns\": ", p->busy_ns[rank]);
      put_number(t, ", \"finish_ns\": ", p->finish_ns[rank]);
      put_number(t, ", \"sent_bytes\": ", p->sent_bytes[rank]);
      put_number(t, ", \"kept_bytes\": ", p->peak_bytes[rank]);
      put_number(t, ", \"total_bytes\": ", total);
      opi_text_puts(t, "}");
    } else {
      opi_text_printf(t, "%4u %7u %11.3f %11.3f %12.3f %12.3f %12.3f\n", list, copies,
                      p->busy_ns[rank] * 1e-6, p->finish_ns[rank] * 1e-6,
                      p->sent_bytes[rank] / (1 << 20), p->peak_bytes[rank] / (1 << 20),
                      total / (1 << 20));
    }
  }
}

static void describe_tiers(const opi_play_report *r, bool json, opi_text *t) {
  const opi_cluster *c = r->play->cluster;
  char line[OPI_LINE_ROOM];
  for (uint32_t i = 0; i < c->n_tiers; ++i) {
    const opi_play_tier *tier = &r->result->tiers[i];
    if (json) {
      opi_text_puts(t, i == 0 ? "\n  {\"name\": " : ",\n  {\"name\": ");
      opi_text_json(t, opi_text_line(line, c->tiers[i].name));
      put_number(t, ", \"bytes\": ", tier->n_bytes);
      put_number(t, ", \"busiest\": ", tier->busiest);
      opi_text_puts(t, "}");
    } else {
      opi_text_printf(t, "tier %-24.24s %12.3f MiB, busiest port %.1f %%\n",
                      opi_text_line(line, c->tiers[i].name), tier->n_bytes / (1 << 20),
                      100 * tier->busiest);
    }
  }
}

void opi_play_describe(const opi_play_report *r, bool json, opi_text *t) {
  figure figures[FIGURES];
  find_figures(r, figures);
  for (uint32_t i = 0; i < FIGURES; ++i) {
    const bool in_ms = i < TIMES;
    if (figures[i].is_missing)
      continue;
    if (json) {
      opi_text_printf(t, "%s\"%s\"", i == 0 ? "{" : ", ", figures[i].name);
      if (figures[i].is_unknown)
        opi_text_puts(t, ": null");
      else
        put_number(t, ": ", figures[i].value);
    } else if (figures[i].is_unknown) {
      opi_text_printf(t, "%-20s not known\n", figures[i].title);
    } else {
      opi_text_printf(t, "%-20s %.6g\n", figures[i].title,
                      in_ms ? figures[i].value * 1e-6 : figures[i].value);
    }
  }
  opi_text_puts(t, json ? ",\n \"tiers\": [" : "");
  describe_tiers(r, json, t);
  opi_text_puts(t, json ? "],\n \"ranks\": [" : "");
  describe_ranks(r, json, t);
  opi_text_puts(t, json ? "]}\n" : "");
}

/* ---- over time ---- */

/* Sees each span of time of a rank. */
typedef void (*span_fn)(void *ctx, uint32_t rank, const opi_play_op *op, double start, double end);

static void each_span(const opi_play_report *r, span_fn fn, void *ctx) {
  const uint32_t n = r->result->n_classes;
  for (uint32_t rank = 0; rank < n_played(r); ++rank) {
    const uint32_t list = rank / n;
    for (uint32_t i = r->play->list_first[list]; i < r->play->list_first[list + 1]; ++i) {
      const size_t slot = (size_t)i * n + rank % n;
      double take = 0, give = 0;
      opi_play_op_bytes(r->play, &r->play->ops[i], &take, &give);
      if (r->result->end[slot] > r->result->start[slot] ||
          r->play->ops[i].kind == OPI_PLAY_COMPUTE || take > 0 || give > 0)
        fn(ctx, rank, &r->play->ops[i], r->result->start[slot], r->result->end[slot]);
    }
  }
}

typedef struct tracer {
  const opi_play_report *report;
  opi_text *text;
  double held;
  uint32_t rank;
  bool first;
} tracer;

static void put_bytes(tracer *t, uint32_t rank, double at) {
  opi_text_printf(t->text, ",\n{\"name\": \"kept, rank %u\", \"ph\": \"C\", \"pid\": 0", rank);
  put_number(t->text, ", \"ts\": ", at * 1e-3);
  put_number(t->text, ", \"args\": {\"bytes\": ", t->held);
  opi_text_puts(t->text, "}}");
}

static void trace_span(void *ctx, uint32_t rank, const opi_play_op *op, double start, double end) {
  static const char *const kinds[OPI_PLAY_KINDS] = {
      "compute", "send", "post", "receive", "drain", "place", "start", "collective", "batch"};
  tracer *t = ctx;
  const opi_play_report *r = t->report;
  char label[64];
  double take = 0, give = 0;
  if (rank != t->rank)
    t->held = 0;
  t->rank = rank;
  opi_text_puts(t->text, t->first ? "\n{\"name\": " : ",\n{\"name\": ");
  t->first = false;
  opi_text_json(t->text, r->text(r->ctx, op->item, label, sizeof label));
  opi_text_printf(t->text, ", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": 0, \"tid\": %u",
                  kinds[op->kind], rank);
  put_number(t->text, ", \"ts\": ", start * 1e-3);
  put_number(t->text, ", \"dur\": ", (end - start) * 1e-3);
  opi_text_puts(t->text, "}");
  opi_play_op_bytes(r->play, op, &take, &give);
  t->held += take;
  if (take > 0)
    put_bytes(t, rank, start);
  t->held -= give;
  if (give > 0)
    put_bytes(t, rank, end);
}

void opi_play_trace(const opi_play_report *report, opi_text *out_text) {
  tracer t = {.report = report, .text = out_text, .first = true, .rank = OPIPE_NONE};
  opi_text_puts(out_text, "[");
  each_span(report, trace_span, &t);
  opi_text_puts(out_text, "\n]\n");
}

/* ---- a picture ---- */

enum { LANE = 26, LEFT = 64, TOP = 30, PROGRAMS_MOST = 200000, LABEL_LEAST = 24, WIDE = 1600 };

typedef struct picture {
  const opi_play_report *report;
  opi_text *text;
  double scale;
} picture;

static const char *fill_of(const opi_play_report *r, const opi_play_op *op) {
  if (op->kind != OPI_PLAY_COMPUTE)
    return op->kind == OPI_PLAY_JOIN ? "#f3c98b" : "#eee";
  switch (r->kind(r->ctx, op->item)) {
    case OPI_DO_F:
      return "#9fc1f0";
    case OPI_DO_R:
      return "#d3b5ec";
    case OPI_DO_B:
      return "#93d6a4";
    case OPI_DO_I:
      return "#8fd6d9";
    case OPI_DO_W:
      return "#c4df8a";
    default:
      return "#f0a29f";
  }
}

static void draw_span(void *ctx, uint32_t rank, const opi_play_op *op, double start, double end) {
  const picture *p = ctx;
  char label[64];
  const char *text = p->report->text(p->report->ctx, op->item, label, sizeof label);
  const double x = LEFT + start * p->scale, width = (end - start) * p->scale;
  opi_text_printf(p->text,
                  "<g><title>%s, %g to %g us</title><rect x=\"%.2f\" y=\"%u\" width=\"%.2f\" "
                  "height=\"%d\" fill=\"%s\" stroke=\"#333\" stroke-width=\"0.3\"/>",
                  text, start * 1e-3, end * 1e-3, x, TOP + rank * LANE, width, LANE - 4,
                  fill_of(p->report, op));
  if (op->kind == OPI_PLAY_COMPUTE && width >= LABEL_LEAST) {
    opi_text_printf(p->text, "<text x=\"%.2f\" y=\"%u\" text-anchor=\"middle\">%s</text>",
                    x + width / 2, TOP + rank * LANE + LANE / 2 + 2, text);
  }
  opi_text_puts(p->text, "</g>\n");
}

opipe_status opi_play_draw(const opi_play_report *r, opi_text *t, opipe_error *err) {
  const double makespan = r->result->makespan > 0 ? r->result->makespan : 1;
  picture p = {.report = r, .text = t, .scale = WIDE / makespan};
  const uint32_t n_ops = r->play->list_first[r->play->n_lists];
  if ((uint64_t)n_ops * r->result->n_classes > PROGRAMS_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "%u operations of %u classes; at most %d are drawn", n_ops,
                    r->result->n_classes, PROGRAMS_MOST);
  }
  opi_text_printf(t,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%u\" "
                  "font-family=\"sans-serif\" font-size=\"10\">\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
                  "<text x=\"%d\" y=\"16\">%u devices, step %g ms; blue F, green B, cyan I, lime "
                  "W, red the step, orange a collective, grey a message</text>\n",
                  LEFT + WIDE + 16, TOP + n_played(r) * LANE + 10, LEFT, r->n_ranks,
                  r->step_ns * 1e-6);
  for (uint32_t rank = 0; rank < n_played(r); ++rank) {
    opi_text_printf(t, "<text x=\"6\" y=\"%u\">rank %u</text>\n", TOP + rank * LANE + LANE / 2 + 2,
                    rank / r->result->n_classes);
  }
  each_span(r, draw_span, &p);
  opi_text_puts(t, "</svg>\n");
  return t->failed ? opi_fail_nomem(err, t->room, "a drawing") : OPIPE_OK;
}
