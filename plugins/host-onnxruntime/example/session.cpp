/* SPDX-License-Identifier: Apache-2.0 */
/* A session of ONNX Runtime whose model runs through onnx-pipe, by ONNX Runtime's C interface, in
 * C++; and the same by its own CPU provider, to compare.
 *
 *   c++ -std=c++17 session.cpp -ldl -o session
 *   ./session LIBONNXRUNTIME ADAPTER MODEL STAGES     LIBONNXRUNTIME: libonnxruntime.so.1.N, N >=
 * 23
 *
 * MODEL reads "input_ids" [batch, seq] int64 and makes "logits" [batch, seq, vocab] float. Nothing
 * of ONNX Runtime's is needed to build: what is called has its place in the table here. With its
 * header these are onnxruntime_c_api.h's OrtApi members of the same names.
 */
#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Base {
  const void *const *(*get_api)(uint32_t version);
  const char *(*get_version)();
};

/* A member of the table. */
template <typename Result, typename... Parameters>
struct Member {
  const char *name;
  size_t at;
};

using Handle = void *;
constexpr Member<const char *, Handle> GetErrorMessage{"GetErrorMessage", 2};
constexpr Member<Handle, int, const char *, Handle *> CreateEnv{"CreateEnv", 3};
constexpr Member<Handle, Handle, const char *, Handle, Handle *> CreateSession{"CreateSession", 7};
constexpr Member<Handle, Handle, Handle, const char *const *, const Handle *, size_t,
                 const char *const *, size_t, Handle *>
    Run{"Run", 9};
constexpr Member<Handle, Handle *> CreateSessionOptions{"CreateSessionOptions", 10};
constexpr Member<Handle, Handle, void *, size_t, const int64_t *, size_t, int, Handle *>
    CreateTensorWithDataAsOrtValue{"CreateTensorWithDataAsOrtValue", 49};
constexpr Member<Handle, Handle, void **> GetTensorMutableData{"GetTensorMutableData", 51};
constexpr Member<Handle, int, int, Handle *> CreateCpuMemoryInfo{"CreateCpuMemoryInfo", 69};
constexpr Member<void, Handle> ReleaseEnv{"ReleaseEnv", 92}, ReleaseStatus{"ReleaseStatus", 93},
    ReleaseMemoryInfo{"ReleaseMemoryInfo", 94}, ReleaseSession{"ReleaseSession", 95},
    ReleaseValue{"ReleaseValue", 96}, ReleaseSessionOptions{"ReleaseSessionOptions", 100};
constexpr Member<Handle, Handle, const char *, const char *> RegisterExecutionProviderLibrary{
    "RegisterExecutionProviderLibrary", 301};
constexpr Member<Handle, Handle, const Handle **, size_t *> GetEpDevices{"GetEpDevices", 303};
constexpr Member<Handle, Handle, Handle, const Handle *, size_t, const char *const *,
                 const char *const *, size_t>
    SessionOptionsAppendExecutionProvider_V2{"SessionOptionsAppendExecutionProvider_V2", 304};
constexpr Member<const char *, Handle> EpDevice_EpName{"EpDevice_EpName", 312};
constexpr Member<Handle, Handle, size_t *> GetTensorSizeInBytes{"GetTensorSizeInBytes", 318};

const void *const *table;

template <typename Result, typename... Parameters, typename... Arguments>
Result call(const Member<Result, Parameters...> &member, Arguments... arguments) {
  return reinterpret_cast<Result (*)(Parameters...)>(reinterpret_cast<uintptr_t>(table[member.at]))(
      arguments...);
}

/* The same, with the status that it gives as an exception. */
template <typename... Parameters, typename... Arguments>
void check(const Member<Handle, Parameters...> &member, Arguments... arguments) {
  const Handle status = call(member, arguments...);
  if (status == nullptr)
    return;
  const std::string text = std::string(member.name) + ": " + call(GetErrorMessage, status);
  call(ReleaseStatus, status);
  throw std::runtime_error(text);
}

std::vector<float> run(Handle env, Handle options, const char *model) {
  int64_t ids[16];
  const int64_t shape[] = {2, 8};
  const char *const in[] = {"input_ids"}, *const out[] = {"logits"};
  Handle session = nullptr, memory = nullptr, input = nullptr, output = nullptr;
  void *data = nullptr;
  size_t n_bytes = 0;
  for (int i = 0; i < 16; ++i)
    ids[i] = (i * 7 + 3) % 50;
  check(CreateSession, env, model, options, &session);
  check(CreateCpuMemoryInfo, 1, 0, &memory);
  check(CreateTensorWithDataAsOrtValue, memory, ids, sizeof ids, shape, size_t{2}, 7, &input);
  check(Run, session, nullptr, in, &input, size_t{1}, out, size_t{1}, &output);
  check(GetTensorMutableData, output, &data);
  check(GetTensorSizeInBytes, output, &n_bytes);
  std::vector<float> logits(n_bytes / sizeof(float));
  std::memcpy(logits.data(), data, n_bytes);
  call(ReleaseValue, output);
  call(ReleaseValue, input);
  call(ReleaseMemoryInfo, memory);
  call(ReleaseSession, session);
  return logits;
}

int compare(const char *adapter, const char *model, const char *stages) {
  const char *const keys[] = {"stages"}, *const values[] = {stages};
  const Handle *devices = nullptr;
  size_t n = 0, own = 0;
  Handle env = nullptr, plain = nullptr, ours = nullptr;
  check(CreateEnv, 3, "session", &env);
  check(CreateSessionOptions, &plain);
  check(CreateSessionOptions, &ours);
  /* These two hand the session's model over, */
  check(RegisterExecutionProviderLibrary, env, "onnx-pipe", adapter);
  check(GetEpDevices, env, &devices, &n);
  while (own < n &&
         std::strcmp(call(EpDevice_EpName, devices[own]), "OnnxPipeExecutionProvider") != 0)
    ++own;
  if (own == n)
    throw std::runtime_error("the adapter offers no device");
  check(SessionOptionsAppendExecutionProvider_V2, ours, env, devices + own, size_t{1}, keys, values,
        size_t{1}); /* with options. */
  const std::vector<float> found = run(env, ours, model), wanted = run(env, plain, model);
  double away = found.size() == wanted.size() ? 0 : INFINITY, most = 0;
  for (size_t i = 0; i < wanted.size() && i < found.size(); ++i) {
    away = std::fmax(away, std::fabs(double{found[i]} - double{wanted[i]}));
    most = std::fmax(most, std::fabs(double{wanted[i]}));
  }
  call(ReleaseSessionOptions, ours);
  call(ReleaseSessionOptions, plain);
  call(ReleaseEnv, env);
  std::fprintf(stdout, "%zu numbers, in %s stages; largest difference %.2g of %.3g\n", found.size(),
               stages, away, most);
  return away <= 1e-5 * most ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: session LIBONNXRUNTIME ADAPTER MODEL STAGES\n");
    return 2;
  }
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  void *entry = library == nullptr ? nullptr : dlsym(library, "OrtGetApiBase");
  if (entry == nullptr) {
    std::fprintf(stderr, "session: %s\n", dlerror());
    return 1;
  }
  const Base *base = reinterpret_cast<const Base *(*)()>(reinterpret_cast<uintptr_t>(entry))();
  table = base->get_api(23);
  if (table == nullptr) {
    std::fprintf(stderr, "session: ONNX Runtime %s has no interface of 1.23\n",
                 base->get_version());
    return 1;
  }
  try {
    return compare(argv[2], argv[3], argv[4]);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "session: %s\n", error.what());
    return 1;
  }
}
