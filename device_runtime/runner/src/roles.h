/* The parts that this program can take; each returns its exit status. */
#ifndef HVDC_RUNNER_ROLES_H
#define HVDC_RUNNER_ROLES_H

#include <stdio.h>

#include "options.h"

enum hvdc_exit {
    HVDC_EXIT_OK = 0,
    HVDC_EXIT_FAILURE = 1,
    HVDC_EXIT_USAGE = 2,
    HVDC_EXIT_ARTIFACT = 4,
    HVDC_EXIT_DEVICE = 5,
    HVDC_EXIT_NPU_HANGS = 6,
    HVDC_EXIT_STOPPED = 130
};

enum hvdc_exit hvdc_exit_of(const hvdc_failure *failure);

enum hvdc_exit hvdc_be_owner(const hvdc_options *options, FILE *out); /* `out`: for the report */
enum hvdc_exit hvdc_be_worker(const hvdc_options *options);
enum hvdc_exit hvdc_be_timer(const hvdc_options *options);

#endif
