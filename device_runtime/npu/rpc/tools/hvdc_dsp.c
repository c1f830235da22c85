/* The DSP's end as a process, for an emulator and for tests of the skel:
 *
 *   hvdc_dsp CLIENT_PID    takes marshalled calls from its standard input, answers on its standard output (pipe.h), and
 *                          calls the very skel that libhvdc_skel.so is. Descriptors that calls name are those of the
 *                          client. Ends with its input
 *   hvdc_dsp --unit CLIENT_PID   the same, and engines compute with the model of the DSP's matrix unit
 *   hvdc_dsp --interface   what can be called, as text: interface_text.h
 *
 * Whatever a call says goes to the skel as it is: every buffer in memory of exactly its size, one of no bytes as NULL. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dsp.h"
#include "interface_text.h"
#include "pipe.h"
#include "skel.h"

static int stop(const char *why) {
    (void)fprintf(stderr, "hvdc_dsp: %s\n", why);
    return 1;
}

/* Allocates `count` buffers, and reads the first `given`. */
static const char *receive(hvdc_remote_arg *args, uint32_t count, uint32_t given) {
    for (uint32_t i = 0; i < count; i++) {
        hvdc_pipe_bytes bytes;
        if (fread(&bytes, sizeof bytes, 1, stdin) != 1u) return "a call that ends early";
        if (bytes > HVDC_PIPE_BYTES_MAX) return "a buffer that is too large";
        args[i].buffer.bytes = bytes;
        args[i].buffer.data = bytes == 0 ? NULL : calloc(1, bytes);
        if (bytes != 0 && args[i].buffer.data == NULL) return "no memory for a call";
    }
    for (uint32_t i = 0; i < given; i++)
        if (fread(args[i].buffer.data, 1, args[i].buffer.bytes, stdin) != args[i].buffer.bytes)
            return "a call that ends early";
    return NULL;
}

static const char *answer_call(const hvdc_pipe_call *call, hvdc_remote_arg *args, uint32_t given, uint32_t count) {
    const char *why = receive(args, count, given);
    if (why != NULL) return why;
    if (call->scalars == HVDC_REMOTE_CLOSE) args[count].handle = call->handle;
    hvdc_pipe_answer answer = {.magic = HVDC_PIPE_MAGIC};
    answer.result = hvdc_skel_handle_invoke(call->handle, call->scalars, args);
    if (call->scalars == HVDC_REMOTE_OPEN) answer.handle = args[count].handle;
    bool good = fwrite(&answer, sizeof answer, 1, stdout) == 1u;
    for (uint32_t i = given; answer.result == 0 && i < count; i++)
        if (args[i].buffer.bytes != 0)
            good = fwrite(args[i].buffer.data, args[i].buffer.bytes, 1, stdout) == 1u && good;
    return fflush(stdout) == 0 && good ? NULL : "nobody reads the answer";
}

static const char *serve_call(const hvdc_pipe_call *call) {
    const uint32_t given = HVDC_REMOTE_IN(call->scalars), count = given + HVDC_REMOTE_OUT(call->scalars);
    const uint32_t all = count + HVDC_REMOTE_HANDLES(call->scalars);
    if (all == 0) return answer_call(call, NULL, 0, 0);
    hvdc_remote_arg *args = calloc(all, sizeof *args);
    if (args == NULL) return "no memory for a call";
    const char *why = answer_call(call, args, given, count);
    for (uint32_t i = 0; i < count; i++) free(args[i].buffer.data);
    free(args);
    return why;
}

int main(int argc, char **argv) {
    hvdc_pipe_call call;
    const bool unit = argc == 3 && strcmp(argv[1], "--unit") == 0;
    if (argc != 2 && !unit) return stop("usage: hvdc_dsp [--unit] CLIENT_PID, or hvdc_dsp --interface");
    if (strcmp(argv[1], "--interface") == 0) {
        hvdc_print_interface();
        return fflush(stdout) == 0 ? 0 : 1;
    }
    if (unit) hvdc_dsp_use_unit();
    hvdc_dsp_serve((uint32_t)strtoul(argv[argc - 1], NULL, 10));
    while (fread(&call, sizeof call, 1, stdin) == 1u) {
        if (call.magic != HVDC_PIPE_MAGIC) return stop("what arrives is no call");
        const char *why = serve_call(&call);
        if (why != NULL) return stop(why);
    }
    return 0;
}
