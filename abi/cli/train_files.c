/* SPDX-License-Identifier: Apache-2.0 */
/* Files of a training run, besides its data. */
#include <stdlib.h>
#include <string.h>

#include "train_state.h"

/* ---- before the first step ---- */

static int try_targets(const train_loop *l) {
  const cli_train_texts *t = &l->run->o->t;
  const struct {
    const char *path;
    uint32_t what;
  } targets[] = {{t->save, OPIPE_SAVE_CHECKPOINT},
                 {t->save_model, OPIPE_SAVE_MODEL},
                 {t->save_gradients, OPIPE_SAVE_GRADIENTS}};
  opipe_error err = OPIPE_ERROR_INIT;
  if (l->run->quiet)
    return CLI_DONE;
  for (size_t i = 0; i < sizeof targets / sizeof targets[0]; ++i) {
    if (targets[i].path == NULL)
      continue;
    if (cli_is_stream(targets[i].path)) {
      (void)fprintf(stderr, "onnx-pipe: cannot write %s: a file of its own is needed\n",
                    targets[i].path);
      return CLI_FAILED;
    }
    if (l->run->s->api->session_try_save(l->session, targets[i].what, targets[i].path, &err) < 0)
      return cli_report(targets[i].path, &err);
  }
  const char *trace = l->run->o->out.trace;
  const int status = trace == NULL || l->run->s->team_rank != 0 ? CLI_DONE : cli_try_file(trace);
  train_say_unsaved(l);
  return status == CLI_DONE ? train_check_disk(l) : status;
}

int train_try_targets(const train_loop *l) {
  return cli_agree(l->run->s, "trying the files to be written", try_targets(l));
}

static int load(train_loop *l) {
  uint64_t position[OPIPE_POSITION];
  opipe_error err = OPIPE_ERROR_INIT;
  const cli_options *o = l->run->o;
  if (l->run->s->api->session_load(l->session, o->t.resume, position, &err) < 0)
    return cli_report(o->t.resume, &err);
  if (position[1] != l->run->batch || position[2] != o->seed ||
      position[3] != (uint64_t)o->t.shuffle) {
    (void)fprintf(
        stderr,
        "onnx-pipe: %s: it was saved with --batch %llu --seed %llu%s: the position in the "
        "data is recomputed\n",
        o->t.resume, (unsigned long long)position[1], (unsigned long long)position[2],
        position[3] != 0 ? " --shuffle" : "");
    position[0] = position[0] * position[1] / l->run->batch;
  }
  l->first = position[0];
  return CLI_DONE;
}

int train_resume(train_loop *l) {
  const train_run *run = l->run;
  if (run->o->t.resume == NULL)
    return CLI_DONE;
  if (run->start != NULL) {
    l->first = run->start->first;
    return train_state_put(l, run->start);
  }
  const int status = load(l);
  return status == CLI_DONE && run->keep ? train_state_take(l, true, &l->out->start) : status;
}

/* ---- checkpoints ---- */

int train_save(const train_loop *l) {
  opipe_error err = OPIPE_ERROR_INIT;
  const cli_options *o = l->run->o;
  const uint64_t position[OPIPE_POSITION] = {l->first + l->n_finished, l->run->batch, o->seed,
                                             o->t.shuffle};
  return l->run->s->api->session_save(l->session, o->t.save, position, &err) < 0
             ? cli_report(o->t.save, &err)
             : CLI_DONE;
}

/* ---- at the end ---- */

/* Writes everything possible, even after a failure; the picture comes last. */
int train_write_files(const train_loop *l) {
  const cli_train_texts *t = &l->run->o->t;
  const opipe_api *api = l->run->s->api;
  const char *trace = l->run->o->out.trace;
  opipe_error err = OPIPE_ERROR_INIT;
  int status = CLI_DONE;
  if (l->run->quiet)
    return CLI_DONE;
  if (t->save != NULL && train_save(l) != CLI_DONE)
    status = CLI_FAILED;
  if (t->save_model != NULL && api->session_save_model(l->session, t->save_model, &err) < 0)
    status = cli_report(t->save_model, &err);
  if (t->save_gradients != NULL &&
      api->session_save_gradients(l->session, t->save_gradients, &err) < 0)
    status = cli_report(t->save_gradients, &err);
  if (trace != NULL && cli_write_trace(l->run->s, l->session, trace) != CLI_DONE)
    status = CLI_FAILED;
  if (status == CLI_DONE)
    train_say_saved(l);
  return status;
}

/* ---- results kept for comparison ---- */

void train_keep_of_0(const train_loop *l, void **io_data) {
  if (l->run->s->team_rank == 0)
    return;
  free(*io_data);
  *io_data = NULL;
}

int train_keep_state(const train_loop *l, uint32_t state, uint32_t version, cli_tensor **out,
                     uint32_t *out_n) {
  const opipe_api *api = l->run->s->api;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_parameter_info info = {.struct_size = sizeof(info)};
  uint32_t n = 0;
  while (api->session_parameter(l->session, n, &info, NULL) == OPIPE_OK)
    ++n;
  *out = calloc((size_t)n + 1, sizeof(**out));
  *out_n = 0;
  for (uint32_t i = 0; *out != NULL && i < n; ++i) {
    if (api->session_parameter(l->session, i, &info, &err) < 0)
      return cli_report("train", &err);
    if (info.trained == 0)
      continue;
    cli_tensor *t = &(*out)[(*out_n)++];
    if (!cli_tensor_name(t, info.name, strlen(info.name)))
      return cli_fail("out of memory");
    t->dtype = OPIPE_FLOAT;
    t->rank = info.rank;
    if (info.rank > 0) /* a scalar has no list */
      memcpy(t->shape, info.shape, info.rank * sizeof(*t->shape));
    if (!cli_tensor_alloc(t))
      return cli_fail("out of memory for parameter '%s'", info.name);
    if (api->session_get(l->session, info.name, state, version, t->data, t->n_bytes, &err) < 0)
      return cli_report("train", &err);
    train_keep_of_0(l, &t->data);
  }
  return *out == NULL ? cli_fail("out of memory") : CLI_DONE;
}

static uint32_t coarser(uint32_t a, uint32_t b) {
  return train_tolerance(b) > train_tolerance(a) ? b : a;
}

/* Coarsest of --compute and the model's own types: those that it reads, outputs, and is trained in.
 */
static uint32_t coarsest_type(const train_loop *l) {
  const opipe_api *api = l->run->s->api;
  opipe_tensor_info tensor = {.struct_size = sizeof(tensor)};
  opipe_parameter_info p = {.struct_size = sizeof(p)};
  uint32_t type = l->run->options->compute;
  for (uint32_t i = 0; api->model_input(l->run->s->bound, i, &tensor, NULL) == OPIPE_OK; ++i)
    type = coarser(type, tensor.dtype);
  for (uint32_t i = 0; api->model_output(l->run->s->bound, i, &tensor, NULL) == OPIPE_OK; ++i)
    type = coarser(type, tensor.dtype);
  for (uint32_t i = 0; api->session_parameter(l->session, i, &p, NULL) == OPIPE_OK; ++i)
    type = coarser(type, p.dtype);
  return type;
}

int train_keep(train_loop *l) {
  uint32_t n = 0;
  l->out->coarsest = coarsest_type(l);
  const int status =
      train_keep_state(l, OPIPE_STATE_MASTER, 0, &l->out->weights, &l->out->n_params);
  return status == CLI_DONE ? train_keep_state(l, OPIPE_STATE_GRADIENT, 0, &l->out->gradients, &n)
                            : status;
}
