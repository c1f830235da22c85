/* What hvdc_probe is asked. */
#ifndef HVDC_PROBE_OPTIONS_H
#define HVDC_PROBE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#define PROBE_AVOIDED_MAX 32u

/* What took the device down before: the name of a step, and with how many bytes or more. */
typedef struct probe_avoided {
    char what[48];
    uint64_t bytes;
} probe_avoided;

typedef struct probe_options {
    bool only_gpu, dangerous, help;
    bool skip_count, skip_total;
    uint32_t largest_mib, total_mib, mappings;
    uint32_t known_mib; /* regions of which size work, as was found out before; 0: none */
    const char *fastrpc, *skels, *opencl, *device;
    probe_avoided avoided[PROBE_AVOIDED_MAX];
    uint32_t avoided_count;
} probe_options;

extern const char PROBE_HELP[];

/* False, with a sentence on standard error, for words that mean nothing. */
bool probe_options_parse(int argc, char *const *argv, probe_options *options);

bool probe_is_avoided(const probe_options *options, const char *what, uint64_t bytes);

#endif
