/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what reads profiles of layers (published text, the project's JSON) and descriptions of
 * models. A text that can be read is written and read again, alike; sums over any layers are
 * numbers.
 */
#include <math.h>

#include "partition/study/arch/arch.h"
#include "tests/fuzz/must.h"

enum { TEXT, JSON, ARCH, KINDS, SPEC_ROOM = 512, LAYERS_DRAWN = 4096 };

static void told(opipe_status status, const opipe_error *err) {
  must(status >= 0 || err->message[0] != '\0', "a status without a message");
  must(status != OPIPE_E_INTERNAL, err->message);
}

static void use(const opi_layers *layers) {
  const uint32_t n = layers->n_layers;
  opi_layers *again = NULL;
  opi_text first, second;
  opipe_error err = OPIPE_ERROR_INIT;
  for (double samples = 0.5; samples < 100; samples *= 3) {
    const opi_layer sum = opi_layers_sum(layers, n / 3, n, samples);
    must(isfinite(sum.forward_ns + opi_layer_backward_ns(&sum)), "a sum that is no number");
  }
  opi_text_init(&first, opi_allocator_system());
  opi_text_init(&second, opi_allocator_system());
  opi_layers_write(layers, &first);
  const opipe_status status =
      opi_layers_read_json("again", first.data, first.n, opi_allocator_system(), &again, &err);
  must(status >= 0, err.message);
  opi_layers_write(again, &second);
  must(first.n == second.n && memcmp(first.data, second.data, first.n) == 0,
       "a profile that is written otherwise when it was read again");
  opi_layers_free(again);
  opi_text_release(&first);
  opi_text_release(&second);
}

static opipe_status read_arch(const uint8_t *data, size_t size, opi_layers **out,
                              opipe_error *err) {
  char spec[SPEC_ROOM];
  const uint32_t samples[] = {1, 3};
  const opi_arch_place nowhere = {NULL, 0};
  opi_arch arch;
  const size_t n = size < sizeof spec ? size : sizeof spec - 1;
  memcpy(spec, data, n);
  spec[n] = '\0';
  OPI_TRY(opi_arch_parse(spec, &arch, err));
  arch.layers %= LAYERS_DRAWN;
  return opi_arch_layers(&arch, "arch", &nowhere, samples, 2, opi_allocator_system(), out, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  opi_layers *layers = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_status status = OPIPE_OK;
  if (size == 0)
    return 0;
  const uint32_t kind = data[0] % KINDS;
  if (kind == TEXT) {
    status = opi_layers_read_text("text", (const char *)data + 1, size - 1, 4,
                                  opi_allocator_system(), &layers, &err);
  } else if (kind == JSON) {
    status =
        opi_layers_read_json("json", data + 1, size - 1, opi_allocator_system(), &layers, &err);
  } else {
    status = read_arch(data + 1, size - 1, &layers, &err);
  }
  told(status, &err);
  if (status >= 0)
    use(layers);
  opi_layers_free(layers);
  return 0;
}
