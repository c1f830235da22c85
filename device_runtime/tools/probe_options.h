/* What hvdc_probe is asked. */
#ifndef HVDC_PROBE_OPTIONS_H
#define HVDC_PROBE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct probe_options {
    bool only_gpu, dangerous, help;
    uint32_t largest_mib, total_mib, mappings;
    const char *fastrpc, *skels, *opencl, *device;
} probe_options;

extern const char PROBE_HELP[];

/* False, with a sentence on standard error, for words that mean nothing. */
bool probe_options_parse(int argc, char *const *argv, probe_options *options);

#endif
