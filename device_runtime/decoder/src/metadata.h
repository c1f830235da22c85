/* What a context binary says of itself, copied out of libQnnSystem's memory. Compare the file's SHA-256 first: the
 * library follows a damaged file's counts and pointers. */
#ifndef HVDC_DECODER_METADATA_H
#define HVDC_DECODER_METADATA_H

#include <cstdint>
#include <string>
#include <vector>

#include "hvdc/artifact.h"
#include "library.h"

namespace hvdc {

/* real = (stored + offset) * scale; `scaled`: by one scale. */
struct TensorInfo {
    uint32_t id = 0;
    std::string name;
    uint32_t dtype = 0;
    std::vector<uint32_t> dims;
    bool scaled = false;
    float scale = 0;
    int32_t offset = 0;
};

struct GraphInfo {
    std::string name;
    std::vector<TensorInfo> inputs, outputs;
    uint64_t vtcm_bytes = 0, spill_fill_bytes = 0;
    uint32_t optimization = 0;
};

struct BinaryInfo {
    std::string build;
    uint32_t soc = 0, arch = 0;
    std::vector<GraphInfo> graphs;
};

bool read_metadata(const System &system, const hvdc_span &binary, BinaryInfo *info, hvdc_failure *failure);

}  // namespace hvdc

#endif
