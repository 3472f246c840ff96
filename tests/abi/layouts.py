# SPDX-License-Identifier: Apache-2.0
"""Plugins and hosts whose compiler saw other structs: built from a copy of the headers in which a
field stands before the last one of a struct's first release, and refused by that struct's name.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import freeze  # noqa: E402  (beside this file)

BUILD = os.environ.get("OPIPE_BUILD_DIR") or os.path.join(freeze.ROOT, "build", "dev")
COMMAND = os.path.join(BUILD, "bin", "onnx-pipe")
LIBRARY = os.path.join(BUILD, "lib", "libonnxpipe.so")
CC = os.environ.get("OPIPE_CC") or "cc"
SANITIZE = [
    "-fsanitize=" + kind
    for kind in ("address", "thread")
    if kind in os.environ.get("OPIPE_SANITIZE", "")
]
KINDS = {"backend": "BACKEND", "schedule": "SCHEDULE", "transport": "TRANSPORT"}

PLUGIN = """#include <opipe/%(kind)s.h>
static opipe_status open_it(const opipe_host *host, opipe_instance **out, opipe_error *err) {
  (void)host, (void)out, (void)err;
  return OPIPE_E_UNSUPPORTED;
}
static void close_it(opipe_instance *self) { (void)self; }
static const void *find(opipe_instance *self, const char *id) { (void)self, (void)id; return 0; }
extern OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL;
const opipe_plugin OPIPE_PLUGIN_SYMBOL = {OPIPE_PLUGIN_HEAD(OPIPE_KIND_%(upper)s, 0),
  "%(id)s", "1", "Apache-2.0", "a probe", open_it, close_it, find};
"""
HOST = """#include <opipe/host.h>
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
  unsigned char err[1024] = {0};
  const opipe_api *api = 0;
  opipe_get_api_fn get = 0;
  void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : 0;
  if (library == 0) return 2;
  *(void **)&get = dlsym(library, "opipe_get_api");
  const int status = get(OPIPE_VIEW, &api, (opipe_error *)(void *)err);
  printf("%d %s\\n", status, status < 0 ? (const char *)err + 16 : "");
  return 0;
}
"""


def insert(folder, header, struct, field):
    """A field before `field` in the struct of the copied header."""
    path = os.path.join(folder, "opipe", header + ".h")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    start = text.index("typedef struct %s {" % struct)
    end = text.index("\n} %s;" % struct, start)
    body = text[start:end]
    plain = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), body, flags=re.S)
    slot = re.search(r"\(\*%s\)\(" % field, plain)  # parameters of later slots may have its name
    last = slot.start() if slot else [m for m in re.finditer(r"\b%s\b" % field, plain)][-1].start()
    at = max(plain.rfind(";", 0, last), plain.rfind("{", 0, last)) + 1
    body = body[:at] + " const void *inserted;" + body[at:]
    with open(path, "w", encoding="utf-8") as file:
        file.write(text[:start] + body + text[end:])


def copy_headers(work, name):
    folder = os.path.join(work, name)
    shutil.copytree(os.path.join(freeze.INCLUDE, "opipe"), os.path.join(folder, "opipe"))
    return folder


def build(work, name, source, include, shared, defines=("-DOPIPE_UNFROZEN",)):
    path = os.path.join(work, name + ".c")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    out = os.path.join(work, name)
    how = ["-shared", "-fPIC", "-fvisibility=hidden"] if shared else ["-ldl"]
    sanitize = SANITIZE  # the library takes plugins of its own build only
    command = [CC, "-std=c11", "-w", *defines, "-I" + include, path, *sanitize, "-o", out, *how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return out if done.returncode == 0 else "does not compile: " + done.stderr[:400]


def cases(cover):
    """[(header, struct, last field)], those of `cover` alone when it is given."""
    found = []
    for header, rows in freeze.wanted().items():
        for struct, _, fields in rows:
            if cover is None or struct in cover:
                found.append((header, struct, fields[-1]))
    return found


def kinds_of(header):
    """Who sees its structs; what is part of host.h, hosts alone."""
    if header in KINDS:
        return [header]
    return {"abi": ["backend", "host"], "types": ["schedule", "host"]}.get(header, ["host"])


def try_all(cover):
    """Builds a plugin and a host from each changed copy. Returns what does not hold."""
    wrong = []
    with tempfile.TemporaryDirectory() as work:
        plugins = os.path.join(work, "plugins")
        os.mkdir(plugins)
        wanted = {}  # file of a plugin -> struct, None: to be taken
        for header, struct, field in cases(cover) + [("abi", None, None)]:
            folder = copy_headers(work, struct or "unchanged")
            if struct is not None:
                insert(folder, header, struct, field)
            kinds = kinds_of(header) if struct is not None else [*KINDS, "host"]
            for kind in kinds:
                name = "%s-%s" % (kind, struct or "unchanged")
                if kind == "host":
                    wrong += try_host(work, name, folder, struct)
                    continue
                source = PLUGIN % {"kind": kind, "upper": KINDS[kind], "id": name}
                out = build(work, name, source, folder, True)
                if not os.path.exists(out):
                    wrong.append("%s: %s" % (name, out))
                    continue
                target = os.path.join(plugins, "opipe-%s.so" % name)
                shutil.move(out, target)
                wanted[target] = struct
        wrong += try_plugins(plugins, wanted)
    return wrong


def try_host(work, name, folder, struct):
    out = build(work, name, HOST, folder, False)
    if not os.path.exists(out):
        return ["%s: %s" % (name, out)]
    done = subprocess.run([out, LIBRARY], capture_output=True, text=True, check=False)
    refused = done.stdout.startswith("-4 ") and "struct %s " % struct in done.stdout
    if (struct is None and done.stdout.startswith("0 ")) or (struct is not None and refused):
        return []
    return ["%s: status %d, said '%s'" % (name, done.returncode, done.stdout + done.stderr[:300])]


def try_plugins(folder, wanted):
    environment = dict(os.environ, OPIPE_PLUGIN_PATH=folder)
    done = subprocess.run(
        [COMMAND, "plugins", "--why"], capture_output=True, text=True, env=environment, check=False
    )
    wrong = [] if done.returncode == 0 else ["plugins --why: %s" % done.stderr]
    for path, struct in wanted.items():
        at = done.stdout.find(path)
        reason = done.stdout[at:].split("\n")[1] if at >= 0 else "nothing"
        # An unchanged one is taken as far as its open(), which fails.
        part = "lays struct %s out" % struct if struct is not None else "its open() failed"
        if part not in reason:
            wrong.append("%s: no '%s' in: %s" % (path, part, reason.strip()))
    return wrong


def target_minor():
    """A minor to come, with a field, a slot and a parameter more, seen from the minor before."""
    wrong = []
    before = freeze.today()[1]
    scratch = "#if OPIPE_TARGET_MINOR >= %d\n  uint64_t scratch;\n#endif\n}" % (before + 1)
    with tempfile.TemporaryDirectory() as work:
        folder = copy_headers(work, "newer")
        for header, struct in [("backend", "opipe_device_info"), ("backend", "opipe_backend"),
                               ("planning", "opipe_plan_params"), ("host", "opipe_api")]:
            path = os.path.join(folder, "opipe", header + ".h")
            with open(path, encoding="utf-8") as file:
                text = file.read()
            text = text.replace("} %s;" % struct, "%s %s;" % (scratch, struct))
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        path = os.path.join(folder, "opipe", "abi.h")
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"#define OPIPE_ABI_MINOR \d+", "#define OPIPE_ABI_MINOR %d" % (before + 1), file.read())
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        plugins = os.path.join(work, "plugins")
        os.mkdir(plugins)
        sees = "struct sees { opipe_plan_params p; };\nsize_t sees(void) { return offsetof(struct sees, p.scratch); }\n"
        for name, defines, compiles, taken in [
            ("old", ["-DOPIPE_TARGET_MINOR=%d" % before], False, True),
            ("new", [], True, False),
        ]:
            plugin = PLUGIN % {"kind": "backend", "upper": "BACKEND", "id": name}
            out = build(work, name, plugin, folder, True, defines)
            if not os.path.exists(out):
                wrong.append("a plugin (%s) of the next minor: %s" % (name, out))
                continue
            shutil.move(out, os.path.join(plugins, "opipe-backend-%s.so" % name))
            sizes = "".join(
                "int main(void) { return 0; }\n_Static_assert(OPIPE_TARGET_MINOR != %d || ("
                "sizeof(opipe_plan_params) == %d && sizeof(opipe_backend) == %d), \"sizes of today\");"
                % (before, size_of("planning", "opipe_plan_params"), size_of("backend", "opipe_backend"))
            )
            out = build(work, name + "-sizes", "#include <opipe/host.h>\n#include <opipe/backend.h>\n" + sizes,
                        folder, False, defines)
            if not os.path.exists(out):
                wrong.append("sizes seen by %s: %s" % (name, out))
            out = build(work, name + "-sees", "#include <opipe/host.h>\n" + sees, folder, True, defines)
            if os.path.exists(out) != compiles:
                wrong.append("the field of the next minor, used by %s: %s" % (name, out))
            out = build(work, name + "-host", HOST, folder, False, defines)
            done = subprocess.run([out, LIBRARY], capture_output=True, text=True, check=False)
            if done.stdout.startswith("0 ") != taken or (not taken and "needs ABI 1.%d" % (before + 1) not in done.stdout):
                wrong.append("a host (%s) of the next minor: %s" % (name, done.stdout))
        # Content with the old host: a longer table is no reason to refuse.
        unchanged = {os.path.join(plugins, "opipe-backend-%s.so" % n): None for n in ("old", "new")}
        wrong += try_plugins(plugins, unchanged)
    return wrong


def size_of(header, struct):
    program = "#include <opipe/%s.h>\n#include <stdio.h>\nint main(void) { printf(\"%%zu\", sizeof(%s)); return 0; }" % (
        header, struct)
    with tempfile.TemporaryDirectory() as work:
        out = build(work, "size", program, freeze.INCLUDE, False)
        return int(subprocess.run([out], capture_output=True, text=True, check=True).stdout)


def report(wrong, held):
    for line in wrong:
        print("FAILED: " + line)
    print("%d do not hold, %s" % (len(wrong), held))
    return 1 if wrong else 0
