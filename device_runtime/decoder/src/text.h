/* Sentences from parts. */
#ifndef HVDC_DECODER_TEXT_H
#define HVDC_DECODER_TEXT_H

#include <cstdint>
#include <string>
#include <vector>

#include "hvdc/failure.h"

namespace hvdc {

inline bool fail(hvdc_failure *failure, hvdc_failure_kind kind, const std::string &sentence) {
    return hvdc_fail(failure, kind, "%s", sentence.c_str());
}

/* "[1, 3, 4, 32, 32]" */
inline std::string text_of(const std::vector<uint32_t> &dims) {
    std::string text = "[";
    for (size_t i = 0; i < dims.size(); i++) text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
    return text + "]";
}

}  // namespace hvdc

#endif
