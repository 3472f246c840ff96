/* SPDX-License-Identifier: Apache-2.0 */
/* An answer as text and as JSON. */
#include <inttypes.h>
#include <math.h>

#include "loader/base/json.h"
#include "partition/study/auto/auto.h"

static const char *const stops[] = {"no", "work", "clock"};
static const double MIB = 1 << 20;

const char *opi_auto_stop_name(uint32_t stopped) {
  return stopped < OPI_COUNT(stops) ? stops[stopped] : "?";
}

/* Marks the described strategy if it is not the first. */
static void write_line(const opi_auto_answer *a, uint32_t index, uint32_t i, opi_text *text) {
  const opi_auto_ranked *r = &a->ranked[i];
  const opi_strategy *s = r->strategy;
  const uint32_t n_devices = s->n_ranks * s->pipelines * s->width;
  opi_text_printf(
      text, "%2u%c %10.3f ms %9.1f MiB  bubble %4.1f %%  %s, %u stage%s", i + 1,
      i == index && i != 0 ? '*' : ' ',
      (a->objective == OPI_AUTO_THROUGHPUT ? r->judged.interval_ns : r->judged.step_ns) * 1e-6,
      r->judged.bytes / MIB, 100 * r->judged.bubble, s->schedule, s->n_stages,
      s->n_stages == 1 ? "" : "s");
  opi_text_printf(text, " on %u device%s, %u x %u micro-batches of %u", n_devices,
                  n_devices == 1 ? "" : "s", s->pipelines, s->microbatches, s->samples);
  if (s->width > 1)
    opi_text_printf(text, ", width %u", s->width);
  opi_text_printf(text, "%s%s%s\n", s->recompute ? ", recomputed" : "",
                  s->sharded ? ", sharded" : "", s->scattered ? ", scattered" : "");
  if (r->reason != NULL)
    opi_text_printf(text, "      %s\n", r->reason);
}

/* Compares stages with copies that take the requests of a stream in turn. */
static void write_turns(const opi_auto_answer *a, opi_text *text) {
  const opi_auto_turns *t = &a->turns;
  const double stages = a->ranked[0].judged.interval_ns;
  if (t->interval_ns <= 0)
    return;
  if (t->n_copies == 0) {
    opi_text_printf(text,
                    "replicas  none: the whole model has %.1f MiB of weights, more than a "
                    "device holds\n",
                    t->weights_bytes / MIB);
    return;
  }
  opi_text_printf(text,
                  "replicas  %u cop%s of the whole model, requests in turn: %.3f ms between "
                  "requests, the stages %.3f ms; %s\n",
                  t->n_copies, t->n_copies == 1 ? "y" : "ies", t->interval_ns * 1e-6, stages * 1e-6,
                  t->interval_ns < stages ? "they are better off" : "stages are as good");
  if (t->interval_ns < stages) {
    opi_text_printf(text,
                    "          (imbalance and hand-off of stages: %.3f ms; --stages 1 "
                    "--replicas %u)\n",
                    (stages - t->interval_ns) * 1e-6, t->n_copies);
  }
  opi_text_printf(text,
                  "          each request reads %.1f MiB of weights on one device, or %.1f MiB on "
                  "each: where a cache holds a stage and not the whole, measure both\n",
                  t->weights_bytes / MIB, t->stage_weights_bytes / MIB);
}

void opi_auto_describe(const opi_auto_answer *a, uint32_t index, const opi_layers *layers,
                       opi_text *text) {
  opi_strategy_describe(a->ranked[index].strategy, layers, a->forward, text);
  opi_text_printf(text, "objective %s; %u candidates: %u bounded away, %u simulated, %u refused",
                  opi_auto_objective_name(a->objective), a->n_candidates, a->n_bounded,
                  a->n_simulated, a->n_refused);
  if (a->n_left > 0)
    opi_text_printf(text, ", %u left", a->n_left);
  opi_text_puts(text, a->complete ? "; all cuts of all shapes\n" : "\n");
  if (a->whole != NULL) {
    char line[OPI_LINE_ROOM];
    opi_text_printf(text, "whole     the batch is one micro-batch: %s\n",
                    opi_text_line(line, a->whole));
  }
  if (a->stopped == OPI_STOPPED_WORK)
    opi_text_puts(text, "stopped   by counted work\n");
  if (a->stopped == OPI_STOPPED_CLOCK)
    opi_text_puts(text, "stopped   by the clock: another run may answer otherwise\n");
  if (a->bound > 0) {
    const bool bytes = a->objective == OPI_AUTO_MEMORY;
    opi_text_printf(text, "bound     %.3f %s, gap%s %.1f %%\n", a->bound / (bytes ? MIB : 1e6),
                    bytes ? "MiB" : "ms", index > 0 ? " of the best" : "", 100 * a->gap);
  }
  write_turns(a, text);
  for (uint32_t i = 0; i < a->n_ranked; ++i)
    write_line(a, index, i, text);
}

static void write_number(opi_text *text, const char *name, double value) {
  opi_text_printf(text, ", \"%s\": ", name);
  if (isfinite(value))
    opi_json_double(text, value);
  else
    opi_text_puts(text, "null");
}

void opi_auto_write(const opi_auto_answer *a, uint32_t index, opi_text *text) {
  opi_strategy_write_open(a->ranked[index].strategy, text);
  opi_text_puts(text, ",\n  \"search\": {\n  \"objective\": ");
  opi_text_json(text, opi_auto_objective_name(a->objective));
  opi_text_printf(text,
                  ", \"rank\": %u, \"candidates\": %u, \"bounded\": %u, \"simulated\": %u, "
                  "\"refused\": %u, \"left\": %u, \"complete\": %s, \"stopped\": \"%s\"",
                  index + 1, a->n_candidates, a->n_bounded, a->n_simulated, a->n_refused, a->n_left,
                  a->complete ? "true" : "false", opi_auto_stop_name(a->stopped));
  write_number(text, "bound", a->bound);
  write_number(text, "gap", a->gap);
  if (a->whole != NULL) {
    opi_text_puts(text, ",\n  \"whole\": ");
    opi_text_json(text, a->whole);
  }
  if (a->turns.interval_ns > 0) {
    opi_text_printf(text, ",\n  \"replicas\": {\"copies\": %u", a->turns.n_copies);
    write_number(text, "interval_ns", a->turns.interval_ns);
    write_number(text, "weights_bytes", a->turns.weights_bytes);
    write_number(text, "stage_weights_bytes", a->turns.stage_weights_bytes);
    opi_text_puts(text, "}");
  }
  opi_text_puts(text, ",\n  \"ranked\": [\n");
  for (uint32_t i = 0; i < a->n_ranked; ++i) {
    const opi_auto_ranked *r = &a->ranked[i];
    opi_text_puts(text, "{\"reason\": ");
    if (r->reason == NULL)
      opi_text_puts(text, "null");
    else
      opi_text_json(text, r->reason);
    write_number(text, "bound_ns", r->bound_ns);
    write_number(text, "step_ns", r->judged.step_ns);
    write_number(text, "interval_ns", r->judged.interval_ns);
    write_number(text, "compute_ns", r->judged.compute_ns);
    write_number(text, "exposed_ns", r->judged.exposed_ns);
    write_number(text, "bubble", r->judged.bubble);
    write_number(text, "utilisation", r->judged.utilisation);
    write_number(text, "bytes", r->judged.bytes);
    write_number(text, "cap_bytes", r->judged.cap_bytes);
    opi_text_printf(text, ", \"device\": %u, \"strategy\":\n", r->judged.device);
    opi_strategy_write(r->strategy, text);
    opi_text_puts(text, i + 1 == a->n_ranked ? "}\n" : "},\n");
  }
  opi_text_puts(text, "  ]}\n}\n");
}
