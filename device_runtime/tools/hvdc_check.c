/* hvdc_check: answers questions on standard input, one line each; a test asks thousands of one process.
 *
 *   index N        and N bytes: is this an index.bin?
 *   open PATH      does this artifact open?
 *   deep PATH      is it sound to the last byte?
 *
 * The answer is "NUMBER NAME FILE: MESSAGE". Exit status: 0 at the end of the input, 2 for another question. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "index.h"

static void answer(enum hvdc_code code, const hvdc_error *error) {
    char line[HVDC_ERROR_FILE_BYTES + HVDC_ERROR_MESSAGE_BYTES + 4];
    int n = snprintf(line, sizeof line, "%s: %s", error->file, error->message);
    for (int i = 0; i < n && line[i] != 0; i++)
        if ((unsigned char)line[i] < 0x20 || (unsigned char)line[i] >= 0x7f) line[i] = '?';
    (void)printf("%d %s %s\n", (int)code, hvdc_code_name(code), code == HVDC_E_OK ? "" : line);
    (void)fflush(stdout);
}

/* The bytes are in an allocation of exactly their size, so that AddressSanitizer sees every step beyond them. */
static bool check_index(const char *argument) {
    char *end;
    hvdc_index index;
    hvdc_error error = {.code = HVDC_E_OK};
    errno = 0;
    unsigned long long bytes = strtoull(argument, &end, 10);
    if (errno != 0 || *end != '\n' || bytes > HVDC_MAX_INDEX_BYTES + 4096u) return false;
    uint8_t *data = malloc(bytes > 0 ? (size_t)bytes : 1u);
    bool good = data != NULL && fread(data, 1, (size_t)bytes, stdin) == bytes;
    if (good) {
        enum hvdc_code code = hvdc_index_parse(data, bytes, &index, &error);
        answer(code, &error);
        if (code == HVDC_E_OK) hvdc_index_free(&index);
    }
    free(data);
    return good;
}

static bool check_artifact(char *path, bool deep) {
    hvdc_artifact *artifact;
    hvdc_error error;
    path[strcspn(path, "\n")] = 0;
    enum hvdc_code code = hvdc_artifact_open(path, &artifact, &error);
    if (code == HVDC_E_OK && deep) code = hvdc_artifact_validate_deep(artifact, &error);
    answer(code, &error);
    hvdc_artifact_close(artifact);
    return true;
}

int main(void) {
    char line[4096];
    while (fgets(line, sizeof line, stdin) != NULL) {
        bool good = false;
        if (strncmp(line, "index ", 6) == 0)
            good = check_index(line + 6);
        else if (strncmp(line, "open ", 5) == 0)
            good = check_artifact(line + 5, false);
        else if (strncmp(line, "deep ", 5) == 0)
            good = check_artifact(line + 5, true);
        if (!good) {
            (void)fputs("hvdc_check: what is this question?\n", stderr);
            return 2;
        }
    }
    return 0;
}
