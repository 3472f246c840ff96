/* SPDX-License-Identifier: Apache-2.0 */
/* Before the first step: compares the bytes to be saved on each disk with the free space. A file is
 * replaced when the new one is complete, so the old one's bytes do not count as free. */
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "loader/base/sizes.h"
#include "train_state.h"

enum { SAVES = 3, MANIFEST_BYTES = 4096, PER_TENSOR = 256 /* for headers */ };

typedef struct save {
  const char *option, *path;
  uint64_t bytes;
  dev_t disk;
  uint64_t free_bytes;
} save;

/* Finds the path's folder, or the folder in which it is created. */
static bool find_disk(save *io) {
  char path[PATH_MAX];
  struct stat st;
  struct statvfs disk;
  if (snprintf(path, sizeof(path), "%s", io->path) >= PATH_MAX)
    return false;
  const char *at = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? path : dirname(path);
  if (stat(at, &st) != 0 || statvfs(at, &disk) != 0)
    return false;
  io->disk = st.st_dev;
  io->free_bytes = disk.f_blocks == 0 ? UINT64_MAX : (uint64_t)disk.f_bavail * disk.f_frsize;
  return true;
}

/* fp32 bytes of all trained parameters, and of headers with their names. */
static uint64_t trained_bytes(const train_loop *l, uint64_t *out_headers) {
  opipe_parameter_info info = {.struct_size = sizeof(info)};
  uint64_t sum = 0;
  *out_headers = MANIFEST_BYTES;
  for (uint32_t i = 0; l->run->s->api->session_parameter(l->session, i, &info, NULL) == OPIPE_OK;
       ++i) {
    uint64_t bytes = sizeof(float);
    for (uint32_t d = 0; d < info.rank; ++d)
      bytes *= (uint64_t)info.shape[d];
    sum += info.trained != 0 ? bytes : 0;
    *out_headers += info.trained != 0 ? PER_TENSOR : 0;
  }
  return sum;
}

/* Bytes of the model's file, and of weights outside it. */
static uint64_t model_bytes(const train_loop *l) {
  opipe_model_info info = {.struct_size = sizeof(info)};
  struct stat st;
  const uint64_t file = stat(l->run->o->model, &st) == 0 ? (uint64_t)st.st_size : 0;
  if (l->run->s->api->model_info(l->run->s->file, &info, NULL) < 0)
    return file;
  return file >= info.parameter_bytes ? file : file + info.parameter_bytes;
}

/* Number of checkpoints on the disk at once, besides an existing one. */
static uint64_t checkpoints_at_once(const train_loop *l) {
  const uint64_t every = l->run->o->t.save_every;
  struct stat st;
  const bool there = stat(l->run->o->t.save, &st) == 0;
  return every != 0 && every < l->run->n_steps && !there ? 2 : 1;
}

static int refuse(const save *saves, uint32_t n, const save *of, uint64_t need) {
  char options[3 * 300] = "";
  size_t used = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (saves[i].disk == of->disk) {
      used += (size_t)snprintf(options + used, sizeof(options) - used, "%s--%s %.200s",
                               used == 0 ? "" : ", ", saves[i].option, saves[i].path);
    }
  }
  return cli_fail("%s: %s are needed, and %s are free on that disk", options, OPI_SIZE(need),
                  OPI_SIZE(of->free_bytes));
}

int train_check_disk(const train_loop *l) {
  const cli_train_texts *t = &l->run->o->t;
  save saves[SAVES];
  uint64_t headers = 0;
  uint32_t n = 0;
  const uint64_t trained = trained_bytes(l, &headers);
  const uint64_t copies = 1 + train_n_moments(l->run) + (train_is_double_buffered(l->run) ? 1 : 0);
  if (t->save != NULL) {
    saves[n++] =
        (save){"save", t->save, (trained * copies + headers) * checkpoints_at_once(l), 0, 0};
  }
  if (t->save_model != NULL)
    saves[n++] = (save){"save-model", t->save_model, model_bytes(l), 0, 0};
  if (t->save_gradients != NULL)
    saves[n++] = (save){"save-gradients", t->save_gradients, trained + headers, 0, 0};
  for (uint32_t i = 0; i < n; ++i) {
    if (!find_disk(&saves[i]))
      return CLI_DONE; /* errors of the place are reported when it is tried */
  }
  for (uint32_t i = 0; i < n; ++i) {
    uint64_t need = 0;
    for (uint32_t k = 0; k < n; ++k)
      need += saves[k].disk == saves[i].disk ? saves[k].bytes : 0;
    if (need > saves[i].free_bytes)
      return refuse(saves, n, &saves[i], need);
  }
  return CLI_DONE;
}

/* ---- messages ---- */

void train_say_unsaved(const train_loop *l) {
  const cli_train_texts *t = &l->run->o->t;
  if (l->run->quiet || t->save != NULL || t->save_model != NULL || l->run->s->team_rank != 0)
    return;
  cli_warn(NULL, OPIPE_LOG_WARN, __FILE__, __LINE__,
           "the trained weights will not be saved: --save DIR keeps a checkpoint, --save-model "
           "OUT.onnx the model");
}

void train_say_saved(const train_loop *l) {
  const cli_train_texts *t = &l->run->o->t;
  const train_result *r = l->out;
  const unsigned long long step =
      r->n_steps == 0 ? 0 : (unsigned long long)r->reports[r->n_steps - 1].step;
  if (l->run->quiet || l->run->o->out.json)
    return;
  if (t->save != NULL)
    (void)printf("saved: the checkpoint of step %llu in %s\n", step, t->save);
  if (t->save_model != NULL)
    (void)printf("saved: the model of step %llu as %s\n", step, t->save_model);
  if (t->save_gradients != NULL)
    (void)printf("saved: the gradients of step %llu as %s\n", step, t->save_gradients);
  if (l->run->o->out.trace != NULL && !cli_is_stream(l->run->o->out.trace))
    (void)printf("saved: the trace of step %llu as %s\n", step, l->run->o->out.trace);
}
