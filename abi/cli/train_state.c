/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters, moments and clock of a session, as a checkpoint holds them, in memory. */
#include "train_state.h"

#include <stdlib.h>
#include <string.h>

uint32_t train_n_moments(const train_run *run) {
  const opipe_optimizer_row *row = opipe_optimizer_row_of(run->options->optimizer);
  return run->options->momentum != 0 ? row->with_momentum : row->moments;
}

static uint32_t n_versions(const train_run *run) {
  return train_is_double_buffered(run) ? 2 : 1;
}

void train_state_free(train_state *state) {
  for (uint32_t i = 0; i < state->n; ++i) {
    free(state->parts[i].name);
    free(state->parts[i].data);
  }
  free(state->parts);
  *state = (train_state){.n = 0};
}

static int take_part(const train_loop *l, const opipe_parameter_info *info, uint32_t state,
                     uint32_t version, train_state *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  size_t n_bytes = sizeof(float);
  for (uint32_t d = 0; d < info->rank; ++d)
    n_bytes *= (size_t)info->shape[d];
  if (state == OPIPE_STATE_WEIGHT)
    n_bytes = (size_t)info->n_bytes;
  train_part *part = &out->parts[out->n++];
  *part =
      (train_part){strdup(info->name), malloc(n_bytes == 0 ? 1 : n_bytes), n_bytes, state, version};
  if (part->name == NULL || part->data == NULL)
    return cli_fail("out of memory for parameter '%s'", info->name);
  const opipe_status status = l->run->s->api->session_get(l->session, info->name, state, version,
                                                          part->data, n_bytes, &err);
  train_keep_of_0(l, &part->data);
  return status < 0 ? cli_report("train", &err) : CLI_DONE;
}

/* A parameter that is not trained may have been set by the checkpoint's writer. */
static int take_parameter(const train_loop *l, const opipe_parameter_info *info, uint32_t n_moments,
                          train_state *out) {
  int status = info->trained == 0 ? take_part(l, info, OPIPE_STATE_WEIGHT, 0, out) : CLI_DONE;
  for (uint32_t v = 0; info->trained != 0 && v < n_versions(l->run) && status == CLI_DONE; ++v)
    status = take_part(l, info, OPIPE_STATE_MASTER, v, out);
  for (uint32_t m = 0; info->trained != 0 && m < n_moments && status == CLI_DONE; ++m)
    status = take_part(l, info, OPIPE_STATE_FIRST_MOMENT + m, 0, out);
  return status;
}

int train_state_take(const train_loop *l, bool moments, train_state *out) {
  const opipe_api *api = l->run->s->api;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_parameter_info info = {.struct_size = sizeof(info)};
  const uint32_t n_moments = moments ? train_n_moments(l->run) : 0;
  uint32_t n = 0;
  *out = (train_state){.clock = {.struct_size = sizeof(out->clock)}, .first = l->first};
  while (api->session_parameter(l->session, n, &info, NULL) == OPIPE_OK)
    ++n;
  out->parts = calloc((size_t)n * (n_versions(l->run) + n_moments) + 1, sizeof(*out->parts));
  if (out->parts == NULL)
    return cli_fail("out of memory");
  if (api->session_clock(l->session, &out->clock, &err) < 0)
    return cli_report("train", &err);
  int status = CLI_DONE;
  for (uint32_t i = 0; i < n && status == CLI_DONE; ++i) {
    if (api->session_parameter(l->session, i, &info, &err) < 0)
      return cli_report("train", &err);
    status = take_parameter(l, &info, n_moments, out);
  }
  return status;
}

int train_state_put(const train_loop *l, const train_state *state) {
  const opipe_api *api = l->run->s->api;
  opipe_error err = OPIPE_ERROR_INIT;
  const uint32_t most = n_versions(l->run);
  for (uint32_t i = 0; i < state->n; ++i) {
    const train_part *p = &state->parts[i];
    const bool frozen = p->state == OPIPE_STATE_WEIGHT;
    const uint32_t end = frozen ? most : p->version + 1;
    for (uint32_t v = p->version; v < end && v < most; ++v) {
      const opipe_status status =
          api->session_set(l->session, p->name, p->state, v, p->data, p->n_bytes, &err);
      if (status < 0 && !(frozen && status == OPIPE_E_NOTFOUND))
        return cli_report("train", &err);
    }
  }
  return api->session_set_clock(l->session, &state->clock, &err) < 0 ? cli_report("train", &err)
                                                                     : CLI_DONE;
}
