/* hvdc_selftest: asks a phone's DSP whether its units do what the executor relies on; docs/HEXAGON.md, "Self-test".
 *
 *   hvdc_selftest [--json] [--library FASTRPC] [--skels FOLDER] [--vtcm-kib KIB]
 *
 * A line for each check, and what it means where one failed. Exit status: 0 if none failed, 1 if one did or the DSP cannot
 * be asked, which a sentence says, 2 for wrong words. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdc/dsp.h"

struct line {
    char *name, *state, *why, *meaning;
};

/* Takes the next line of a report apart; false at its end. */
static bool next_line(char **report, struct line *line) {
    char **fields[] = {&line->name, &line->state, &line->why, &line->meaning};
    char *end = strchr(*report, '\n'), *at = *report;
    if (end == NULL) return false;
    *end = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char *tab = strchr(at, '\t');
        *fields[i] = at;
        if (tab != NULL) *tab = 0;
        at = tab == NULL ? end : tab + 1;
    }
    *report = end + 1;
    return true;
}

/* A report's words have no quotes or control characters; another DSP's could. */
static void print_text(const char *text) {
    (void)putchar('"');
    for (; *text != 0; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20u || c > 0x7eu || c == '"' || c == '\\') {
            (void)printf("\\u%04x", c);
        } else {
            (void)putchar(c);
        }
    }
    (void)putchar('"');
}

static void print_json(const hvdc_dsp_description *dsp, char *report, uint32_t failed) {
    struct line line;
    (void)printf("{\"arch\": %" PRIu32 ", \"contexts\": %" PRIu32 ", \"vtcm_bytes\": %" PRIu32 ", \"failed\": %" PRIu32
                 ", \"checks\": [",
                 dsp->arch, dsp->contexts, dsp->vtcm_bytes, failed);
    for (bool first = true; next_line(&report, &line); first = false) {
        const char *const fields[][2] = {
            {"name", line.name}, {"state", line.state}, {"why", line.why}, {"meaning", line.meaning}};
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
            (void)printf("%s\"%s\": ", i > 0u ? ", " : first ? "{" : ", {", fields[i][0]);
            print_text(fields[i][1]);
        }
        (void)putchar('}');
    }
    (void)puts("]}");
}

static void print_table(const hvdc_dsp_description *dsp, char *report, uint32_t failed) {
    struct line line;
    (void)printf("Hexagon v%" PRIu32 ", %" PRIu32 " vector contexts, %" PRIu32 " KiB of VTCM\n", dsp->arch,
                 dsp->contexts, dsp->vtcm_bytes >> 10);
    while (next_line(&report, &line)) {
        (void)printf("%-48s %s\n", line.name, line.state);
        if (line.why[0] != 0) (void)printf("    %s\n", line.why);
        if (line.meaning[0] != 0) (void)printf("    %s\n", line.meaning);
    }
    (void)printf(failed == 0u ? "none failed\n" : "%" PRIu32 " failed\n", failed);
}

int main(int argc, char **argv) {
    static char report[HVDC_DSP_REPORT_BYTES];
    hvdc_dsp_options options = {.library = NULL};
    hvdc_dsp_description description;
    hvdc_failure failure;
    uint32_t failed = 0;
    bool json = false;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
            continue;
        }
        if (value != NULL && strcmp(argv[i], "--library") == 0) {
            options.library = value;
        } else if (value != NULL && strcmp(argv[i], "--skels") == 0) {
            options.skel_folder = value;
        } else if (value != NULL && strcmp(argv[i], "--vtcm-kib") == 0 &&
                   strtoul(value, NULL, 10) <= UINT32_MAX >> 10) {
            options.vtcm_bytes = (uint32_t)strtoul(value, NULL, 10) << 10;
        } else {
            (void)fprintf(stderr,
                          "usage: hvdc_selftest [--json] [--library FASTRPC] [--skels FOLDER] [--vtcm-kib KIB]\n");
            return 2;
        }
        i++;
    }
    if (!hvdc_dsp_check(&options, report, &failed, &description, &failure)) {
        (void)fprintf(stderr, "hvdc_selftest: %s\n", failure.message);
        return 1;
    }
    if (json) {
        print_json(&description, report, failed);
    } else {
        print_table(&description, report, failed);
    }
    return fflush(stdout) != 0 || failed != 0u;
}
