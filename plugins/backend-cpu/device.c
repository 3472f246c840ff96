/* SPDX-License-Identifier: Apache-2.0 */
/* The one device: this machine's processors and memory.
 *
 * Rates are nominal; nothing is measured here. Threads: as many as the process may run on, unless
 * the opening says otherwise.
 */
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "cpu.h"
#include "total_memory.h"

enum { OPTION_ROOM = 64 };

opipe_status cpu_device_count(opipe_instance *self, uint32_t *out_count, opipe_error *err) {
  (void)self;
  (void)err;
  *out_count = 1;
  return OPIPE_OK;
}

static uint32_t usable_cpus(void) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    return (uint32_t)CPU_COUNT(&set);
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? (uint32_t)online : 1u;
}

/* The text after "key   : " of the first line of /proc/cpuinfo that starts with key. */
static bool cpuinfo(const char *key, char *out_text, size_t room) {
  bool found = false;
  FILE *file = fopen("/proc/cpuinfo", "re");
  char line[256];
  if (file == NULL)
    return false;
  while (!found && fgets(line, (int)sizeof line, file) != NULL) {
    const char *colon = strchr(line, ':');
    if (strncmp(line, key, strlen(key)) == 0 && colon != NULL) {
      const char *text = colon + 1 + strspn(colon + 1, " \t");
      const size_t n = strcspn(text, "\n");
      const size_t kept = n < room - 1 ? n : room - 1;
      memcpy(out_text, text, kept);
      out_text[kept] = '\0';
      found = true;
    }
  }
  (void)fclose(file);
  return found;
}

/* Nominal rates of one processor, the same on every machine: plans that are made on one hold on
 * another, and whatever its kernels are. Two 256-bit multiply-adds a cycle at 2.5 GHz; memory is
 * shared by some processors of a socket. */
static const double NOMINAL_FLOPS = 80e9, NOMINAL_BANDWIDTH = 10e9;

/* The kind that a device takes by default: the processor's rule if its best kernels are in use,
 * else none. */
static cpu_dots_kind own_bf16(cpu_isa isa) {
  cpu_dots_machine machine;
  cpu_dots_detect(&machine);
  return isa == CPU_ISA_AVX512 ? cpu_dots_rule(&machine) : CPU_DOTS_WIDEN;
}

/* "(avx512, vnni, bf16 tiles)": the instructions that a device takes by default; returns the
 * length.
 */
static int describe_kernels(cpu_isa isa, char *out_text, size_t room) {
  const cpu_dots_kind dots = own_bf16(isa);
  const cpu_bytes_kind bytes = cpu_bytes_rule(isa);
  const char *sums = bytes == CPU_BYTES_TILES  ? ", int8 tiles"
                     : bytes == CPU_BYTES_VNNI ? ", vnni"
                                               : "";
  const bool own = dots != CPU_DOTS_WIDEN;
  return snprintf(out_text, room, "(%s%s%s%s)", cpu_isa_name(isa), sums, own ? ", bf16 " : "",
                  own ? cpu_dots_name(dots) : "");
}

/* Everything but the flags: files of the system are read. */
static void fill_info(opipe_device_info *out) {
  char model[40] = "CPU", with[40];
  out->max_threads = usable_cpus();
  out->memory_bytes = cpu_total_memory("");
  out->peak_flops = NOMINAL_FLOPS * out->max_threads;
  out->bandwidth = NOMINAL_BANDWIDTH * out->max_threads;
  out->launch_ns = 300.0;
  out->alignment = CPU_ALIGN_BYTES;
  (void)cpuinfo("model name", model, sizeof model);
  const int length = describe_kernels(cpu_isa_detect(), with, sizeof with);
  (void)snprintf(out->name, sizeof out->name, "%.*s %s", (int)sizeof out->name - 2 - length, model,
                 with);
}

opipe_status cpu_device_query(opipe_instance *self, uint32_t index, opipe_device_info *io_info,
                              opipe_error *err) {
  opipe_device_info full;
  const uint32_t size = io_info->struct_size;
  const uint32_t known = (uint32_t)OPIPE_END(opipe_device_info, name);
  (void)self;
  if (index != 0)
    return opipe_fail(err, OPIPE_E_NOTFOUND, "backend cpu: device %u asked for, there is 1", index);
  if (size < OPIPE_END(opipe_device_info, flags))
    return opipe_fail(err, OPIPE_E_ABI, "device_query: struct_size %u is too small", size);
  memset(&full, 0, sizeof full);
  full.struct_size = size;
  full.flags = OPIPE_DEVICE_HOST_MEMORY | OPIPE_DEVICE_SYNCHRONOUS;
  if (size > OPIPE_END(opipe_device_info, flags)) /* who asks for each message wants only these */
    fill_info(&full);
  memcpy(io_info, &full, size < known ? size : known);
  return OPIPE_OK;
}

/* The name of a kind; *out_auto: it was auto. */
static opipe_status read_bf16(const char *value, bool *out_auto, cpu_dots_kind *out_kind,
                              opipe_error *err) {
  *out_auto = strcmp(value, "auto") == 0;
  if (*out_auto)
    return OPIPE_OK;
  if (!cpu_dots_parse(value, out_kind)) {
    return opipe_fail(
        err, OPIPE_E_INVALID,
        "backend cpu: bf16=%s (widen, pairs, tiles, pairs-model, tiles-model or auto)", value);
  }
  if (*out_kind != CPU_DOTS_WIDEN && cpu_dots_get(*out_kind) == NULL) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "backend cpu: bf16=%s needs instructions that this machine lacks", value);
  }
  return OPIPE_OK;
}

/* The same of products of bytes. */
static opipe_status read_int8(const char *value, bool *out_auto, cpu_bytes_kind *out_kind,
                              opipe_error *err) {
  *out_auto = strcmp(value, "auto") == 0;
  if (*out_auto || cpu_bytes_parse(value, out_kind))
    return OPIPE_OK;
  return opipe_fail(err, OPIPE_E_INVALID,
                    "backend cpu: int8=%s (plain, vnni, tiles, tiles-model or auto)", value);
}

/* The kernels of a device: of its instruction set, and of bytes beside it. */
static opipe_status choose_kernels(opipe_device *device, cpu_bytes_kind bytes, opipe_error *err) {
  device->exec.kernels = cpu_kernels_get(device->isa);
  if (device->exec.kernels == NULL) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "backend cpu: kernels=%s needs instructions that this machine lacks",
                      cpu_isa_name(device->isa));
  }
  device->exec.bytes = cpu_bytes_get(bytes, device->isa);
  if (device->exec.bytes == NULL) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "backend cpu: int8=%s: this machine has none for kernels=%s",
                      cpu_bytes_name(bytes), cpu_isa_name(device->isa));
  }
  return OPIPE_OK;
}

static opipe_status read_options(opipe_device *device, const char *options, opipe_error *err) {
  char key[OPTION_ROOM];
  char value[OPTION_ROOM];
  int more = 0;
  bool own = true, own_int8 = true;
  cpu_bytes_kind bytes = CPU_BYTES_PLAIN;
  while ((more = opipe_option_next(&options, key, sizeof key, value, sizeof value)) > 0) {
    if (strcmp(key, "mapped") == 0) {
      if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
        return opipe_fail(err, OPIPE_E_INVALID, "backend cpu: mapped=%s (0 or 1)", value);
      device->copies = value[0] == '0';
      continue;
    }
    if (strcmp(key, "bf16") == 0 || strcmp(key, "int8") == 0) {
      const opipe_status status = key[0] == 'b' ? read_bf16(value, &own, &device->dots, err)
                                                : read_int8(value, &own_int8, &bytes, err);
      if (status < 0)
        return status;
      continue;
    }
    if (strcmp(key, "kernels") != 0) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "backend cpu: unknown option '%s' (kernels, mapped, bf16, int8)", key);
    }
    if (strcmp(value, "reference") == 0) {
      device->mode = CPU_MODE_REFERENCE;
    } else if (!cpu_isa_parse(value, &device->isa)) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "backend cpu: kernels=%s (reference, portable, avx2 or avx512)", value);
    }
  }
  if (more < 0) {
    return opipe_fail(err, OPIPE_E_INVALID, "backend cpu: options are malformed at '%.40s'",
                      options);
  }
  device->dots = own ? own_bf16(device->isa) : device->dots;
  return choose_kernels(device, own_int8 ? cpu_bytes_rule(device->isa) : bytes, err);
}

static opipe_status start_team(opipe_device *device, uint32_t spin_us, opipe_error *err) {
  const cpu_team_options options = {device->threads, (int64_t)spin_us * 1000, NULL};
  const opipe_host *host = device->host;
  if (device->threads == 1)
    return OPIPE_OK;
  device->team_bytes = cpu_team_bytes(device->threads);
  device->team_memory = host->realloc(host->ctx, NULL, 0, device->team_bytes, CPU_TEAM_ALIGN_BYTES);
  if (device->team_memory == NULL) {
    return opipe_fail(err, OPIPE_E_NOMEM, "backend cpu: no memory for a team of %d threads",
                      device->threads);
  }
  const int failed = cpu_team_start(device->team_memory, &options, &device->exec.team);
  if (failed != 0) {
    device->exec.team = NULL;
    opipe_fail(err, OPIPE_E_IO, "backend cpu: cannot start %d threads: %s", device->threads,
               strerror(failed));
    if (err != NULL) {
      err->domain = OPIPE_DOMAIN_ERRNO;
      err->native = failed;
    }
    return OPIPE_E_IO;
  }
  return OPIPE_OK;
}

static const opipe_host_pages *find_pages(const opipe_host *host) {
  if (!OPIPE_HAS(host, opipe_host, get_interface) || host->get_interface == NULL)
    return NULL;
  const opipe_host_pages *pages = host->get_interface(host->ctx, OPIPE_HOST_PAGES_ID);
  return pages != NULL && OPIPE_HAS(pages, opipe_host_pages, drop) ? pages : NULL;
}

opipe_status cpu_device_open(opipe_instance *self, const opipe_device_params *params,
                             opipe_device **out_device, opipe_error *err) {
  opipe_status status = OPIPE_OK;
  opipe_device *device = NULL;
  if (!OPIPE_HAS(params, opipe_device_params, options)) {
    return opipe_fail(err, OPIPE_E_ABI, "device_open: struct_size %u is too small",
                      params->struct_size);
  }
  if (params->index != 0) {
    return opipe_fail(err, OPIPE_E_NOTFOUND, "backend cpu: device %u asked for, there is 1",
                      params->index);
  }
  if (params->threads > CPU_TEAM_MAX_THREADS) {
    return opipe_fail(err, OPIPE_E_LIMIT, "backend cpu: %u threads asked for, at most %d",
                      params->threads, CPU_TEAM_MAX_THREADS);
  }
  device = cpu_acquire(self->host, sizeof *device, "device", err);
  if (device == NULL)
    return OPIPE_E_NOMEM;
  device->host = self->host;
  device->pages = find_pages(self->host);
  device->meter.cap_bytes = params->memory_bytes != 0 ? params->memory_bytes : cpu_total_memory("");
  device->mode = CPU_MODE_FAST;
  device->isa = cpu_isa_detect();
  const uint32_t usable = usable_cpus();
  const uint32_t own = usable < CPU_TEAM_MAX_THREADS ? usable : CPU_TEAM_MAX_THREADS;
  device->threads = (int32_t)(params->threads != 0 ? params->threads : own);
  status = read_options(device, params->options, err);
  if (status >= 0)
    status = start_team(device, params->spin_us, err);
  if (status < 0) {
    cpu_device_close(device);
    return status;
  }
  *out_device = device;
  return OPIPE_OK;
}

void cpu_device_close(opipe_device *device) {
  if (device == NULL)
    return;
  const opipe_host *host = device->host;
  cpu_team_stop(device->exec.team);
  if (device->team_memory != NULL)
    host->realloc(host->ctx, device->team_memory, device->team_bytes, 0, CPU_TEAM_ALIGN_BYTES);
  cpu_release(host, device, sizeof *device);
}

opipe_status cpu_device_usage(opipe_device *device, opipe_device_usage *io_usage,
                              opipe_error *err) {
  return opipe_meter_read(&device->meter, io_usage, err);
}
