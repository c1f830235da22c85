/* hvdc_check: answers questions about artifacts; a test asks thousands of one process. HELP has them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdc/answer_file.h"
#include "hvdc/stream_file.h"
#include "index.h"
#include "sha256.h"

static void answer(enum hvdc_code code, const hvdc_error *error) {
    char line[HVDC_ERROR_FILE_BYTES + HVDC_ERROR_MESSAGE_BYTES + 4];
    int n = snprintf(line, sizeof line, "%s: %s", error->file, error->message);
    for (int i = 0; i < n && line[i] != 0; i++)
        if ((unsigned char)line[i] < 0x20 || (unsigned char)line[i] >= 0x7f) line[i] = '?';
    (void)printf("%d %s %s\n", (int)code, hvdc_code_name(code), code == HVDC_E_OK ? "" : line);
    (void)fflush(stdout);
}

static void answer_index(const uint8_t *data, uint64_t bytes) {
    hvdc_index index;
    hvdc_error error = {.code = HVDC_E_OK};
    enum hvdc_code code = hvdc_index_parse(data, bytes, &index, &error);
    answer(code, &error);
    if (code == HVDC_E_OK) hvdc_index_free(&index);
}

static void answer_sha256(const uint8_t *data, uint64_t bytes) {
    uint8_t digest[HVDC_SHA256_BYTES];
    hvdc_sha256 sha;
    hvdc_sha256_init(&sha);
    hvdc_sha256_update(&sha, data, (size_t)bytes / 3u); /* in two pieces, so that blocks straddle them */
    hvdc_sha256_update(&sha, data + bytes / 3u, (size_t)(bytes - bytes / 3u));
    hvdc_sha256_final(&sha, digest);
    (void)fputs("0 OK ", stdout);
    for (size_t i = 0; i < sizeof digest; i++) (void)printf("%02x", (unsigned)digest[i]);
    (void)putchar('\n');
    (void)fflush(stdout);
}

/* Reads the bytes into an allocation of exactly their size, so that AddressSanitizer sees every step beyond them. */
static bool with_bytes(const char *argument, void (*ask)(const uint8_t *data, uint64_t bytes)) {
    char *end;
    errno = 0;
    unsigned long long bytes = strtoull(argument, &end, 10);
    if (errno != 0 || *end != '\n' || bytes > HVDC_MAX_INDEX_BYTES + 4096u) return false;
    uint8_t *data = malloc(bytes > 0 ? (size_t)bytes : 1u);
    bool good = data != NULL && fread(data, 1, (size_t)bytes, stdin) == bytes;
    if (good) ask(data, bytes);
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

/* A stream's faults have sentences and no codes: the answer is "0 OK", or "1 STREAM" and the sentence. */
static bool check_stream(char *path) {
    hvdc_stream_file *file;
    hvdc_failure failure = {0};
    path[strcspn(path, "\n")] = 0;
    bool good = hvdc_stream_file_open(path, &file, &failure);
    (void)printf("%d %s %s\n", good ? 0 : 1, good ? "OK" : "STREAM", failure.message);
    (void)fflush(stdout);
    hvdc_stream_file_close(file);
    return true;
}

/* The answer of an artifact: "0 OK", "1 ANSWER" and the sentence, or the code of the artifact itself. */
static bool check_answer(char *path) {
    hvdc_artifact *artifact;
    hvdc_error error;
    hvdc_answer_file *file = NULL;
    hvdc_failure failure = {0};
    path[strcspn(path, "\n")] = 0;
    enum hvdc_code code = hvdc_artifact_open(path, &artifact, &error);
    if (code != HVDC_E_OK) {
        answer(code, &error);
        return true;
    }
    bool good = hvdc_answer_file_open(path, artifact, &file, &failure);
    (void)printf("%d %s %s\n", good ? 0 : 1, good ? "OK" : "ANSWER", failure.message);
    (void)fflush(stdout);
    hvdc_answer_file_close(file);
    hvdc_artifact_close(artifact);
    return true;
}

static const char HELP[] =
    "usage: hvdc_check\n"
    "\n"
    "Answers questions on standard input, a line each:\n"
    "\n"
    "  index N        and N bytes: is this an index.bin?\n"
    "  sha256 N       and N bytes: their SHA-256, as \"0 OK DIGEST\"\n"
    "  open PATH      does this artifact open?\n"
    "  deep PATH      is it sound to the last byte?\n"
    "  stream PATH    is this the directory of a stream?\n"
    "  answer PATH    has this artifact a stored answer of its own?\n"
    "\n"
    "The answer is \"NUMBER NAME FILE: MESSAGE\", 0 and OK where all is well.\n"
    "Exit statuses: 0 at the end of the input; 2 usage, or another question.\n";

int main(int argc, char **argv) {
    char line[4096];
    if (argc == 2 && strcmp(argv[1], "--help") == 0) return fputs(HELP, stdout) < 0 ? 1 : 0;
    if (argc != 1) {
        (void)fputs("hvdc_check takes no argument but --help: questions come on standard input\n", stderr);
        return 2;
    }
    while (fgets(line, sizeof line, stdin) != NULL) {
        bool good = false;
        if (strncmp(line, "index ", 6) == 0)
            good = with_bytes(line + 6, answer_index);
        else if (strncmp(line, "sha256 ", 7) == 0)
            good = with_bytes(line + 7, answer_sha256);
        else if (strncmp(line, "open ", 5) == 0)
            good = check_artifact(line + 5, false);
        else if (strncmp(line, "deep ", 5) == 0)
            good = check_artifact(line + 5, true);
        else if (strncmp(line, "stream ", 7) == 0)
            good = check_stream(line + 7);
        else if (strncmp(line, "answer ", 7) == 0)
            good = check_answer(line + 7);
        if (!good) {
            (void)fputs("hvdc_check: what is this question?\n", stderr);
            return 2;
        }
    }
    return 0;
}
