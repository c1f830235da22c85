#include "hvdc/cpu.h"

#include <string.h>

static const char *const NAMES[HVDC_CPU_LEVELS] = {"generic", "x86-64-v3", "x86-64-v4"};

bool hvdc_cpu_usable(enum hvdc_cpu cpu) {
#if defined(HVDC_CPU_HAS_X86_64_LEVELS)
    /* Compilers differ in which features they can ask for; a processor with these has the rest of its level too. */
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
    return cpu == HVDC_CPU_GENERIC || (cpu == HVDC_CPU_X86_64_V3 && v3) || (cpu == HVDC_CPU_X86_64_V4 && v4);
#else
    return cpu == HVDC_CPU_GENERIC;
#endif
}

bool hvdc_cpu_select(const char *name, enum hvdc_cpu *cpu, hvdc_failure *failure) {
    for (unsigned level = HVDC_CPU_LEVELS; level-- > 0u;) {
        if (name != NULL && strcmp(name, NAMES[level]) != 0) {
            continue;
        }
        if (hvdc_cpu_usable((enum hvdc_cpu)level)) {
            *cpu = (enum hvdc_cpu)level;
            return true;
        }
        if (name != NULL) {
            return hvdc_fail(failure, HVDC_FAILURE_USAGE, "this processor, or this build, has no kernels for %s", name);
        }
    }
    return hvdc_fail(failure, HVDC_FAILURE_USAGE, "there are no kernels for \"%s\": levels are %s, %s, %s",
                     name == NULL ? "" : name, NAMES[0], NAMES[1], NAMES[2]);
}
