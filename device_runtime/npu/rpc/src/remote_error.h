/* FastRPC's codes as sentences. */
#ifndef HVDC_RPC_REMOTE_ERROR_H
#define HVDC_RPC_REMOTE_ERROR_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/failure.h"

/* "The DSP does not VERB: …", with the code's meaning and what to do. Returns false. */
bool hvdc_remote_fail(hvdc_failure *failure, const char *doing, int result);

/* Whether the code says that the DSP's process is gone, so that no further call can succeed. */
bool hvdc_remote_is_lost(int result);

#endif
