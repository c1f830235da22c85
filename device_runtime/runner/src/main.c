/* hvdc_runner: makes the videos of a stream on two engines. The processes of both are this program. */
#include <stdio.h>
#include <string.h>

#include "report.h"
#include "roles.h"

enum hvdc_exit hvdc_exit_of(const hvdc_failure *failure) {
    switch (failure->kind) {
        case HVDC_FAILURE_USAGE: return HVDC_EXIT_USAGE;
        case HVDC_FAILURE_ARTIFACT: return HVDC_EXIT_ARTIFACT;
        case HVDC_FAILURE_DEVICE: return HVDC_EXIT_DEVICE;
        default: return HVDC_EXIT_FAILURE;
    }
}

/* Also of a command line that is not understood to its end. */
static bool wants_json(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--json") == 0) return true;
    return false;
}

static bool print_help(void) {
    for (const char *const *part = hvdc_options_help; *part != NULL; part++)
        if (fputs(*part, stdout) < 0) return false;
    return fflush(stdout) == 0;
}

int main(int argc, char **argv) {
    hvdc_options options;
    hvdc_failure failure = {.kind = HVDC_FAILURE_NONE};
    hvdc_say_in_lines();
    if (!hvdc_options_parse(argc, argv, &options, &failure)) {
        options.json = wants_json(argc, argv);
        hvdc_print_failure(&options, &failure);
        return HVDC_EXIT_USAGE;
    }
    if (options.help) return print_help() ? HVDC_EXIT_OK : HVDC_EXIT_FAILURE;
    switch (options.role) {
        case HVDC_ROLE_WORKER: return (int)hvdc_be_worker(&options);
        case HVDC_ROLE_TIMER: return (int)hvdc_be_timer(&options);
        default: return (int)hvdc_be_owner(&options);
    }
}
