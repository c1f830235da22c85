/* Which device and which runtime a binary needs. The x86 library loads any architecture's; a runtime that is older than
 * the compiler refuses a binary with a bare number, if it is lucky. */
#ifndef HVDC_DECODER_BUILDS_H
#define HVDC_DECODER_BUILDS_H

#include <string>
#include <vector>

#include "graphs.h"

namespace hvdc {

/* Compares what binaries say of themselves with what the artifact says of them. */
bool check_recorded(const hvdc_artifact *artifact, const std::vector<Binary> &binaries, hvdc_failure *failure);

/* Compares all binaries with each other and with the device, where `soc` and `arch` are known (not 0). */
bool check_devices(const std::vector<Binary> &binaries, uint32_t soc, uint32_t arch, hvdc_failure *failure);

/* Compares them with the build of the loaded runtime, which must not be older than any; `newest` is theirs. */
bool check_builds(const std::vector<Binary> &binaries, const std::string &runtime, std::string *newest,
                  hvdc_failure *failure);

}  // namespace hvdc

#endif
