#define _GNU_SOURCE

#include "processors.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One number of a list, moving on; false if there is none, or none that a processor can have. */
static bool number(const char **text, unsigned long *value) {
    char *end;
    if (**text < '0' || **text > '9') return false;
    *value = strtoul(*text, &end, 10);
    *text = end;
    return *value < CPU_SETSIZE;
}

static bool parse(const char *text, cpu_set_t *set) {
    CPU_ZERO(set);
    for (;;) {
        unsigned long first, last;
        if (!number(&text, &first)) return false;
        last = first;
        if (*text == '-') {
            text++;
            if (!number(&text, &last) || last < first) return false;
        }
        for (unsigned long cpu = first; cpu <= last; cpu++) CPU_SET(cpu, set);
        if (*text == 0) return true;
        if (*text++ != ',') return false;
    }
}

bool hvdc_processors_use(const char *list, hvdc_failure *failure) {
    cpu_set_t wanted, mine;
    if (list == NULL) return true;
    if (!parse(list, &wanted))
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%s is no list of processors: write numbers below %d, as 0,2-5",
                         list, CPU_SETSIZE);
    if (sched_setaffinity(0, sizeof wanted, &wanted) != 0)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "the processors %s cannot be used: %s", list, strerror(errno));
    /* The kernel takes those of a list that are there, in silence. */
    if (sched_getaffinity(0, sizeof mine, &mine) != 0 || !CPU_EQUAL(&wanted, &mine))
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "of the processors %s only %d can be used here: name those that this machine gives", list,
                         CPU_COUNT(&mine));
    return true;
}

bool hvdc_processors_check(const char *list, hvdc_failure *failure) {
    cpu_set_t before;
    if (list == NULL) return true;
    if (sched_getaffinity(0, sizeof before, &before) != 0)
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "this process's processors are not known: %s", strerror(errno));
    const bool usable = hvdc_processors_use(list, failure);
    if (sched_setaffinity(0, sizeof before, &before) != 0 && usable)
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "this process's processors cannot be set: %s", strerror(errno));
    return usable;
}

uint32_t hvdc_processors_count(void) {
    cpu_set_t mine;
    int count = sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : 1;
    return count < 1 ? 1u : (uint32_t)count;
}

bool hvdc_processors_list(char list[HVDC_CPU_LIST_BYTES], hvdc_failure *failure) {
    cpu_set_t mine;
    size_t at = 0;
    if (sched_getaffinity(0, sizeof mine, &mine) != 0)
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "this process's processors are not known: %s", strerror(errno));
    list[0] = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        int last = cpu;
        if (!CPU_ISSET((size_t)cpu, &mine)) continue;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET((size_t)last + 1u, &mine)) last++;
        int wrote = snprintf(list + at, HVDC_CPU_LIST_BYTES - at, "%s%d-%d", at == 0 ? "" : ",", cpu, last);
        if (wrote < 0 || at + (size_t)wrote >= HVDC_CPU_LIST_BYTES)
            return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                             "the list of this process's processors is too long: give it "
                             "as --gpu-cpus");
        at += (size_t)wrote;
        cpu = last;
    }
    return true;
}
