/* hvdc_dsp CLIENT_PID: the DSP's end as a process, for an emulator: takes marshalled calls from its standard input,
 * answers on its standard output (npu/rpc/tools/pipe.h), and calls the very skel that libhvdc_skel.so is. Descriptors
 * that calls name are those of the client. Ends with its input. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dsp.h"
#include "pipe.h"
#include "skel.h"

static int stop(const char *why) {
    (void)fprintf(stderr, "hvdc_dsp: %s\n", why);
    return 1;
}

static int serve_call(const hvdc_pipe_call *call) {
    const uint32_t in = HVDC_REMOTE_IN(call->scalars), out = HVDC_REMOTE_OUT(call->scalars);
    hvdc_remote_arg args[HVDC_PIPE_ARGS_MAX + 1u];
    hvdc_pipe_bytes sizes[HVDC_PIPE_ARGS_MAX];
    memset(args, 0, sizeof args);
    if (in + out > HVDC_PIPE_ARGS_MAX) return stop("a call with more buffers than there are");
    if (fread(sizes, sizeof *sizes, in + out, stdin) != in + out) return stop("a call that ends early");
    for (uint32_t i = 0; i < in + out; i++) {
        if (sizes[i] > HVDC_PIPE_BYTES_MAX) return stop("a buffer that is too large");
        args[i].buffer.bytes = sizes[i];
        args[i].buffer.data = sizes[i] == 0 ? NULL : malloc(sizes[i]);
        if (sizes[i] != 0 && args[i].buffer.data == NULL) return stop("no memory for a call");
        if (sizes[i] != 0) memset(args[i].buffer.data, 0, sizes[i]);
    }
    for (uint32_t i = 0; i < in; i++)
        if (fread(args[i].buffer.data, 1, sizes[i], stdin) != sizes[i]) return stop("a call that ends early");
    if (call->scalars == HVDC_REMOTE_CLOSE) args[0].handle = call->handle;
    hvdc_pipe_answer answer = {.magic = HVDC_PIPE_MAGIC};
    answer.result = hvdc_skel_handle_invoke(call->handle, call->scalars, args);
    if (call->scalars == HVDC_REMOTE_OPEN) answer.handle = args[in].handle;
    (void)fwrite(&answer, sizeof answer, 1, stdout);
    for (uint32_t i = in; answer.result == 0 && i < in + out; i++)
        if (sizes[i] != 0) (void)fwrite(args[i].buffer.data, sizes[i], 1, stdout);
    for (uint32_t i = 0; i < in + out; i++) free(args[i].buffer.data);
    return fflush(stdout) == 0 ? 0 : stop("nobody reads the answer");
}

int main(int argc, char **argv) {
    hvdc_pipe_call call;
    if (argc != 2) return stop("usage: hvdc_dsp CLIENT_PID");
    hvdc_dsp_serve((uint32_t)strtoul(argv[1], NULL, 10));
    while (fread(&call, sizeof call, 1, stdin) == 1u) {
        if (call.magic != HVDC_PIPE_MAGIC) return stop("what arrives is no call");
        const int status = serve_call(&call);
        if (status != 0) return status;
    }
    return 0;
}
