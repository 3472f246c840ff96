/* SPDX-License-Identifier: Apache-2.0 */
/* Files of other formats that are given in a model's place, told by their first bytes. No ONNX
 * model begins like any of them.
 */
#include "loader/wire/foreign.h"

#include <string.h>

enum { TEXT_LOOKED_AT = 512, TEXT_LEAST = 16, ZIP_NAME = 30, TAR_MAGIC = 257 };

typedef struct magic {
  uint32_t offset, n;
  const char *bytes, *what;
} magic;

static const magic magics[] = {
    {0, 6, "\x89HDF\r\n", "an HDF5 file (Keras, TensorFlow)"},
    {0, 4, "GGUF", "a GGUF file (llama.cpp)"},
    {0, 4, "lmgg", "a GGML file (llama.cpp)"},
    {0, 4, "tjgg", "a GGML file (llama.cpp)"},
    {0, 6, "\x93NUMPY", "a NumPy array"},
    {0, 2, "\x1f\x8b", "a gzip archive: unpack it first"},
    {0, 4, "\x28\xb5\x2f\xfd", "a zstd archive: unpack it first"},
    {0, 6,
     "\xfd"
     "7zXZ",
     "an xz archive: unpack it first"},
    {0, 3, "BZh", "a bzip2 archive: unpack it first"},
    {0, 6, "7z\xbc\xaf\x27\x1c", "a 7-Zip archive: unpack it first"},
    {0, 4,
     "\x7f"
     "ELF",
     "a program or library (ELF)"},
    {0, 2, "MZ", "a program or library (Windows)"},
    {0, 4, "%PDF", "a PDF document"},
    {0, 4, "\x89PNG", "a picture (PNG)"},
    {0, 3, "\xff\xd8\xff", "a picture (JPEG)"},
    {TAR_MAGIC, 5, "ustar", "a tar archive: unpack it first"},
};

static bool has(const uint8_t *bytes, uint64_t n, uint64_t offset, const char *what,
                uint64_t n_what) {
  return n >= offset + n_what && memcmp(bytes + offset, what, (size_t)n_what) == 0;
}

static bool has_text(const uint8_t *bytes, uint64_t n, const char *what) {
  return has(bytes, n, 0, what, strlen(what));
}

static bool ends_with(const uint8_t *name, uint64_t n, const char *end) {
  const uint64_t m = strlen(end);
  return n >= m && memcmp(name + n - m, end, (size_t)m) == 0;
}

/* By the name of the first entry, which writers of models choose. */
static const char *zip_kind(const uint8_t *bytes, uint64_t n) {
  const uint64_t said = n < ZIP_NAME ? 0 : (uint64_t)bytes[26] | (uint64_t)bytes[27] << 8;
  const uint64_t length = n < ZIP_NAME || said > n - ZIP_NAME ? 0 : said;
  const uint8_t *name = length == 0 ? bytes : bytes + ZIP_NAME;
  static const char *const torch[] = {"data.pkl",       "/version",      "/byteorder",
                                      "archive_format", "constants.pkl", "/.format_version"};
  for (size_t i = 0; i < OPI_COUNT(torch); ++i) {
    if (ends_with(name, length, torch[i]))
      return "a PyTorch file: torch.onnx.export writes ONNX";
  }
  if (ends_with(name, length, ".npy"))
    return "a NumPy archive (.npz)";
  if (length == strlen("metadata.json") && ends_with(name, length, "metadata.json"))
    return "a Keras file";
  return "a ZIP archive: unpack it first";
}

/* The numbers of a flatbuffer's head: where its table begins, a name of four letters. */
static bool is_flatbuffer(const uint8_t *bytes, uint64_t n, const char *name) {
  return has(bytes, n, 4, name, 4) && bytes[2] == 0 && bytes[3] == 0;
}

/* A length of 8 bytes, then JSON. */
static bool is_safetensors(const uint8_t *bytes, uint64_t n) {
  static const char zeros[4] = {0};
  return n > 9 && has(bytes, n, 4, zeros, sizeof(zeros)) && opi_wire_fixed(bytes, 8) <= n - 8 &&
         bytes[8] == '{';
}

/* torch.save before 1.6: a pickled number, by which it is known; else any pickle of protocol 2 on.
 */
static const char *pickle_kind(const uint8_t *bytes, uint64_t n) {
  static const char torch[] = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
  if (n < 3 || bytes[0] != 0x80 || bytes[1] < 2 || bytes[1] > 5)
    return NULL;
  if (has(bytes, n, 2, torch, sizeof(torch) - 1))
    return "a PyTorch file: torch.onnx.export writes ONNX";
  return strchr("\x8a\x95}](cX\x8c", bytes[2]) != NULL ? "a Python pickle" : NULL;
}

/* SavedModel: its schema's version, then messages whose first one is no text, as a producer's name
 * would be. */
static bool is_saved_model(const uint8_t *bytes, uint64_t n) {
  uint64_t at = 3, length = 0;
  return n > 8 && has(bytes, n, 0, "\x08\x01\x12", 3) && opi_wire_varint(bytes, n, &at, &length) &&
         length > TEXT_LOOKED_AT && at < n && bytes[at] == 0x0a;
}

/* GraphDef: nodes, each a name and an operator. */
static bool is_graph_def(const uint8_t *bytes, uint64_t n) {
  uint64_t at = 1, length = 0, end = 0, name = 0;
  if (n < 8 || bytes[0] != 0x0a || !opi_wire_varint(bytes, n, &at, &length) || length > n - at)
    return false;
  end = at + length;
  if (at >= end || bytes[at++] != 0x0a || !opi_wire_varint(bytes, end, &at, &name) ||
      name >= end - at)
    return false;
  return bytes[at + name] == 0x12;
}

static const char *text_kind(const uint8_t *bytes, uint64_t n) {
  const uint64_t looked_at = n < TEXT_LOOKED_AT ? n : TEXT_LOOKED_AT;
  uint64_t first = 0;
  if (has(bytes, n, 0, "\xef\xbb\xbf", 3))
    first = 3;
  for (uint64_t i = first; i < looked_at; ++i) {
    const uint8_t c = bytes[i];
    if ((c < 32 && c != '\n' && c != '\r' && c != '\t') || c >= 127)
      return NULL;
  }
  while (first < looked_at &&
         (bytes[first] == ' ' || (bytes[first] >= '\t' && bytes[first] <= '\r')))
    ++first;
  if (first == looked_at)
    return n >= TEXT_LEAST ? "empty text" : NULL;
  const uint8_t *at = bytes + first;
  const uint64_t rest = n - first;
  if (*at == '{' || *at == '[')
    return "a JSON file";
  if (has_text(at, rest, "<!DOCTYPE") || has_text(at, rest, "<!doctype") ||
      has_text(at, rest, "<html"))
    return "a page of HTML, as a download that failed leaves it";
  if (has_text(at, rest, "<?xml") || has_text(at, rest, "<net"))
    return "an XML file (OpenVINO)";
  if (*at == '<' || has_text(at, rest, "ir_version"))
    return "ONNX's text format: onnx.parser and onnx.save write the binary one";
  return rest >= TEXT_LEAST ? "a text file" : NULL;
}

const char *opi_foreign_kind(const uint8_t *bytes, uint64_t n_bytes) {
  if (has(bytes, n_bytes, 0, "PK\x03\x04", 4))
    return zip_kind(bytes, n_bytes);
  for (size_t i = 0; i < OPI_COUNT(magics); ++i) {
    if (has(bytes, n_bytes, magics[i].offset, magics[i].bytes, magics[i].n))
      return magics[i].what;
  }
  if (is_safetensors(bytes, n_bytes))
    return "a safetensors file: it holds weights without a graph";
  if (is_flatbuffer(bytes, n_bytes, "TFL3"))
    return "a TensorFlow Lite file";
  if (is_flatbuffer(bytes, n_bytes, "ORTM"))
    return "an ONNX Runtime .ort file: convert the .onnx that it was made from";
  const char *kind = pickle_kind(bytes, n_bytes);
  if (kind == NULL)
    kind = text_kind(bytes, n_bytes);
  if (kind == NULL && is_saved_model(bytes, n_bytes))
    kind = "a TensorFlow SavedModel: tf2onnx writes ONNX";
  if (kind == NULL && is_graph_def(bytes, n_bytes))
    kind = "a TensorFlow GraphDef: tf2onnx writes ONNX";
  return kind;
}
