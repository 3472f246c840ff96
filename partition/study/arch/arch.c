/* SPDX-License-Identifier: Apache-2.0 */
/* Parses a description and counts parameters. */
#include "partition/study/arch/arch.h"

#include <stdio.h>
#include <string.h>

enum { SIZE_MOST = 1 << 24, LAYERS_ROOM = 2, VALUE_ROOM = 32, TYPES_OF_BERT = 2 };

static const char *const kinds[OPI_ARCHS] = {"gpt", "llama", "bert"};

typedef struct key {
  const char *name;
  size_t offset; /* of a uint32_t in opi_arch */
  bool needed;
} key;

static const key sizes[] = {
    {"layers", offsetof(opi_arch, layers), true},
    {"hidden", offsetof(opi_arch, hidden), true},
    {"heads", offsetof(opi_arch, heads), true},
    {"vocab", offsetof(opi_arch, vocab), true},
    {"seq", offsetof(opi_arch, seq), true},
    {"ffn", offsetof(opi_arch, ffn), false},
    {"kv-heads", offsetof(opi_arch, kv_heads), false},
    {"positions", offsetof(opi_arch, positions), false},
};

static uint32_t *size_at(opi_arch *arch, const key *k) {
  return (uint32_t *)((char *)arch + k->offset);
}

static opipe_status set_type(opi_arch *arch, const char *value, opipe_error *err) {
  static const struct {
    const char *name;
    uint32_t dtype;
  } types[] = {{"fp32", OPIPE_FLOAT}, {"fp16", OPIPE_FLOAT16}, {"bf16", OPIPE_BFLOAT16}};
  for (size_t i = 0; i < OPI_COUNT(types); ++i) {
    if (strcmp(types[i].name, value) == 0) {
      arch->dtype = types[i].dtype;
      return OPIPE_OK;
    }
  }
  return opi_fail(err, OPIPE_E_INVALID, "arch: type=%s; it must be fp32, fp16 or bf16", value);
}

static opipe_status set_flag(const char *name, const char *value, bool *out, opipe_error *err) {
  if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
    return opi_fail(err, OPIPE_E_INVALID, "arch: %s=%s; it must be 0 or 1", name, value);
  *out = value[0] == '1';
  return OPIPE_OK;
}

static opipe_status set(opi_arch *arch, const char *name, const char *value, uint32_t *io_seen,
                        opipe_error *err) {
  if (strcmp(name, "type") == 0)
    return set_type(arch, value, err);
  if (strcmp(name, "tied") == 0)
    return set_flag(name, value, &arch->tied, err);
  if (strcmp(name, "pretraining") == 0 && arch->kind == OPI_ARCH_BERT)
    return set_flag(name, value, &arch->heads_of_bert, err);
  for (uint32_t i = 0; i < OPI_COUNT(sizes); ++i) {
    int64_t number = 0;
    if (strcmp(sizes[i].name, name) != 0)
      continue;
    if ((*io_seen >> i & 1u) != 0)
      return opi_fail(err, OPIPE_E_INVALID, "arch: %s is given twice", name);
    if (!opi_parse_int(value, 1, SIZE_MOST, &number)) {
      return opi_fail(err, OPIPE_E_INVALID, "arch: %s=%s; it must be from 1 to %d", name, value,
                      SIZE_MOST);
    }
    *io_seen |= 1u << i;
    *size_at(arch, &sizes[i]) = (uint32_t)number;
    return OPIPE_OK;
  }
  return opi_fail(
      err, OPIPE_E_INVALID,
      "arch: '%s' is not a key of %s; known keys are layers, hidden, heads, vocab, seq, ffn, "
      "kv-heads, positions, type, tied%s",
      name, kinds[arch->kind], arch->kind == OPI_ARCH_BERT ? ", pretraining" : "");
}

/* Fills in defaults and checks that the sizes agree. */
static opipe_status settle(opi_arch *arch, uint32_t seen, opipe_error *err) {
  for (uint32_t i = 0; i < OPI_COUNT(sizes); ++i) {
    if (sizes[i].needed && (seen >> i & 1u) == 0)
      return opi_fail(err, OPIPE_E_INVALID, "arch: %s needs %s=", kinds[arch->kind], sizes[i].name);
  }
  const uint32_t gated = (8 * (arch->hidden / 3 + 1) + 255) / 256 * 256;
  if (arch->ffn == 0)
    arch->ffn = arch->kind == OPI_ARCH_LLAMA ? gated : 4 * arch->hidden;
  arch->kv_heads = arch->kv_heads == 0 ? arch->heads : arch->kv_heads;
  arch->positions = arch->positions == 0 ? arch->seq : arch->positions;
  if (arch->hidden % arch->heads != 0 || arch->heads % arch->kv_heads != 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "arch: hidden=%u, heads=%u, kv-heads=%u: each must be a multiple of the next",
                    arch->hidden, arch->heads, arch->kv_heads);
  }
  if (arch->kind != OPI_ARCH_LLAMA && arch->positions < arch->seq) {
    return opi_fail(err, OPIPE_E_INVALID, "arch: positions=%u are fewer than seq=%u",
                    arch->positions, arch->seq);
  }
  if (arch->layers > OPI_LAYERS_MOST - LAYERS_ROOM) {
    return opi_fail(err, OPIPE_E_LIMIT, "arch: layers=%u; it must be at most %d", arch->layers,
                    OPI_LAYERS_MOST - LAYERS_ROOM);
  }
  return OPIPE_OK;
}

/* Copies [at, end) to `room` as a string; false if it is too long. */
static bool take(const char *at, const char *end, char room[VALUE_ROOM]) {
  const size_t n = (size_t)(end - at);
  if (n >= VALUE_ROOM)
    return false;
  memcpy(room, at, n);
  room[n] = '\0';
  return true;
}

opipe_status opi_arch_parse(const char *spec, opi_arch *out_arch, opipe_error *err) {
  char name[VALUE_ROOM], value[VALUE_ROOM], line[OPI_LINE_ROOM];
  uint32_t seen = 0;
  const char *at = spec + strcspn(spec, ":");
  *out_arch = (opi_arch){.kind = OPI_ARCHS, .dtype = OPIPE_FLOAT};
  for (uint32_t k = 0; take(spec, at, name) && k < OPI_ARCHS; ++k) {
    if (strcmp(kinds[k], name) == 0)
      out_arch->kind = k;
  }
  if (out_arch->kind == OPI_ARCHS) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "arch: \"%.80s\" must begin with gpt, llama or bert; other models are read as "
                    "profiles",
                    opi_text_line(line, spec));
  }
  out_arch->tied = out_arch->kind != OPI_ARCH_LLAMA;
  while (*at != '\0') {
    ++at; /* past ':' or ',' */
    const char *end = at + strcspn(at, ","), *equals = at + strcspn(at, "=,");
    if (*equals != '=' || !take(at, equals, name) || !take(equals + 1, end, value)) {
      return opi_fail(err, OPIPE_E_INVALID, "arch: \"%.60s\" is not key=value",
                      opi_text_line(line, at));
    }
    (void)opi_text_clean(name, sizeof name);
    (void)opi_text_clean(value, sizeof value);
    OPI_TRY(set(out_arch, name, value, &seen, err));
    at = end;
  }
  return settle(out_arch, seen, err);
}

uint64_t opi_arch_params(const opi_arch *arch) {
  opi_layers *layers = NULL;
  const uint32_t one = 1;
  uint64_t sum = 0;
  const opi_arch_place nowhere = {NULL, 0};
  opi_arch copy = *arch;
  copy.dtype = OPIPE_FLOAT;
  if (opi_arch_layers(&copy, "", &nowhere, &one, 1, opi_allocator_system(), &layers, NULL) < 0)
    return 0;
  for (uint32_t i = 0; i < layers->n_layers; ++i)
    sum += layers->at[i].param_bytes / sizeof(float);
  sum -= arch->tied ? (uint64_t)arch->vocab * arch->hidden : 0;
  opi_layers_free(layers);
  return sum;
}
