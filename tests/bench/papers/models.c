/* SPDX-License-Identifier: Apache-2.0 */
/* Models of questions: described ones, and published profiles. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/papers/engine.h"

enum { TOKENS_LEAST = 8, FILE_MOST = 64 << 20, SIZES_MOST = 64 };

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

opipe_status papers_layers(const json_t *question, const opi_cluster *cluster, uint32_t samples,
                           uint32_t tokens, opi_layers **out_layers, opipe_error *err) {
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
  arch.seq = tokens == 0 ? arch.seq : tokens;
  return opi_arch_layers(&arch, spec, &place, &samples, 1, opi_allocator_system(), out_layers, err);
}

/* ---- fewer tokens ---- */

/* Attention of one token to one before it: two products of a head's width each, over all heads;
 * its backward is twice its forward, for inputs alone. */
static double context_ns(const opi_arch *arch, const opi_cluster *cluster) {
  const double rate = opi_cluster_flops(cluster, 0, arch->dtype, arch->hidden / arch->heads);
  return rate > 0 ? 3 * 4.0 * arch->hidden / rate * 1e9 : 0;
}

opipe_status papers_tokens_make(const json_t *question, const opi_cluster *cluster,
                                papers_tokens *out, opipe_error *err) {
  opi_arch arch;
  uint32_t n = 0;
  *out = (papers_tokens){{0}};
  OPI_TRY(opi_arch_parse(papers_text(question, "arch", ""), &arch, err));
  out->at = calloc(SIZES_MOST, sizeof(opi_layers *));
  out->tokens = calloc(SIZES_MOST, sizeof(uint32_t));
  opipe_status status = out->at == NULL || out->tokens == NULL
                            ? opi_fail_nomem(err, SIZES_MOST * sizeof(uint32_t), "tokens")
                            : OPIPE_OK;
  for (uint64_t l = TOKENS_LEAST; l < 2ull * arch.seq && n < SIZES_MOST && status == OPIPE_OK;) {
    opi_layers *layers = NULL;
    out->tokens[n] = l < arch.seq ? (uint32_t)l : arch.seq;
    status = papers_layers(question, cluster, 1, out->tokens[n], &layers, err);
    out->at[n] = layers;
    n += status == OPIPE_OK;
    if (l >= arch.seq)
      break;
    const uint64_t grown = l + l / 4 / TOKENS_LEAST * TOKENS_LEAST;
    l = grown > l ? grown : l + TOKENS_LEAST;
  }
  out->profile = (opi_token_profile){
      .at = out->at, .tokens = out->tokens, .n = n, .context_ns = context_ns(&arch, cluster)};
  return status;
}

void papers_tokens_release(papers_tokens *tokens) {
  for (uint32_t i = 0; i < tokens->profile.n; ++i)
    opi_layers_free((opi_layers *)(uintptr_t)tokens->at[i]);
  free(tokens->at);
  free(tokens->tokens);
}
