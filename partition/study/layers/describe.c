/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of layers. */
#include "partition/study/layers/describe.h"

static void put_row(const opi_layer *l, opi_text *text) {
  opi_text_printf(text, "%12.6g %10.4g %10.4g %10.4g %12.1f %12.1f %12.1f\n", l->flops * 1e-9,
                  l->forward_ns * 1e-6, l->input_ns * 1e-6, l->weight_ns * 1e-6,
                  (double)l->cut_bytes / 1024, (double)l->stash_bytes / 1024,
                  (double)l->param_bytes / 1024);
}

void opi_layers_describe(const opi_layers *layers, opi_text *text) {
  char line[OPI_LINE_ROOM];
  opi_text_printf(text, "profile of '%.80s': %u layers", opi_text_line(line, layers->name),
                  layers->n_layers);
  if (layers->tokens != 0)
    opi_text_printf(text, ", %u tokens a sample", layers->tokens);
  opi_text_puts(text, layers->halves ? "\n" : ", backward times not told apart: half each\n");
  if (layers->whole != NULL)
    opi_text_printf(text, "one micro-batch: %s\n", opi_text_line(line, layers->whole));
  for (uint32_t k = 0; k < layers->n_sizes; ++k) {
    const double samples = layers->samples[k];
    opi_text_printf(text,
                    "\nmicro-batches of %u sample%s\nlayer  name                              "
                    "      GFLOP     F (ms)     I (ms)     W (ms)    cut (KiB)   kept (KiB) params "
                    "(KiB)\n",
                    layers->samples[k], layers->samples[k] == 1 ? "" : "s");
    for (uint32_t i = 0; i < layers->n_layers; ++i) {
      opi_text_printf(text, "%5u  %-30.30s", i,
                      opi_text_line(line, layers->names[i] == NULL ? "" : layers->names[i]));
      put_row(&layers->at[(size_t)k * layers->n_layers + i], text);
    }
    const opi_layer sum = opi_layers_sum(layers, 0, layers->n_layers, samples);
    opi_text_printf(text, "%5s  %-30s", "", "all");
    put_row(&sum, text);
  }
}
