/* SPDX-License-Identifier: Apache-2.0 */
/* Models of questions: described ones, and published profiles. */
#include <stdio.h>
#include <string.h>

#include "tests/bench/papers/engine.h"

enum { FILE_MOST = 64 << 20 };

static opipe_status read_file(const char *path, opi_text *out, opipe_error *err) {
  char block[4096];
  size_t n = 0;
  FILE *file = fopen(path, "rbe");
  if (file == NULL)
    return opi_fail(err, OPIPE_E_IO, "%s cannot be opened", path);
  while ((n = fread(block, 1, sizeof block, file)) > 0 && out->n <= FILE_MOST)
    opi_text_add(out, block, n);
  (void)fclose(file);
  return out->failed ? opi_fail_nomem(err, out->n, path) : OPIPE_OK;
}

/* Without its first layers. */
static opipe_status drop_first(opi_layers **io_layers, uint32_t first, opipe_error *err) {
  opi_layers *all = *io_layers, *rest = NULL;
  if (first >= all->n_layers)
    return opi_fail(err, OPIPE_E_INVALID, "'first': %u of %u layers", first, all->n_layers);
  OPI_TRY(opi_layers_new(all->name, all->n_layers - first, 1, opi_allocator_system(), &rest, err));
  rest->samples[0] = all->samples[0];
  memcpy(rest->at, all->at + first, rest->n_layers * sizeof(opi_layer));
  for (uint32_t i = 0; i < rest->n_layers; ++i)
    rest->names[i] = "layer";
  opi_layers_free(all);
  *io_layers = rest;
  return OPIPE_OK;
}

static opipe_status read_profile(const json_t *question, const char *path, opi_layers **out,
                                 opipe_error *err) {
  uint32_t samples = 1, first = 0;
  opi_text text;
  OPI_TRY(papers_count(question, "profile_samples", 1, &samples, err));
  OPI_TRY(papers_count(question, "first", 0, &first, err));
  opi_text_init(&text, opi_allocator_system());
  opipe_status status = read_file(path, &text, err);
  const bool json = text.n > 0 && text.data[0] == '{';
  if (status == OPIPE_OK) {
    status = json ? opi_layers_read_json(path, text.data, text.n, opi_allocator_system(), out, err)
                  : opi_layers_read_text(path, text.data, text.n, samples, opi_allocator_system(),
                                         out, err);
  }
  opi_text_release(&text);
  if (status != OPIPE_OK || first == 0)
    return status;
  status = drop_first(out, first, err);
  if (status < 0)
    opi_layers_free(*out);
  return status;
}

/* "chain": only what a layer makes itself crosses a cut behind it, as planners of chains count,
 * less "relayed" bytes of each, an input that outputs repeat. */
static opipe_status forget_skips(const json_t *question, opi_layers *layers, opipe_error *err) {
  double relayed = 0;
  OPI_TRY(papers_number(question, "relayed", 0, &relayed, err));
  for (uint32_t i = 0; papers_flag(question, "chain") && i < layers->n_layers; ++i) {
    opi_layer *l = &layers->at[i];
    l->cut_bytes = l->output_bytes - ((double)l->output_bytes > relayed ? (uint64_t)relayed : 0);
  }
  return OPIPE_OK;
}

/* Adds extra_ns to a layer's time, of which tensor devices share `share`. */
static void lengthen(double extra_ns, bool shared, double *io_part_ns, double all_ns,
                     double *io_share) {
  const double divided = all_ns * *io_share + (shared ? extra_ns : 0);
  *io_part_ns += extra_ns;
  *io_share = all_ns + extra_ns > 0 ? divided / (all_ns + extra_ns) : 0;
}

/* "accumulate": so many bytes for each byte of parameters are read and written when a backward adds
 * its gradients to those that are there. */
static opipe_status add_accumulation(const json_t *question, const opi_cluster *cluster,
                                     opi_layers *layers, opipe_error *err) {
  const double bandwidth = cluster->descriptions[0].bandwidth;
  double bytes = 0;
  OPI_TRY(papers_number(question, "accumulate", 0, &bytes, err));
  for (uint32_t i = 0; i < layers->n_layers && bandwidth > 0; ++i) {
    const double extra = bytes * (double)layers->at[i].param_bytes / bandwidth * 1e9;
    for (uint32_t k = 0; k < layers->n_sizes; ++k) {
      opi_layer *l = &layers->at[(size_t)k * layers->n_layers + i];
      lengthen(extra, l->width_share > 0, &l->weight_ns, l->forward_ns + opi_layer_backward_ns(l),
               &l->width_share);
    }
    for (uint32_t k = 0; k < layers->slices.n; ++k) {
      opi_token_cost *c = &layers->slices.alone[(size_t)k * layers->n_layers + i];
      lengthen(extra, c->width_share > 0, &c->ns, c->ns, &c->width_share);
    }
  }
  return OPIPE_OK;
}

opipe_status papers_layers(const json_t *question, const opi_cluster *cluster,
                           const uint32_t *samples, uint32_t n_sizes, opi_layers **out_layers,
                           opipe_error *err) {
  const char *spec = papers_text(question, "arch", NULL);
  const char *profile = papers_text(question, "profile", NULL);
  const opi_arch_place place = {cluster, 0};
  opi_arch arch;
  if (profile != NULL) {
    OPI_TRY(read_profile(question, profile, out_layers, err));
    return forget_skips(question, *out_layers, err);
  }
  if (spec == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "neither 'arch' nor 'profile'");
  OPI_TRY(opi_arch_parse(spec, &arch, err));
  OPI_TRY(opi_arch_layers(&arch, spec, &place, samples, n_sizes, opi_allocator_system(), out_layers,
                          err));
  return add_accumulation(question, cluster, *out_layers, err);
}
