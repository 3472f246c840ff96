/* SPDX-License-Identifier: Apache-2.0 */
/* One case of the matrix of training; see cases.h. */
#include "tests/runtime/train/cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const int64_t TOKENS = 8, CLASSES = 32;

const kit_compute kit_computes[3] = {{"fp32", OPIPE_FLOAT, 1e-5, 1e-5},
                                     {"bf16", OPIPE_BFLOAT16, 2e-2, 4e-2},
                                     {"fp16", OPIPE_FLOAT16, 2e-3, 8e-3}};

const kit_subject kit_subjects[] = {
    {"gpt_8block", "tests/data/gpt_8block/model.onnx", false, NULL},
    {"llama_8block", "tests/data/llama_8block/model.onnx", false, NULL},
    {"gpt2", "models/modern/gpt2/train/model.onnx", true, NULL},
    {"llama", "models/modern/llama/train/model.onnx", true, NULL},
    {"bert", "models/modern/bert/train/model.onnx", true,
     "node 'node_Softmax_138/4' (Attention): tokens cannot be sliced: it is not causal"},
    {"t5", "models/modern/t5/train/model.onnx", true,
     "node 'node_softmax/3/4' (Attention): tokens cannot be sliced: it is not causal"},
};
const size_t kit_n_subjects = OPI_COUNT(kit_subjects);

const kit_schedule kit_schedules[] = {
    {"sequential", 0},
    {"gpipe", 0},
    {"1f1b", 0},
    {"1f1b:policy=pa", 0},
    {"1f1b:policy=pb", 0},
    {"1f1b:eager=1", 0},
    {"1f1b:depth=2", 0},
    {"1f1b", KIT_BOUNDED},
    {"interleaved:chunks=2", 0},
    {"interleaved:chunks=2,warmup=torch", 0},
    {"interleaved:chunks=2,group=2,backward=halves", 0},
    {"looped-bfs:chunks=2", 0},
    {"chimera", 0},
    {"chimera:concat=doubling", 0},
    {"chimera:concat=halving", KIT_HALVED},
    {"chimera:sync=eager", 0},
    {"chimera:sync=eager-opt", 0},
    {"chimera:pipelines=4", KIT_FOUR},
    {"chimera:pipelines=4,concat=doubling", KIT_FOUR},
    {"2bw", KIT_BUFFERED},
    {"zb-h1", 0},
    {"zb-h2", 0},
    {"zb-auto", 0},
    {"zb-auto:memory=2", 0},
    {"zb-interleaved:chunks=2", 0},
    {"zbv", 0},
    {"zbv:order=torch", 0},
    {"v-half", 0},
    {"v-min", 0},
    {"dualpipev", 0},
    {"terapipe:slices=4", KIT_SLICED},
    {"terapipe:lengths=3+5", KIT_SLICED},
    {"seq1f1b:slices=4", KIT_SLICED},
    {"file", KIT_WRITTEN},
};
const size_t kit_n_schedules = OPI_COUNT(kit_schedules);

const kit_schedule kit_pieces[2] = {{"file", KIT_WRITTEN | KIT_SLICED},
                                    {"file", KIT_WRITTEN | KIT_SLICED | KIT_HALVED}};

const kit_optimizer kit_optimizers[2] = {
    {"SGD", {.kind = OPIPE_OPTIMIZER_SGD, .lr = 0.05, .momentum = 0.9}},
    {"AdamW",
     {.kind = OPIPE_OPTIMIZER_ADAMW,
      .lr = 0.001,
      .beta1 = 0.9,
      .beta2 = 0.999,
      .epsilon = 1e-8,
      .decay = 0.01,
      .clip_norm = 1.0}},
};

/* ---- a bench ---- */

kit_case kit_bench_case(const kit_bench *b, const char *schedule, uint32_t n_ranks, uint32_t m,
                        uint32_t optimizer) {
  return (kit_case){
      .schedule = schedule,
      .n_ranks = n_ranks,
      .n_microbatches = m,
      .transport = b->place.transport,
      .device = b->place.device,
      .device_options = b->place.device_options,
      .device_index = b->place.device_index,
      .spread = b->place.spread,
      .spec = {.loss = {.kind = OPI_LOSS_CROSS_ENTROPY, .labels = "labels", .ignore = -100},
               .optimizer = kit_optimizers[optimizer].spec,
               .compute = b->compute->dtype}};
}

static opipe_status list_parameters(kit_bench *b, opi_session *session) {
  opi_weight_info info;
  for (uint32_t i = 0; opi_weights_info(opi_train_weights(session), i, &info); ++i) {
    const size_t n = (size_t)info.source->n_bytes / sizeof(float);
    if (info.trained == 0)
      continue;
    if (b->n_params == KIT_PARAMS)
      return opi_fail(&b->k.err, OPIPE_E_LIMIT, "more than %d parameters", KIT_PARAMS);
    b->params[b->n_params++] = (kit_parameter){
        .name = opi_arena_strdup(&b->k.arena, info.source->name), .first = b->n_elems, .n = n};
    b->n_elems += n;
  }
  for (uint32_t i = 0; i < 2; ++i)
    b->weights[i] = OPI_ARENA_ARRAY(&b->k.arena, float, b->n_elems);
  return b->weights[1] == NULL ? OPIPE_E_NOMEM : OPIPE_OK;
}

opipe_status kit_bench_weights(kit_bench *b, opi_session *session, uint32_t state, float *dst) {
  for (uint32_t p = 0; p < b->n_params; ++p) {
    OPI_TRY(opi_weights_get(opi_train_weights(session), b->params[p].name, state, 0,
                            dst + b->params[p].first, b->params[p].n * sizeof *dst, &b->k.err));
  }
  return OPIPE_OK;
}

const char *kit_subject_path(const kit_subject *subject) {
  return subject->shared ? opi_test_shared(subject->path) : opi_test_source(subject->path);
}

opipe_status kit_bench_open(kit_bench *b, const kit_subject *subject, const kit_compute *compute,
                            int64_t rows) {
  opi_session *session = NULL;
  memset(b, 0, sizeof *b);
  b->subject = subject;
  b->compute = compute;
  b->rows = rows;
  opipe_status status = kit_open(&b->k, kit_subject_path(subject), rows, TOKENS);
  kit_case c = kit_bench_case(b, "gpipe", 1, 1, 0);
  for (uint32_t s = 0; s < kit_n_steps() && status == OPIPE_OK; ++s)
    status = kit_batch_random(&b->k, &c, CLASSES, 100 + s, &b->batches[s]);
  for (uint32_t s = 0; s < kit_n_steps(); ++s) { /* they point into themselves */
    for (uint32_t i = 0; i < b->batches[s].n_inputs; ++i)
      b->batches[s].inputs[i].tensor.shape = b->batches[s].shapes[i];
  }
  c.spec.optimizer = (opi_optimizer){.kind = OPIPE_OPTIMIZER_SGD}; /* of rate 0 */
  if (status == OPIPE_OK)
    status = kit_plan(&b->k, &c);
  if (status == OPIPE_OK)
    status = kit_session(&b->k, OPIPE_SESSION_KEEP_GRADIENTS, &session);
  if (status == OPIPE_OK)
    status = list_parameters(b, session);
  if (status == OPIPE_OK)
    status = kit_uncut_train(b, session);
  opi_session_close(session);
  return status;
}

void kit_bench_close(kit_bench *b) {
  for (uint32_t i = 0; i < 4; ++i) {
    free(b->uncut[i / 2][i % 2].weights);
    free(b->uncut[i / 2][i % 2].noise);
  }
  kit_close(&b->k);
}

/* ---- orders as files ---- */

enum { ORDER_BYTES = 1 << 14, SLICES = 2 };

static void write_text(const char *path, const char *text, size_t n) {
  OPI_ASSERT_FATAL(n < ORDER_BYTES && opi_test_write_file(path, text, n));
}

/* Two token slices; backwards whole or in two parts, and the weights' gradients one unit behind the
 * inputs'. */
static void write_pieces(const char *path, uint32_t n_ranks, uint32_t m, uint32_t n_parts) {
  char text[ORDER_BYTES];
  size_t n = (size_t)snprintf(text, sizeof text,
                              "#onnx-pipe-schedule v1\n#ranks=%u stages=%u replicas=1 "
                              "microbatches=%u slices=%d parts=%u mode=train versions=one "
                              "sync=end\n#place=",
                              n_ranks, n_ranks, m, SLICES, n_parts);
  for (uint32_t r = 0; r < n_ranks; ++r)
    n += (size_t)snprintf(text + n, sizeof text - n, "%s%u", r == 0 ? "" : ",", r);
  const uint32_t units = SLICES * m, parts = units * n_parts;
  for (uint32_t r = 0; r < n_ranks && n < sizeof text / 2; ++r) {
    for (uint32_t u = 0; u < units && n < sizeof text / 2; ++u) {
      n += (size_t)snprintf(text + n, sizeof text - n, "%c%uF%u/%u", u == 0 ? '\n' : ',', r,
                            u / SLICES, u % SLICES);
    }
    for (uint32_t i = 0; i < 2 * parts + 1 && n < sizeof text / 2; ++i) {
      const uint32_t at = i % 2 == 0 ? i / 2 : i / 2 - 1; /* I 0, then I 1, W 0, I 2, W 1 ... */
      const uint32_t u = at / n_parts;
      if (i == 1 || (i % 2 == 0 && at == parts))
        continue;
      n += (size_t)snprintf(text + n, sizeof text - n, ",%u%c%u/%u~%u", r, i % 2 == 0 ? 'I' : 'W',
                            u / SLICES, SLICES - 1 - u % SLICES, at % n_parts);
    }
    n += (size_t)snprintf(text + n, sizeof text - n, ",%uW%u/0~%u", r, m - 1, n_parts - 1);
  }
  n += (size_t)snprintf(text + n, sizeof text - n, "\n");
  write_text(path, text, n);
}

/* Forwards rising, backwards falling: no plugin's own order. */
static void write_order(const char *path, uint32_t n_ranks, uint32_t m) {
  char text[ORDER_BYTES];
  size_t n = 0;
  for (uint32_t r = 0; r < n_ranks; ++r) {
    for (uint32_t i = 0; i < 2 * m && n < sizeof text; ++i) {
      n += (size_t)snprintf(text + n, sizeof text - n, "%s%u%c%u", i == 0 ? "" : ",", r,
                            i < m ? 'F' : 'B', i < m ? i : 2 * m - 1 - i);
    }
    n += n < sizeof text ? (size_t)snprintf(text + n, sizeof text - n, "\n") : 0;
  }
  write_text(path, text, n);
}

void kit_schedule_name(const kit_schedule *schedule, uint32_t n_ranks, uint32_t m, char *text,
                       size_t room) {
  const uint32_t n_parts = (schedule->traits & KIT_HALVED) != 0 ? 2 : 1;
  const bool sliced = (schedule->traits & KIT_SLICED) != 0;
  char file[40];
  (void)snprintf(text, room, "%s", schedule->name);
  if ((schedule->traits & KIT_WRITTEN) == 0)
    return;
  (void)snprintf(file, sizeof file, "order-%u-%u-%u.csv", n_ranks, m, sliced ? n_parts : 0);
  const char *path = opi_test_tmp(file);
  if (sliced)
    write_pieces(path, n_ranks, m, n_parts);
  else
    write_order(path, n_ranks, m);
  (void)snprintf(text, room, "file:%s", path);
}

/* ---- refusals ---- */

const char *kit_constraint(const kit_subject *subject, int64_t rows, const kit_schedule *s,
                           uint32_t n_ranks, uint32_t m) {
  if (m > rows)
    return "micro-batches of a request of";
  if ((s->traits & KIT_FOUR) != 0 && n_ranks % 4 != 0)
    return "which must divide half the 2 stages";
  if ((s->traits & KIT_BUFFERED) != 0 && m < n_ranks)
    return "needs as many micro-batches as stages";
  if ((s->traits & KIT_HALVED) != 0 && rows / m < 2)
    return "1 row cannot be cut";
  if ((s->traits & KIT_SLICED) != 0)
    return subject->not_causal;
  return NULL;
}

/* ---- running ---- */

typedef struct running {
  kit_bench *b;
  const kit_schedule *schedule;
  uint32_t n_ranks, m, optimizer;
  double losses[2][KIT_TEN];
  char what[200];
} running;

/* All steps are submitted at once; a flush half-way changes nothing. */
static opipe_status train(running *r, bool reference) {
  kit_bench *b = r->b;
  kit *k = &b->k;
  opi_session *session = NULL;
  opi_request *tickets[KIT_TEN] = {NULL};
  opipe_status status = kit_session(k, reference ? OPIPE_SESSION_REFERENCE : 0, &session);
  for (uint32_t s = 0; s < kit_n_steps() && status == OPIPE_OK; ++s) {
    const opipe_submit_params params = {
        .struct_size = (uint32_t)OPIPE_END(opipe_submit_params, deadline_ns),
        .n_inputs = b->batches[s].n_inputs,
        .io_stride = sizeof(opipe_binding_io),
        .inputs = b->batches[s].inputs};
    status = opi_train_step(session, &params, &tickets[s], NULL, &k->err);
    if (status == OPIPE_OK && (s == kit_n_steps() / 2 || s == kit_n_steps() - 1))
      status = opi_train_flush(session, UINT64_C(60000000000), &k->err);
  }
  for (uint32_t s = 0; s < kit_n_steps() && status == OPIPE_OK; ++s) {
    opi_train_result result = {.loss = 0};
    status = opi_train_report(tickets[s], &result, &k->err);
    r->losses[reference][s] = result.loss;
  }
  for (uint32_t s = 0; s < kit_n_steps(); ++s)
    opi_request_release(tickets[s]);
  if (status == OPIPE_OK)
    status = kit_bench_weights(b, session, OPI_TENSOR_WEIGHT, b->weights[reference]);
  opi_session_close(session);
  return status;
}

static bool same_bits(const running *r) {
  bool same = memcmp(r->losses[0], r->losses[1], sizeof r->losses[0]) == 0;
  for (uint32_t s = 0; s < kit_n_steps() && !same; ++s) {
    if (r->losses[0][s] != r->losses[1][s]) {
      OPI_FAIL("%s: loss %.17g at step %u, the reference has %.17g", r->what, r->losses[0][s], s,
               r->losses[1][s]);
      break;
    }
  }
  for (uint32_t p = 0; p < r->b->n_params; ++p) {
    const kit_parameter *param = &r->b->params[p];
    const size_t first = param->first;
    if (memcmp(r->b->weights[0] + first, r->b->weights[1] + first, param->n * sizeof(float)) == 0)
      continue;
    OPI_FAIL("%s: '%s' has other bits than the reference", r->what, param->name);
    return false;
  }
  return same;
}

/* Losses, then weights, against the uncut model. */
static bool close_losses(const running *r, const kit_uncut *uncut, double *io_worst) {
  for (uint32_t s = 0; s < kit_n_steps(); ++s) {
    const double d =
        fabs(r->losses[0][s] - uncut->losses[s]) / (r->b->compute->close * fabs(uncut->losses[s]));
    if (!(d <= 1)) {
      OPI_FAIL("%s: loss %.9g at step %u, the uncut model has %.9g", r->what, r->losses[0][s], s,
               uncut->losses[s]);
      return false;
    }
    *io_worst = fmax(*io_worst, d);
  }
  return true;
}

static bool close_weights(const running *r, const kit_uncut *uncut, double *io_worst) {
  const kit_bench *b = r->b;
  for (uint32_t p = 0; p < b->n_params; ++p) {
    const kit_parameter *param = &b->params[p];
    double most = 0;
    for (size_t i = param->first; i < param->first + param->n; ++i)
      most = fmax(most, fabs(uncut->weights[i]));
    for (size_t i = param->first; i < param->first + param->n; ++i) {
      const double d = fabs((double)b->weights[0][i] - uncut->weights[i]);
      const double allowed = b->compute->weights * most + uncut->noise[i];
      if (!(d <= allowed)) {
        OPI_FAIL("%s: '%s'[%zu] is %.9g, the uncut model has %.9g: %.3g apart, %.3g allowed",
                 r->what, param->name, i - param->first, (double)b->weights[0][i],
                 uncut->weights[i], d, allowed);
        return false;
      }
      *io_worst = fmax(*io_worst, d == 0 ? 0 : d / allowed);
    }
  }
  return true;
}

static void execute(running *r, kit_tally *tally) {
  const bool buffered = (r->schedule->traits & KIT_BUFFERED) != 0;
  const kit_uncut *uncut = &r->b->uncut[r->optimizer][buffered];
  bool passed = false;
  if (train(r, false) != OPIPE_OK || train(r, true) != OPIPE_OK) {
    OPI_FAIL("%s: %s", r->what, r->b->k.err.message);
  } else {
    const bool same = same_bits(r);
    const bool near = close_losses(r, uncut, &tally->worst_loss) &&
                      close_weights(r, uncut, &tally->worst_weights);
    passed = same && near;
  }
  ++*(passed ? &tally->passed : &tally->failed);
}

/* ---- bounded by memory ---- */

/* Most micro-batches that rank 0 holds between a forward and its backward. */
static uint32_t kept(const opi_decision *plan) {
  uint32_t held = 0, most = 0;
  for (uint32_t a = plan->rank_first[0]; a < plan->rank_first[1]; ++a) {
    held += plan->actions[a].pass == OPIPE_PASS_FORWARD;
    most = held > most ? held : most;
    held -= plan->actions[a].pass == OPIPE_PASS_BACKWARD;
  }
  return most;
}

/* Plans without a cap, then with rank 0 below what that takes; false: no plan keeps less. */
static bool bound_memory(running *r, kit_case *c, kit_tally *tally) {
  kit *k = &r->b->k;
  uint64_t caps[8] = {0};
  if (kit_plan(k, c) != OPIPE_OK) {
    OPI_FAIL("%s: no plan: %s", r->what, k->err.message);
    ++tally->failed;
    return false;
  }
  const uint32_t before = kept(&k->plan->decided);
  caps[0] = k->plan->predicted.memory[0].total_bytes - 1;
  c->caps = caps;
  const opipe_status status = kit_plan(k, c);
  c->caps = NULL;
  if (status == OPIPE_OK && kept(&k->plan->decided) < before)
    return true;
  if (status != OPIPE_OK && status != OPIPE_E_LIMIT) {
    OPI_FAIL("%s: no plan in %llu bytes: %s", r->what, (unsigned long long)caps[0], k->err.message);
    ++tally->failed;
  } else {
    ++tally->skipped; /* one micro-batch is all it keeps, or another cut fits */
  }
  return false;
}

/* ---- one case ---- */

static void refuse(const running *r, opipe_status status, const char *text, kit_tally *tally) {
  const char *message = r->b->k.err.message;
  const bool right = status < 0 && text != NULL && strstr(message, text) != NULL;
  if (!right && text == NULL) {
    OPI_FAIL("%s: no plan: %s", r->what, message);
  } else if (!right) {
    OPI_FAIL("%s: status %d, %s; to be refused with: %s", r->what, status,
             status < 0 ? message : "a plan", text);
  }
  ++*(right ? &tally->refused : &tally->failed);
}

void kit_case_run(kit_bench *b, const kit_schedule *schedule, uint32_t n_ranks, uint32_t m,
                  uint32_t optimizer, kit_tally *tally) {
  running r = {.b = b, .schedule = schedule, .n_ranks = n_ranks, .m = m, .optimizer = optimizer};
  char name[600];
  kit_schedule_name(schedule, n_ranks, m, name, sizeof name);
  (void)snprintf(r.what, sizeof r.what,
                 "%s in %s, %s%s, %u ranks, %u micro-batches of %lld rows, %s", b->subject->name,
                 b->compute->name, schedule->name,
                 (schedule->traits & KIT_BOUNDED) != 0 ? " in less memory" : "", n_ranks, m,
                 (long long)b->rows, kit_optimizers[optimizer].name);
  kit_case c = kit_bench_case(b, name, n_ranks, m, optimizer);
  const char *text = kit_constraint(b->subject, b->rows, schedule, n_ranks, m);
  if ((schedule->traits & KIT_BOUNDED) != 0 && text == NULL) {
    if (!bound_memory(&r, &c, tally))
      return;
  } else {
    const opipe_status status = kit_plan(&b->k, &c);
    if (status != OPIPE_OK || text != NULL) {
      refuse(&r, status, text, tally);
      return;
    }
  }
  execute(&r, tally);
}

void kit_tally_print(const char *what, const kit_tally *tally) {
  (void)printf(
      "\n%s: %u passed, %u refused as they must be, %u skipped (no plan keeps less), %u failed; at "
      "most %.2g of what losses may differ by, %.2g of what weights may\n",
      what, tally->passed, tally->refused, tally->skipped, tally->failed, tally->worst_loss,
      tally->worst_weights);
}
