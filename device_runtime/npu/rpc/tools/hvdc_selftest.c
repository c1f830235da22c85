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

static void print_json(const hvdc_dsp_description *dsp, hvdc_dsp_findings *findings) {
    char *report = findings->report;
    hvdc_dsp_line line;
    (void)printf("{\"arch\": %" PRIu32 ", \"contexts\": %" PRIu32 ", \"vtcm_bytes\": %" PRIu32 ", \"failed\": %" PRIu32
                 ", \"worthless\": %" PRIu32 ", \"checks\": [",
                 dsp->arch, dsp->contexts, dsp->vtcm_bytes, findings->failed, findings->worthless);
    for (bool first = true; hvdc_dsp_next_line(&report, &line); first = false) {
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

static void print_table(const hvdc_dsp_description *dsp, hvdc_dsp_findings *findings) {
    char *report = findings->report;
    hvdc_dsp_line line;
    (void)printf("Hexagon v%" PRIu32 ", %" PRIu32 " vector contexts, %" PRIu32 " KiB of VTCM\n", dsp->arch,
                 dsp->contexts, dsp->vtcm_bytes >> 10);
    while (hvdc_dsp_next_line(&report, &line)) {
        (void)printf("%-48s %s\n", line.name, line.state);
        if (line.why[0] != 0) (void)printf("    %s\n", line.why);
        if (line.meaning[0] != 0) (void)printf("    %s\n", line.meaning);
    }
    if (findings->failed == 0u) {
        (void)puts("none failed");
    } else {
        (void)printf("%" PRIu32 " failed\n", findings->failed);
    }
}

/* The folder of this program, where an artifact has the DSP's libraries beside it. NULL if it was found on a PATH. */
static const char *own_folder(char *program) {
    char *slash = strrchr(program, '/');
    if (slash == NULL) return NULL;
    *(slash == program ? slash + 1 : slash) = 0;
    return program;
}

static bool read_kib(const char *text, uint32_t *bytes) {
    char *end;
    const unsigned long kib = strtoul(text, &end, 10);
    *bytes = (uint32_t)kib << 10;
    return *text >= '0' && *text <= '9' && *end == 0 && kib <= UINT32_MAX >> 10;
}

static const char usage[] = "usage: hvdc_selftest [--json] [--library FASTRPC] [--skels FOLDER] [--vtcm-kib KIB]\n";
static const char help[] =
    "\nAsks a phone's DSP whether its units do what the NPU executor relies on: a line for each check, and what\n"
    "it means where one failed.\n\n"
    "  --library FASTRPC   FastRPC's library, a name or a path (libcdsprpc.so)\n"
    "  --skels FOLDER      where hexagon-vNN-libhvdc_skel.so is (where this program is), unless DSP_LIBRARY_PATH\n"
    "                      is set\n"
    "  --vtcm-kib KIB      so much of the DSP's VTCM, or a refusal (what is free)\n"
    "  --json              print the result as JSON\n\n"
    "Exit statuses: 0 none failed; 1 one did, or the DSP cannot be asked, which a sentence says; 2 wrong words.\n";

int main(int argc, char **argv) {
    static hvdc_dsp_findings findings;
    hvdc_dsp_options options = {.library = NULL};
    hvdc_dsp_description description;
    hvdc_failure failure;
    bool json = false;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return fputs(usage, stdout) < 0 || fputs(help, stdout) < 0 || fflush(stdout) != 0;
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
            continue;
        }
        if (value != NULL && strcmp(argv[i], "--library") == 0) {
            options.library = value;
        } else if (value != NULL && strcmp(argv[i], "--skels") == 0) {
            options.skel_folder = value;
        } else if (value == NULL || strcmp(argv[i], "--vtcm-kib") != 0 || !read_kib(value, &options.vtcm_bytes)) {
            (void)fputs(usage, stderr);
            return 2;
        }
        i++;
    }
    if (options.skel_folder == NULL && argc > 0) options.skel_folder = own_folder(argv[0]);
    if (!hvdc_dsp_check(&options, &findings, &description, &failure)) {
        (void)fprintf(stderr, "hvdc_selftest: %s\n", failure.message);
        return 1;
    }
    if (json) {
        print_json(&description, &findings);
    } else {
        print_table(&description, &findings);
    }
    return fflush(stdout) != 0 || findings.failed != 0u;
}
