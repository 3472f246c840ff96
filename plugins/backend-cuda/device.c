/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs as the driver numbers them, which is after CUDA_VISIBLE_DEVICES; a MIG slice is one. Rates
 * are nominal: clocks and widths that the driver tells, nothing is measured.
 */
#include <stdlib.h>

#include "share.h"

enum { OPTION_ROOM = 64 };

static opipe_status count_devices(const cuda_libraries *libraries, uint32_t *out_count,
                                  opipe_error *err) {
  int count = 0;
  const CUresult result = libraries->driver.device_count(&count);
  if (result != CUDA_OK && result != CUDA_NO_DEVICE) {
    return opipe_fail(err, OPIPE_E_DEVICE, "backend cuda: cuDeviceGetCount answers %d",
                      (int)result);
  }
  *out_count = count > 0 ? (uint32_t)count : 0;
  return OPIPE_OK;
}

opipe_status cuda_device_count(opipe_instance *self, uint32_t *out_count, opipe_error *err) {
  CUDA_TRY(cuda_check_owner(self->owner, "device_count", err));
  return count_devices(self->libraries, out_count, err);
}

opipe_status cuda_check_index(opipe_instance *self, uint32_t index, const char *what,
                              opipe_error *err) {
  uint32_t count = 0;
  CUDA_TRY(cuda_check_owner(self->owner, what, err));
  CUDA_TRY(count_devices(self->libraries, &count, err));
  return index < count
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_NOTFOUND, "backend cuda: device %u asked for, there are %u",
                          index, count);
}

/* Operations of a multiprocessor in a clock: of fp32 units (CUDA C++ Programming Guide, table
 * "arithmetic instructions"), and of products on tensor cores without sparsity, sums in fp32 (data
 * sheets, by their clocks), fp64 included where these have it. */
typedef struct chip_rates {
  int from; /* 10 major + minor */
  double fp32, half, fp64;
} chip_rates;

static const chip_rates *rates_of(int major, int minor) {
  static const chip_rates rows[] = {{0, 128, 1024, 4},     {80, 128, 2048, 128},
                                    {86, 256, 512, 4},     {90, 256, 4096, 256},
                                    {100, 256, 8192, 128}, {120, 256, 512, 4}};
  const chip_rates *found = &rows[0];
  for (size_t i = 1; i < sizeof rows / sizeof rows[0]; ++i) {
    if (10 * major + minor >= rows[i].from)
      found = &rows[i];
  }
  return found;
}

int cuda_attribute(const cuda_driver *driver, CUdevice device, int which) {
  int value = 0;
  return driver->device_attribute(&value, (CUdevice_attribute)which, device) == CUDA_OK ? value : 0;
}

/* No attribute says it. */
static bool is_slice(const cuda_driver *driver, CUdevice device) {
  char name[256] = "";
  (void)driver->device_name(name, (int)sizeof name, device);
  return strstr(name, " MIG ") != NULL;
}

void cuda_uuid_text(const cuda_driver *driver, CUdevice device, char *out, size_t room) {
  CUuuid uuid;
  out[0] = '\0';
  if (driver->device_uuid(&uuid, device) != CUDA_OK)
    return;
  size_t n = (size_t)snprintf(out, room, is_slice(driver, device) ? "MIG-" : "GPU-");
  for (size_t i = 0; i < sizeof uuid.bytes && n < room; ++i) {
    const char *dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
    n += (size_t)snprintf(out + n, room - n, "%s%02x", dash, (unsigned char)uuid.bytes[i]);
  }
}

static void fill_info(const cuda_driver *driver, CUdevice device, opipe_device_info *out) {
  char name[256] = "GPU";
  size_t n_bytes = 0;
  const int major = cuda_attribute(driver, device, CUDA_ATTRIBUTE_MAJOR);
  const int minor = cuda_attribute(driver, device, CUDA_ATTRIBUTE_MINOR);
  const chip_rates *rates = rates_of(major, minor);
  const double hertz = 1e3 * cuda_attribute(driver, device, CUDA_ATTRIBUTE_CLOCK_KHZ);
  (void)driver->device_name(name, (int)sizeof name, device);
  (void)driver->device_bytes(&n_bytes, device);
  out->memory_bytes = n_bytes;
  const double clocks = cuda_attribute(driver, device, CUDA_ATTRIBUTE_PROCESSORS) * hertz;
  out->peak_flops = clocks * rates->fp32;
  out->fp64_flops = clocks * rates->fp64;
  out->fp16_flops = out->bf16_flops = clocks * rates->half;
  out->flags = (is_slice(driver, device) ? OPIPE_DEVICE_ALONE : 0u) | OPIPE_DEVICE_HANDS_ON;
  cuda_uuid_text(driver, device, out->uuid, sizeof out->uuid);
  out->bandwidth = 2.0 * 1e3 * cuda_attribute(driver, device, CUDA_ATTRIBUTE_MEMORY_CLOCK_KHZ) *
                   cuda_attribute(driver, device, CUDA_ATTRIBUTE_MEMORY_BUS_BITS) / 8;
  out->launch_ns = 2500.0;
  out->alignment = CUDA_ALIGN;
  (void)snprintf(out->name, sizeof out->name, "%.47s (sm_%d%d)", name, major, minor);
}

opipe_status cuda_device_query(opipe_instance *self, uint32_t index, opipe_device_info *io_info,
                               opipe_error *err) {
  opipe_device_info full;
  CUdevice device = 0;
  const cuda_driver *driver = &self->libraries->driver;
  const uint32_t size = io_info->struct_size;
  const uint32_t known = (uint32_t)OPIPE_END(opipe_device_info, uuid);
  CUDA_TRY(cuda_check_index(self, index, "device_query", err));
  if (size < OPIPE_END(opipe_device_info, flags))
    return opipe_fail(err, OPIPE_E_ABI, "device_query: struct_size %u is too small", size);
  if (driver->device_get(&device, (int)index) != CUDA_OK)
    return opipe_fail(err, OPIPE_E_DEVICE, "backend cuda: device %u cannot be described", index);
  memset(&full, 0, sizeof full);
  full.struct_size = size;
  fill_info(driver, device, &full);
  memcpy(io_info, &full, size < known ? size : known);
  return OPIPE_OK;
}

/* fallback=cpu|none, fallback_threads=N */
static opipe_status read_fallback(cuda_inner *inner, const char *key, const char *value,
                                  opipe_error *err) {
  enum { MOST_THREADS = 1024 };
  const uint64_t n = strtoull(value, NULL, 10);
  if (strcmp(key, "fallback") == 0) {
    inner->asked = strcmp(value, "cpu") == 0;
    inner->refused = strcmp(value, "none") == 0;
    return inner->asked || inner->refused
               ? OPIPE_OK
               : opipe_fail(err, OPIPE_E_INVALID, "backend cuda: fallback=%s (cpu or none)", value);
  }
  if (strcmp(key, "fallback_threads") != 0 || n < 1 || n > MOST_THREADS ||
      value[strspn(value, "0123456789")] != '\0') {
    return opipe_fail(err, OPIPE_E_INVALID, "backend cuda: %s=%s (fallback_threads=1 to %d)", key,
                      value, MOST_THREADS);
  }
  inner->threads = (uint32_t)n;
  return OPIPE_OK;
}

/* sm=N; that there are so many is seen when the device is there. */
static opipe_status read_processors(opipe_device *device, const char *value, opipe_error *err) {
  enum { MOST_DIGITS = 9 };
  const size_t n = strspn(value, "0123456789");
  if (n < 1 || n > MOST_DIGITS || value[n] != '\0')
    return opipe_fail(err, OPIPE_E_INVALID, "backend cuda: sm=%s (a number of processors)", value);
  device->processors = (int32_t)strtol(value, NULL, 10);
  return OPIPE_OK;
}

static opipe_status check_processors(const opipe_device *device, opipe_error *err) {
  const cuda_place *place = device->place;
  const int n = cuda_attribute(place->driver, place->ordinal, CUDA_ATTRIBUTE_PROCESSORS);
  return device->processors <= n
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_INVALID, "cuda:%u: sm=%d, the device has %d processors",
                          place->index, (int)device->processors, n);
}

/* Products of how many rows take our kernel. */
static opipe_status read_few_rows(opipe_device *device, const char *value, opipe_error *err) {
  if (value[0] < '0' || value[0] > '0' + CUDA_FEW_ROWS || value[1] != '\0') {
    return opipe_fail(err, OPIPE_E_INVALID, "backend cuda: few_rows=%s (0 to %d)", value,
                      CUDA_FEW_ROWS);
  }
  device->few_rows = (uint32_t)(value[0] - '0');
  return OPIPE_OK;
}

/* pad=N, pad_mib=N */
static opipe_status read_pad(opipe_device *device, const char *key, const char *value,
                             opipe_error *err) {
  const bool is_room = strcmp(key, "pad_mib") == 0;
  const uint32_t least = is_room ? 1 : 0, most = is_room ? 4096 : 62;
  const size_t n = strspn(value, "0123456789");
  const unsigned long number = n < 1 || n > 4 ? most + 1 : strtoul(value, NULL, 10);
  if (number < least || number > most || value[n] != '\0') {
    return opipe_fail(err, OPIPE_E_INVALID, "backend cuda: %s=%s (%u to %u)", key, value, least,
                      most);
  }
  *(is_room ? &device->pad_mib : &device->pad) = (uint32_t)number;
  return OPIPE_OK;
}

/* invariant=1: what chooses its kernel by the number of rows stays off; asked for in the same
 * breath, it is refused. */
static opipe_status settle_invariant(opipe_device *device, const char *options, opipe_error *err) {
  static const char *const by_rows[] = {"few_rows", "pad", "few_attention", "cudnn"};
  char key[OPTION_ROOM], value[OPTION_ROOM];
  if (!device->invariant)
    return OPIPE_OK;
  while (opipe_option_next(&options, key, sizeof key, value, sizeof value) > 0) {
    for (size_t i = 0; i < sizeof by_rows / sizeof by_rows[0]; ++i) {
      if (strcmp(key, by_rows[i]) == 0 && strcmp(value, "0") != 0) {
        return opipe_fail(err, OPIPE_E_INVALID,
                          "backend cuda: %s=%s beside invariant=1: bits of a row would depend on "
                          "the number of rows",
                          key, value);
      }
    }
  }
  device->few_rows = device->pad = 0;
  device->few_attention = device->cudnn = false;
  return OPIPE_OK;
}

static opipe_status read_options(opipe_device *device, const char *options, opipe_error *err) {
  const struct {
    const char *key;
    bool *value;
  } known[] = {{"tf32", &device->tf32},
               {"launch_blocking", &device->blocking},
               {"graphs", &device->graphs},
               {"cudnn", &device->cudnn},
               {"deterministic", &device->deterministic},
               {"bias_gradients", &device->bias_gradients},
               {"half_copies", &device->half_copies},
               {"norm_sums", &device->norm_sums},
               {"dnn_masks", &device->dnn_masks},
               {"few_attention", &device->few_attention},
               {"invariant", &device->invariant},
               {"pdl", &device->pdl}};
  device->inner.threads = 1;
  device->cudnn = device->deterministic = device->half_copies = device->norm_sums = true;
  device->dnn_masks = device->few_attention = device->pdl = true;
  device->few_rows = 1;
  device->pad = 30;
  device->pad_mib = 128;
  const char *const all = options;
  char key[OPTION_ROOM], value[OPTION_ROOM];
  int more = 0;
  while ((more = opipe_option_next(&options, key, sizeof key, value, sizeof value)) > 0) {
    size_t i = 0;
    if (strncmp(key, "fallback", 8) == 0) {
      CUDA_TRY(read_fallback(&device->inner, key, value, err));
      continue;
    }
    if (strcmp(key, "sm") == 0) {
      CUDA_TRY(read_processors(device, value, err));
      continue;
    }
    if (strcmp(key, "few_rows") == 0) {
      CUDA_TRY(read_few_rows(device, value, err));
      continue;
    }
    if (strncmp(key, "pad", 3) == 0 && (key[3] == '\0' || strcmp(key, "pad_mib") == 0)) {
      CUDA_TRY(read_pad(device, key, value, err));
      continue;
    }
    while (i < sizeof known / sizeof known[0] && strcmp(known[i].key, key) != 0)
      ++i;
    if (i == sizeof known / sizeof known[0]) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "backend cuda: unknown option '%s' (tf32, launch_blocking, graphs, "
                        "cudnn, deterministic, bias_gradients, half_copies, norm_sums, sm, "
                        "few_rows, pad, pad_mib, dnn_masks, few_attention, invariant, pdl, "
                        "fallback, fallback_threads)",
                        key);
    }
    if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
      return opipe_fail(err, OPIPE_E_INVALID, "backend cuda: %s=%s (0 or 1)", key, value);
    *known[i].value = value[0] == '1';
  }
  return more < 0 ? opipe_fail(err, OPIPE_E_INVALID,
                               "backend cuda: options are malformed at '%.40s'", options)
                  : settle_invariant(device, all, err);
}

/* Whether kernels wait themselves for the launch in front of them: the chip can, and what runs
 * there was not made of PTX for older ones, which has no such instruction (kernels/device.cuh). */
static opipe_status do_kernels_wait(cuda_place *place, bool *out_wait, opipe_error *err) {
  enum { FIRST_CHIP = 9 };
  const cuda_driver *driver = place->driver;
  CUfunction any = NULL;
  int version = 0;
  *out_wait = false;
  if (cuda_attribute(driver, place->ordinal, CUDA_ATTRIBUTE_MAJOR) < FIRST_CHIP)
    return OPIPE_OK;
  CUDA_TRY(cuda_result(place, driver->module_function(&any, place->module, "opipe_begin"),
                       "kernel opipe_begin", err));
  CUDA_TRY(cuda_result(
      place, driver->function_get(&version, (CUfunction_attribute)CUDA_FUNCTION_PTX_VERSION, any),
      "kernel opipe_begin", err));
  *out_wait = version >= 10 * FIRST_CHIP;
  return OPIPE_OK;
}

/* Opens everything that needs the context: within an entry. */
static opipe_status open_resources(opipe_device *device, opipe_error *err) {
  cuda_place *place = device->place;
  const cuda_products *products = &place->libraries->products;
  CUDA_TRY(check_processors(device, err));
  if (device->pdl)
    CUDA_TRY(do_kernels_wait(place, &device->pdl, err));
  CUDA_TRY(cuda_result(place,
                       place->driver->stream_create(&device->control, CUDA_STREAM_NON_BLOCKING),
                       "cuStreamCreate", err));
  const cublasStatus_t made = products->create(&device->products);
  return made == CUDA_LT_SUCCESS
             ? cuda_dnn_open(device, err)
             : opipe_fail(err, OPIPE_E_DEVICE, "cuda:%u: cublasLtCreate answers %s (%d)",
                          place->index, products->status_name(made), (int)made);
}

opipe_status cuda_device_open(opipe_instance *self, const opipe_device_params *params,
                              opipe_device **out_device, opipe_error *err) {
  opipe_device_info info = {.struct_size = (uint32_t)OPIPE_END(opipe_device_info, name)};
  if (!OPIPE_HAS(params, opipe_device_params, options)) {
    return opipe_fail(err, OPIPE_E_ABI, "device_open: struct_size %u is too small",
                      params->struct_size);
  }
  CUDA_TRY(cuda_device_query(self, params->index, &info, err));
  opipe_device *device =
      opipe_zeroed(self->host, "device", sizeof *device, _Alignof(opipe_device), err);
  if (device == NULL)
    return OPIPE_E_NOMEM;
  device->host = self->host;
  device->owner = self->owner;
  device->memory_bytes = info.memory_bytes;
  device->meter.cap_bytes = params->memory_bytes != 0 ? params->memory_bytes : info.memory_bytes;
  opipe_status status = cuda_names_open(&device->names, err);
  if (status >= 0 && (pthread_mutex_init(&device->lock, NULL) != 0 ||
                      pthread_mutex_init(&device->small_lock, NULL) != 0 ||
                      pthread_mutex_init(&device->inner.lock, NULL) != 0)) {
    cuda_names_close(&device->names, self->host);
    status = opipe_fail(err, OPIPE_E_NOMEM, "no lock for a device");
  }
  if (status < 0) {
    opipe_free(self->host, device, sizeof *device, _Alignof(opipe_device));
    return status;
  }
  status = read_options(device, params->options, err);
  if (status >= 0)
    status = cuda_inner_open(self, device, err);
  if (status >= 0)
    status = cuda_place_take(self->libraries, params->index, &device->place, err);
  if (status >= 0)
    status = cuda_enter(device, "device_open", err);
  if (status >= 0) {
    status = open_resources(device, err);
    cuda_leave(device);
  }
  if (status < 0) {
    cuda_device_close(device);
    return status;
  }
  *out_device = device;
  return OPIPE_OK;
}

/* Warns of memory that was freed while work of a queue that was given up might still touch it. The
 * context must work. */
static void tell_kept(const opipe_device *device) {
  const uint64_t n_bytes = __atomic_load_n(&device->kept_bytes, __ATOMIC_RELAXED);
  char text[200];
  if (n_bytes == 0 || device->host->log == NULL)
    return;
  (void)snprintf(text, sizeof text,
                 "cuda:%u: %llu bytes of its memory stay the driver's until the process ends: work "
                 "of a queue that was given up may have touched them",
                 device->place->index, (unsigned long long)n_bytes);
  device->host->log(device->host->ctx, OPIPE_LOG_WARN, NULL, 0, text);
}

void cuda_device_close(opipe_device *device) {
  if (device == NULL)
    return;
  const opipe_host *host = device->host;
  cuda_place *place = device->place;
  const bool entered = place != NULL && cuda_enter(device, "device_close", NULL) >= 0;
  const bool give = entered && cuda_may_give(device);
  if (place != NULL) {
    cuda_words_free(device);
    cuda_dnn_close(device, give);
  }
  if (give && device->products != NULL)
    (void)place->libraries->products.destroy(device->products);
  if (entered && device->control != NULL)
    (void)place->driver->stream_destroy(device->control);
  if (entered) {
    cuda_leave(device);
    tell_kept(device);
  }
  if (place != NULL && cuda_check_owner(device->owner, "device_close", NULL) >= 0)
    cuda_place_give(place, give);
  if (cuda_check_owner(device->owner, "device_close", NULL) >= 0)
    cuda_inner_close(device);
  cuda_queues_free(device);
  cuda_names_close(&device->names, host);
  cuda_choices_free(device);
  (void)pthread_mutex_destroy(&device->lock);
  (void)pthread_mutex_destroy(&device->small_lock);
  (void)pthread_mutex_destroy(&device->inner.lock);
  opipe_free(host, device, sizeof *device, _Alignof(opipe_device));
}

opipe_status cuda_device_usage(opipe_device *device, opipe_device_usage *io_usage,
                               opipe_error *err) {
  CUDA_TRY(opipe_meter_read(&device->meter, io_usage, err));
  if (OPIPE_HAS(io_usage, opipe_device_usage, host_bytes)) {
    io_usage->host_bytes = __atomic_load_n(&device->inner.host_bytes, __ATOMIC_RELAXED) +
                           __atomic_load_n(&device->inner.host_alloced, __ATOMIC_RELAXED);
  }
  return OPIPE_OK;
}
