/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of real models against another framework's: every family of ../shared/models/gradients
 * (given cotangents) and every training export of ../shared/models/modern (cross entropy), fused
 * and not, by ||a - b|| <= 1e-4 max(||b||, 0.2 RMS sqrt(n)).
 *
 * ctest: timeout=300
 */
#include <dirent.h>
#include <sys/stat.h>

#include "loader/ops/kit.h"
#include "tests/loader/gradient/training.h"

enum { MOST_PARAMS = 512 };

typedef struct reference {
  const char *names[MOST_PARAMS];
  const float *data[MOST_PARAMS];
  size_t n[MOST_PARAMS];
  uint32_t count;
  double rms;
} reference;

typedef struct model_case {
  test_model m;
  const char *folder;
  opi_bound *bound;
  opi_training *training;
  reference ref;
  opi_train_glob globs[MOST_PARAMS];
  const char *frozen; /* slopes of ALiBi: no file says that they are no parameter */
  opi_loss loss;
  test_feed feeds[TEST_MAX_TENSORS];
  uint32_t n_feeds;
} model_case;

static const char *file_in(const model_case *c, const char *name) {
  static char path[4][1024];
  static int at;
  at = (at + 1) % 4;
  (void)snprintf(path[at], sizeof(path[at]), "%s/%s", c->folder, name);
  return path[at];
}

static void add_reference(reference *r, const char *name, const float *data, size_t n) {
  if (r->count == MOST_PARAMS)
    return;
  r->names[r->count] = name;
  r->data[r->count] = data;
  r->n[r->count++] = n;
}

static void finish_reference(reference *r) {
  double sum = 0, n = 0;
  for (uint32_t i = 0; i < r->count; ++i) {
    for (size_t k = 0; k < r->n[i]; ++k)
      sum += (double)r->data[i][k] * (double)r->data[i][k];
    n += (double)r->n[i];
  }
  r->rms = n > 0 ? sqrt(sum / n) : 0;
}

/* {"name":{"dtype":"F32","shape":[..],"data_offsets":[a,b]}, ...} after eight bytes of length. */
static bool read_safetensors(model_case *c, const char *path) {
  size_t n = 0;
  char *bytes = opi_test_read_file(path, &n);
  uint64_t head = 0;
  if (bytes == NULL || n < 8)
    return false;
  char *own = opi_arena_copy(&c->m.arena, bytes, n + 1);
  free(bytes);
  memcpy(&head, own, 8);
  char *at = own + 8, *end = own + 8 + head;
  while (at < end && (at = memchr(at, '"', (size_t)(end - at))) != NULL) {
    char *name = at + 1, *close = strchr(name, '"');
    char *offsets = strstr(close, "\"data_offsets\"");
    char *body = strchr(close, '{');
    if (strncmp(name, "__metadata__", 12) == 0) {
      at = strchr(body, '}') + 1;
      continue;
    }
    if (offsets == NULL || offsets >= end)
      break;
    char *rest = NULL;
    const uint64_t a = strtoull(strchr(offsets, '[') + 1, &rest, 10);
    const uint64_t b = strtoull(rest + 1, &rest, 10);
    *close = '\0';
    add_reference(
        &c->ref, name,
        (const float *)(const void *)opi_arena_copy(&c->m.arena, own + 8 + head + a, b - a),
        (b - a) / 4);
    at = strchr(rest, '}') + 1;
  }
  finish_reference(&c->ref);
  return c->ref.count > 0;
}

static void feed_inputs(model_case *c) {
  c->n_feeds = 0;
  for (uint32_t i = 0; i < c->m.n_inputs; ++i) {
    c->feeds[c->n_feeds++] =
        (test_feed){c->m.inputs[i].name, c->m.inputs[i].data, c->m.inputs[i].n_bytes};
  }
}

/* One-element initializers are trained by their full names only. */
static uint32_t name_all(model_case *c, const opi_bound *bound) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < c->ref.count; ++i) {
    const uint32_t v = opi_bound_value(bound, c->ref.names[i]);
    if (c->ref.n[i] == 1 && v != OPIPE_NONE &&
        (bound->graph->values[v].flags & OPI_VALUE_INITIALIZER) != 0)
      c->globs[n++] = (opi_train_glob){c->ref.names[i], true};
  }
  if (c->frozen != NULL)
    c->globs[n++] = (opi_train_glob){c->frozen, false};
  return n;
}

static void compare(const model_case *c, const char *what, double *const *gradients,
                    const size_t *sizes) {
  const opi_training *t = c->training;
  for (uint32_t i = 0; i < c->ref.count; ++i) {
    const opi_train_param *p = NULL;
    uint32_t at = 0;
    for (uint32_t k = 0; k < t->n_params; ++k) {
      if (strcmp(t->params[k].name, c->ref.names[i]) == 0) {
        p = &t->params[k];
        at = k;
      }
    }
    if (p == NULL || gradients[at] == NULL || sizes[at] != c->ref.n[i]) {
      OPI_FAIL("%s (%s): no gradient of '%s' (why %d)", c->folder, what, c->ref.names[i],
               p == NULL ? -1 : (int)p->why);
      continue;
    }
    double off = 0, norm = 0;
    for (size_t k = 0; k < sizes[at]; ++k) {
      const double b = (double)c->ref.data[i][k], d = gradients[at][k] - b;
      off += d * d;
      norm += b * b;
    }
    const double floor = 0.2 * c->ref.rms * sqrt((double)sizes[at]);
    const double limit = 1e-4 * fmax(sqrt(norm), floor);
    (void)opi_test_check(sqrt(off) <= limit, __FILE__, __LINE__, false,
                         "%s (%s): '%s' is off by %g, at most %g (norm %g)", c->folder, what,
                         c->ref.names[i], sqrt(off), limit, sqrt(norm));
  }
  for (uint32_t k = 0; k < t->n_params; ++k) { /* nothing else is trained */
    bool known = gradients[k] == NULL;
    for (uint32_t i = 0; i < c->ref.count; ++i)
      known = known || strcmp(t->params[k].name, c->ref.names[i]) == 0;
    (void)opi_test_check(known, __FILE__, __LINE__, false,
                         "%s (%s): '%s' is trained, the reference has no gradient of it", c->folder,
                         what, t->params[k].name);
  }
}

/* Builds, runs, compares. wanted_loss NaN: not compared. */
static void check(model_case *c, const char *what, double wanted_loss) {
  opipe_error err = OPIPE_ERROR_INIT;
  double loss = 0, *gradients[MOST_PARAMS * 2] = {NULL};
  size_t sizes[MOST_PARAMS * 2] = {0};
  const opi_gradient_options options = {.loss = &c->loss,
                                        .globs = c->globs,
                                        .n_globs = name_all(c, c->bound),
                                        .compute = OPIPE_FLOAT,
                                        .evaluator = test_backend_evaluator(),
                                        .allocator = opi_allocator_system()};
  opipe_status status = opi_gradient_build(c->bound, &options, &c->training, &err);
  if (!opi_test_check(status >= 0, __FILE__, __LINE__, false, "%s (%s): %s", c->folder, what,
                      status < 0 ? err.message : ""))
    return;
  test_step step = {
      .t = c->training, .feeds = c->feeds, .n_feeds = c->n_feeds, .arena = &c->m.arena};
  status = test_run_step(&step, &loss, gradients, sizes, &err);
  if (opi_test_check(status >= 0, __FILE__, __LINE__, false, "%s (%s): run: %s", c->folder, what,
                     status < 0 ? err.message : "")) {
    if (!isnan(wanted_loss)) {
      (void)opi_test_check(fabs(loss - wanted_loss) <= 1e-5 * fabs(wanted_loss), __FILE__, __LINE__,
                           false, "%s (%s): loss %.9g, not %.9g", c->folder, what, loss,
                           wanted_loss);
    }
    compare(c, what, gradients, sizes);
  }
  opi_training_free(c->training);
  c->training = NULL;
}

static bool open_case(model_case *c, const char *folder, uint32_t flags, opipe_error *err) {
  const char *keep[MOST_PARAMS];
  opi_input_shape shapes[TEST_MAX_TENSORS];
  uint32_t n_keep = 0;
  for (uint32_t i = 0; i < c->ref.count; ++i) {
    if (c->ref.n[i] == 1)
      keep[n_keep++] = c->ref.names[i];
  }
  for (uint32_t i = 0; i < c->m.n_inputs; ++i) {
    shapes[i] =
        (opi_input_shape){c->m.inputs[i].name, c->m.inputs[i].shape, (uint32_t)c->m.inputs[i].rank};
  }
  const opi_bind_options options = {.flags = flags | OPI_BIND_DEFAULTS | OPI_BIND_KEEP_PARAMETERS,
                                    .shapes = shapes,
                                    .n_shapes = c->m.n_inputs,
                                    .keep = keep,
                                    .n_keep = n_keep,
                                    .evaluator = test_backend_evaluator(),
                                    .allocator = opi_allocator_system()};
  const opipe_status status = opi_bind(c->m.model, &options, &c->bound, err);
  return opi_test_check(status >= 0, __FILE__, __LINE__, false, "%s: %s", folder,
                        status < 0 ? err->message : "");
}

/* -- models/modern ----------------------------------------------------------------------------- */

static double number_of(const char *text, const char *key) {
  const char *at = text != NULL ? strstr(text, key) : NULL;
  return at != NULL ? strtod(at + strlen(key), NULL) : (double)NAN;
}

static void modern(const char *folder) {
  opipe_error err = OPIPE_ERROR_INIT;
  struct stat info;
  opi_value labels;
  size_t n = 0;
  model_case *c = calloc(1, sizeof(*c));
  c->folder = folder;
  char *meta = opi_test_read_file(file_in(c, "meta.json"), &n);
  const double wanted = number_of(meta, "\"loss\": ");
  if (strstr(folder, "/bloom/") != NULL)
    c->frozen = "unsqueeze_1";
  const char *grads = stat(file_in(c, "grads.safetensors"), &info) == 0
                          ? file_in(c, "grads.safetensors")
                          : file_in(c, "../train/grads.safetensors");
  const bool attached = stat(file_in(c, "labels.pb"), &info) == 0;
  if (opi_test_check(test_load(&c->m, file_in(c, "model.onnx"), &err), __FILE__, __LINE__, false,
                     "%s: %s", folder, err.message) &&
      opi_test_check(test_read_set(&c->m, folder, 0) && read_safetensors(c, grads), __FILE__,
                     __LINE__, false, "%s: no data", folder)) {
    feed_inputs(c);
    if (attached && test_read_tensor(&c->m, file_in(c, "labels.pb"), &labels)) {
      c->loss = (opi_loss){.kind = OPI_LOSS_CROSS_ENTROPY,
                           .output = c->m.outputs[0].name,
                           .labels = "train_labels",
                           .ignore = -100};
      c->feeds[c->n_feeds++] = (test_feed){"train_labels", labels.data, labels.n_bytes};
    } else {
      c->loss = (opi_loss){.kind = OPI_LOSS_OUTPUT};
    }
    for (uint32_t fused = 0; fused < 2; ++fused) {
      if (open_case(c, folder, fused != 0 ? 0 : OPI_BIND_NO_FUSE, &err))
        check(c, fused != 0 ? "fused" : "unfused", wanted);
      opi_bound_free(c->bound);
      c->bound = NULL;
    }
  }
  free(meta);
  test_unload(&c->m);
  free(c);
}

static void test_modern_exports(void) {
  char path[800];
  const char *root = opi_test_shared("models/modern");
  uint32_t n = 0;
  if (root == NULL)
    return;
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  DIR *families = opendir(root);
  for (struct dirent *f = NULL; families != NULL && (f = readdir(families)) != NULL;) {
    (void)snprintf(path, sizeof(path), "%s/%s", root, f->d_name);
    DIR *variants = f->d_name[0] != '.' ? opendir(path) : NULL;
    for (struct dirent *v = NULL; variants != NULL && (v = readdir(variants)) != NULL;) {
      if (strncmp(v->d_name, "train", 5) != 0)
        continue;
      (void)snprintf(path, sizeof(path), "%s/%s/%s", root, f->d_name, v->d_name);
      modern(path);
      ++n;
    }
    if (variants != NULL)
      (void)closedir(variants);
  }
  if (families != NULL)
    (void)closedir(families);
  OPI_ASSERT(n >= 25);
}

/* -- models/gradients -------------------------------------------------------------------------- */

/* Adds the output "test_loss" = sum over outputs of <cotangent, output> to a bound graph. */
static opipe_status add_loss(model_case *c, opipe_error *err) {
  opi_graph *g = c->bound->graph;
  opi_arena scratch;
  opi_builder b;
  uint32_t sum = OPIPE_NONE;
  opi_arena_init(&scratch, opi_allocator_system(), 0);
  OPI_TRY(opi_b_open(&b, g, &scratch, opi_allocator_system(), err));
  b.keep_parameters = true;
  opipe_status status = OPIPE_OK;
  for (uint32_t k = 0; status >= 0 && k < TEST_MAX_TENSORS; ++k) {
    opi_value cotangent;
    char name[64];
    int64_t axes[OPIPE_MAX_RANK];
    uint32_t term, weight;
    (void)snprintf(name, sizeof(name), "grad_set_0/cotangent_%u.pb", k);
    if (!test_read_tensor(&c->m, file_in(c, name), &cotangent))
      break;
    const uint32_t v = opi_bound_value(c->bound, cotangent.name);
    if (v == OPIPE_NONE)
      return opi_fail(err, OPIPE_E_NOTFOUND, "output '%s'", cotangent.name);
    weight =
        opi_b_const(&b, cotangent.dtype, cotangent.shape, (uint32_t)cotangent.rank, cotangent.data);
    for (int32_t d = 0; d < cotangent.rank; ++d)
      axes[d] = d;
    status = opi_b_op2(&b, "Mul", v, weight, &term, err);
    if (status >= 0 && cotangent.rank != 0) {
      status =
          opi_k_reduce(&b, "ReduceSum", 0, term, axes, (uint32_t)cotangent.rank, false, &term, err);
    }
    if (status >= 0 && sum != OPIPE_NONE)
      status = opi_b_op2(&b, "Add", sum, term, &term, err);
    sum = term;
  }
  if (status >= 0) {
    const uint32_t in[2] = {sum, opi_b_const_scalar(&b, OPIPE_FLOAT, 1)};
    const char *name = "test_loss";
    const opi_emit emit = {.op = "Mul", .in = in, .n_in = 2, .n_out = 1, .out_names = &name};
    status = opi_b_emit_kept(&b, &emit, &sum, err);
  }
  if (status >= 0)
    (void)opi_graph_add_output(g, sum);
  opi_b_close(&b);
  opi_arena_release(&scratch);
  return status;
}

static void given(const char *folder) {
  opipe_error err = OPIPE_ERROR_INIT;
  model_case *c = calloc(1, sizeof(*c));
  c->folder = folder;
  if (opi_test_check(
          test_load(&c->m, file_in(c, "model.onnx"), &err) && test_read_set(&c->m, folder, 0),
          __FILE__, __LINE__, false, "%s: %s", folder, err.message)) {
    for (uint32_t k = 0; k < MOST_PARAMS; ++k) {
      char name[64];
      opi_value *v = opi_arena_alloc(&c->m.arena, sizeof(*v));
      (void)snprintf(name, sizeof(name), "grad_set_0/grad_%03u.pb", k);
      if (!test_read_tensor(&c->m, file_in(c, name), v))
        break;
      add_reference(&c->ref, v->name, v->data, v->n_bytes / 4);
    }
    finish_reference(&c->ref);
    feed_inputs(c);
    c->loss = (opi_loss){.kind = OPI_LOSS_OUTPUT, .output = "test_loss"};
    for (uint32_t fused = 0; fused < 2; ++fused) {
      if (open_case(c, folder, fused != 0 ? 0 : OPI_BIND_NO_FUSE, &err) &&
          OPI_ASSERT_OK(add_loss(c, &err), &err))
        check(c, fused != 0 ? "fused" : "unfused", (double)NAN);
      opi_bound_free(c->bound);
      c->bound = NULL;
    }
  }
  test_unload(&c->m);
  free(c);
}

static void test_given_cotangents(void) {
  static const char *const families[] = {"bert",    "clip_quickgelu", "gpt2", "gpt2_ce_loss",
                                         "gpt2_kv", "llama",          "t5",   "torch_encoder",
                                         "vit",     "whisper_enc"};
  if (opi_test_shared("models/gradients") == NULL)
    return;
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  for (size_t i = 0; i < OPI_COUNT(families); ++i) {
    char path[200];
    (void)snprintf(path, sizeof(path), "models/gradients/%s", families[i]);
    given(opi_test_shared(path));
  }
}

/* -- training_ort ------------------------------------------------------------------------------ */

/* AdamW of the manifest: epsilon on the root of the uncorrected second moment, step 1, no decay. */
static void adamw(double *weight, const double *gradient, size_t n) {
  const double lr = 0.001, b1 = 0.9, b2 = 0.999, epsilon = 1e-6;
  for (size_t i = 0; i < n; ++i) {
    const double m = (1 - b1) * gradient[i], v = (1 - b2) * gradient[i] * gradient[i];
    weight[i] -= lr * sqrt(1 - b2) / (1 - b1) * m / (sqrt(v) + epsilon);
  }
}

static void step_all(model_case *c, double *const *gradients, const size_t *sizes) {
  for (uint32_t p = 0; p < c->training->n_params; ++p) {
    if (gradients[p] == NULL)
      continue;
    opi_value *v = &c->training->graph->values[c->training->params[p].value];
    float *moved = opi_arena_copy(&c->m.arena, v->data, v->n_bytes);
    for (size_t i = 0; i < sizes[p]; ++i) {
      double weight = (double)moved[i];
      adamw(&weight, &gradients[p][i], 1);
      moved[i] = (float)weight;
    }
    v->data = moved;
  }
}

/* Two losses that ONNX Runtime publishes for its training API: before and after one step. */
static void test_published_losses(void) {
  static const char *const names[] = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"};
  opipe_error err = OPIPE_ERROR_INIT;
  double loss[2] = {0}, *gradients[16] = {NULL};
  size_t sizes[16] = {0};
  opi_value tensor;
  const char *folder = opi_test_shared("models/training_ort/training_api");
  if (folder == NULL)
    return;
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  model_case *c = calloc(1, sizeof(*c));
  c->folder = folder;
  bool ready = OPI_ASSERT(test_load(&c->m, file_in(c, "eval_model.onnx"), &err));
  for (size_t i = 0; ready && i < OPI_COUNT(names); ++i) {
    char path[64];
    (void)snprintf(path, sizeof(path), "params_pb/%s.pb", names[i]);
    ready = OPI_ASSERT(test_read_tensor(&c->m, file_in(c, path), &tensor));
    const opi_replacement value = {.name = names[i],
                                   .dtype = tensor.dtype,
                                   .rank = (uint32_t)tensor.rank,
                                   .shape = tensor.shape,
                                   .data = tensor.data,
                                   .n_bytes = tensor.n_bytes};
    ready = ready && OPI_ASSERT_OK(opi_model_promote(c->m.model, &value, false, &err), &err);
  }
  for (uint32_t i = 0; ready && i < 2; ++i) {
    ready = OPI_ASSERT(
        test_read_tensor(&c->m, file_in(c, i == 0 ? "params_pb/input-0.pb" : "params_pb/labels.pb"),
                         &c->m.inputs[i]));
    c->m.inputs[i].name = i == 0 ? "input-0" : "labels";
    c->m.n_inputs = i + 1;
  }
  feed_inputs(c);
  const opi_gradient_options options = {.compute = OPIPE_FLOAT,
                                        .evaluator = test_backend_evaluator(),
                                        .allocator = opi_allocator_system()};
  if (ready && open_case(c, folder, 0, &err) &&
      OPI_ASSERT_OK(opi_gradient_build(c->bound, &options, &c->training, &err), &err)) {
    OPI_ASSERT_INT(c->training->n_trained, 4);
    test_step step = {
        .t = c->training, .feeds = c->feeds, .n_feeds = c->n_feeds, .arena = &c->m.arena};
    for (int k = 0; k < 2; ++k) {
      OPI_ASSERT_OK(test_run_step(&step, &loss[k], gradients, sizes, &err), &err);
      step_all(c, gradients, sizes);
    }
    (void)opi_test_check(
        fabs(loss[0] - 2.1786249) <= 1e-5 * 2.2 && fabs(loss[1] - 0.36050943) <= 1e-5 * 0.36,
        __FILE__, __LINE__, false, "losses %.9g %.9g", loss[0], loss[1]);
  }
  opi_training_free(c->training);
  opi_bound_free(c->bound);
  test_unload(&c->m);
  free(c);
}

OPI_TEST_MAIN("gradients of files", OPI_TEST(test_modern_exports), OPI_TEST(test_given_cotangents),
              OPI_TEST(test_published_losses))
