/* A DSP that is a process. */
#ifndef HVDC_RPC_STAND_IN_PIPE_H
#define HVDC_RPC_STAND_IN_PIPE_H

#include <stdbool.h>

#include "remote.h"

/* Starts a command, words apart by spaces, with this process's number behind it. */
bool stand_in_pipe_start(const char *command);
void stand_in_pipe_kill(void);

/* As the skel's entry; HVDC_AEE_CONNECTION_RESET when the process is gone. */
int stand_in_pipe_call(uint64_t handle, uint32_t scalars, hvdc_remote_arg *args);

#endif
