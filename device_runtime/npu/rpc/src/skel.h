/* What libhvdc_skel.so shows to the DSP's FastRPC shell. `args` may be anything, in any number that `scalars` says. */
#ifndef HVDC_RPC_SKEL_H
#define HVDC_RPC_SKEL_H

#include "remote.h"

#if defined(__GNUC__)
#define HVDC_RPC_EXPORT __attribute__((visibility("default")))
#else
#define HVDC_RPC_EXPORT
#endif

HVDC_RPC_EXPORT int hvdc_open(const char *uri, uint64_t *handle);
HVDC_RPC_EXPORT int hvdc_close(uint64_t handle);
HVDC_RPC_EXPORT int hvdc_skel_handle_invoke(uint64_t handle, uint32_t scalars, hvdc_remote_arg *args);

#endif
