#include "probe_options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAFE_MIB 511u /* 512 MiB are refused by some allocators, and 1024 took a phone down */
#define MOST_MIB 2047u

const char PROBE_HELP[] =
    "usage: hvdc_probe [options]\n"
    "\n"
    "Tries what this platform allows and prints each fact as a line of JSON: forms of the GPU's dot product by their\n"
    "values, kinds of shared memory, by which way the GPU imports it, the largest region that both engines map, how\n"
    "many of them and how much in all, and what the DSP is.\n"
    "\n"
    "  --only gpu            every OpenCL device and its dot products, and nothing else\n"
    "  --largest-mib N       regions up to this size (511)\n"
    "  --dangerous           allow --largest-mib above 511, up to 2047: this took a phone down\n"
    "  --total-mib N         map so much in all at most (3840); three quarters of what is available at most\n"
    "  --mappings N          map so many small regions at most (256)\n"
    "  --avoid WHAT:BYTES    do not try this, with so many bytes or more: it took the device down before. WHAT is "
    "what\n"
    "                        a line `trying` has called it; may be repeated\n"
    "  --known-mib N         regions up to this size work: go on above\n"
    "  --skip count|total    do not map many regions, or much in all; may be repeated\n"
    "  --fastrpc LIBRARY     FastRPC's library, a name or a path (libcdsprpc.so)\n"
    "  --skels DIR           where hexagon-vNN-libhvdc_skel.so lie\n"
    "  --opencl LIBRARY      OpenCL's library\n"
    "  --device TEXT         OpenCL device, by index or a part of its name\n"
    "\n"
    "Exit statuses: 0 all was tried; 1 failure; 2 usage.\n";

static bool count_of(const char *value, uint32_t most, uint32_t *count) {
    char *stop;
    errno = 0;
    const unsigned long long parsed = strtoull(value, &stop, 10);
    if (value[0] < '0' || value[0] > '9' || *stop != 0 || errno != 0 || parsed == 0 || parsed > most) return false;
    *count = (uint32_t)parsed;
    return true;
}

static bool avoid(probe_options *o, const char *value) {
    const char *colon = strrchr(value, ':');
    char *stop;
    if (colon == NULL || o->avoided_count == PROBE_AVOIDED_MAX) return false;
    probe_avoided *avoided = &o->avoided[o->avoided_count];
    const size_t length = (size_t)(colon - value);
    if (length == 0 || length >= sizeof avoided->what || colon[1] < '0' || colon[1] > '9') return false;
    errno = 0;
    avoided->bytes = strtoull(colon + 1, &stop, 10);
    if (*stop != 0 || errno != 0) return false;
    memcpy(avoided->what, value, length);
    avoided->what[length] = 0;
    o->avoided_count++;
    return true;
}

bool probe_is_avoided(const probe_options *o, const char *what, uint64_t bytes) {
    for (uint32_t i = 0; i < o->avoided_count; i++)
        if (strcmp(o->avoided[i].what, what) == 0 && bytes >= o->avoided[i].bytes) return true;
    return false;
}

static bool skip(probe_options *o, const char *value) {
    bool *skipped = strcmp(value, "count") == 0 ? &o->skip_count : strcmp(value, "total") == 0 ? &o->skip_total : NULL;
    if (skipped != NULL) *skipped = true;
    return skipped != NULL;
}

static bool take(probe_options *o, const char *name, const char *value) {
    if (strcmp(name, "--only") == 0) return o->only_gpu = strcmp(value, "gpu") == 0;
    if (strcmp(name, "--largest-mib") == 0) return count_of(value, MOST_MIB, &o->largest_mib);
    if (strcmp(name, "--total-mib") == 0) return count_of(value, 1u << 20, &o->total_mib);
    if (strcmp(name, "--mappings") == 0) return count_of(value, 1u << 16, &o->mappings);
    if (strcmp(name, "--known-mib") == 0) return count_of(value, MOST_MIB, &o->known_mib);
    if (strcmp(name, "--avoid") == 0) return avoid(o, value);
    if (strcmp(name, "--skip") == 0) return skip(o, value);
    const char **at = strcmp(name, "--fastrpc") == 0  ? &o->fastrpc
                      : strcmp(name, "--skels") == 0  ? &o->skels
                      : strcmp(name, "--opencl") == 0 ? &o->opencl
                      : strcmp(name, "--device") == 0 ? &o->device
                                                      : NULL;
    if (at != NULL) *at = value;
    return at != NULL && *value != 0;
}

bool probe_options_parse(int argc, char *const *argv, probe_options *o) {
    *o = (probe_options){.largest_mib = SAFE_MIB, .total_mib = 3840, .mappings = 256};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            o->help = true;
        } else if (strcmp(argv[i], "--dangerous") == 0) {
            o->dangerous = true;
        } else if (i + 1 == argc || !take(o, argv[i], argv[i + 1])) {
            (void)fprintf(stderr, "hvdc_probe: %s is no option, or not with this value; see hvdc_probe --help\n",
                          argv[i]);
            return false;
        } else {
            i++;
        }
    }
    if (o->largest_mib <= SAFE_MIB || o->dangerous) return true;
    (void)fprintf(stderr, "hvdc_probe: regions above %u MiB took a phone down: give --dangerous too\n", SAFE_MIB);
    return false;
}
