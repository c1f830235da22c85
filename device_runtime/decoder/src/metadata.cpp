#include "metadata.h"

#include "text.h"

namespace hvdc {

namespace {

/* Above these a count is taken for damage rather than followed through memory. */
const uint32_t most_graphs = 1024, most_tensors = 65536, most_dims = 16;

std::string text_of(const char *text) { return text == nullptr ? "" : text; }

/* What is wrong, or "". */
std::string copy(const qx_tensor &from, TensorInfo *to) {
    const qx_tensor_body &body = from.body;
    if (from.version != 1 && from.version != 2) return "a tensor of version " + std::to_string(from.version);
    if (body.rank > most_dims || (body.rank > 0 && body.dims == nullptr))
        return "a tensor of rank " + std::to_string(body.rank);
    to->id = body.id;
    to->name = text_of(body.name);
    to->dtype = body.dtype;
    to->dims.assign(body.dims, body.dims + body.rank);
    to->scaled = body.quant.definition == QX_QUANT_DEFINED && body.quant.encoding == QX_QUANT_SCALE_OFFSET;
    if (to->scaled) {
        to->scale = body.quant.u.scale_offset.scale;
        to->offset = body.quant.u.scale_offset.offset;
    }
    return "";
}

std::string copy(const qx_tensor *from, uint32_t count, std::vector<TensorInfo> *to) {
    if (count > most_tensors || (count > 0 && from == nullptr)) return std::to_string(count) + " tensors";
    to->resize(count);
    for (uint32_t i = 0; i < count; i++) {
        const std::string wrong = copy(from[i], &(*to)[i]);
        if (!wrong.empty()) return wrong;
    }
    return "";
}

std::string copy(const qx_graph_info &from, GraphInfo *to) {
    if (from.version != QX_INFO_VERSION || from.blob == nullptr || from.blob_bytes < sizeof(qx_htp_graph))
        return "a graph of version " + std::to_string(from.version) + " with " + std::to_string(from.blob_bytes) +
               " bytes about HTP";
    const auto *htp = static_cast<const qx_htp_graph *>(from.blob);
    to->name = text_of(from.name);
    to->vtcm_bytes = htp->vtcm_bytes;
    to->spill_fill_bytes = htp->spill_fill_bytes;
    to->optimization = htp->optimization;
    const std::string wrong = copy(from.inputs, from.input_count, &to->inputs);
    return wrong.empty() ? copy(from.outputs, from.output_count, &to->outputs) : wrong;
}

std::string copy(const qx_binary &from, BinaryInfo *to) {
    if (from.version != QX_INFO_VERSION) return "a description of version " + std::to_string(from.version);
    const qx_binary_body &body = from.body;
    if (body.backend_id != QX_BACKEND_HTP) return "a binary for backend " + std::to_string(body.backend_id);
    if (body.graph_count < 1 || body.graph_count > most_graphs || body.graphs == nullptr)
        return std::to_string(body.graph_count) + " graphs";
    if (body.metadata == nullptr || body.metadata_bytes < sizeof(qx_htp_context)) return "nothing about HTP";
    to->build = text_of(body.build_id);
    to->soc = body.soc;
    to->arch = static_cast<const qx_htp_context *>(body.metadata)->arch;
    to->graphs.resize(body.graph_count);
    for (uint32_t i = 0; i < body.graph_count; i++) {
        const std::string wrong = copy(body.graphs[i], &to->graphs[i]);
        if (!wrong.empty()) return wrong;
    }
    return "";
}

}  // namespace

bool read_metadata(const System &system, const hvdc_span &binary, BinaryInfo *info, hvdc_failure *failure) {
    qx_handle context = nullptr;
    const qx_system_provider &api = system.api();
    qx_error error = api.context_create(&context);
    if (error != QX_OK)
        return fail(failure, HVDC_FAILURE_DEVICE,
                    system.path() + " does not start: error " + std::to_string(qx_code(error)));
    const qx_binary *found = nullptr;
    error = api.get_metadata(context, binary.data, binary.bytes, &found);
    std::string wrong;
    if (error != QX_OK || found == nullptr)
        wrong = "libQnnSystem answers error " + std::to_string(qx_code(error));
    else
        wrong = copy(*found, info);
    (void)api.context_free(context); /* and with it what `found` points to */
    if (wrong.empty()) return true;
    return fail(failure, HVDC_FAILURE_ARTIFACT,
                std::string(binary.path) + " is no context binary that can be read: " + wrong +
                    "; install the QAIRT runtime that it was compiled with, or compile the artifact again");
}

}  // namespace hvdc
