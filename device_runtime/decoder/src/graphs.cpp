#include "graphs.h"

#include <algorithm>
#include <cstdio>

#include "text.h"

namespace hvdc {

namespace {

const uint64_t most_bytes = UINT32_MAX; /* of a tensor: QNN counts them with 32 bits */

const char recompile[] = "; compile the artifact again";

bool make_port(const hvdc_artifact *artifact, const std::string &graph, uint32_t index, Port *port,
               hvdc_failure *failure) {
    port->record = hvdc_artifact_decoder_port(artifact, index);
    port->name = hvdc_artifact_text(artifact, port->record->name);
    port->dims.assign(port->record->shape, port->record->shape + port->record->dims);
    uint64_t bytes = port->record->dtype == HVDC_PORT_DTYPE_UINT8 ? 1 : 2;
    const uint64_t size = bytes;
    for (const uint32_t dim : port->dims) {
        if (dim > most_bytes / bytes)
            return fail(failure, HVDC_FAILURE_ARTIFACT,
                        "graph " + graph + ": " + port->name + " of shape " + text_of(port->dims) +
                            " is larger than the NPU's interface can address" + recompile + " with a smaller tile");
        bytes *= dim;
    }
    port->bytes = static_cast<uint32_t>(bytes);
    port->elements = static_cast<uint32_t>(bytes / size);
    return true;
}

std::string text_of(uint32_t dtype, const std::vector<uint32_t> &dims, bool scaled, float scale, int64_t zero_point) {
    char text[100];
    std::string type = "dtype ";
    if (dtype == QX_UFIXED8 || dtype == QX_UFIXED16) {
        type = dtype == QX_UFIXED8 ? "uint8" : "uint16";
    } else {
        (void)snprintf(text, sizeof text, "0x%04x", dtype);
        type += text;
    }
    (void)snprintf(text, sizeof text, " scale %.9g zero point %lld", static_cast<double>(scale),
                   static_cast<long long>(zero_point));
    return type + " " + hvdc::text_of(dims) + (scaled ? text : " without one scale");
}

/* Takes the id of a port's tensor. */
bool bind_port(const std::string &where, const char *side, const std::vector<TensorInfo> &tensors, Port *port,
               hvdc_failure *failure) {
    const TensorInfo *found = nullptr;
    for (const TensorInfo &tensor : tensors)
        if (tensor.name == port->name) found = &tensor;
    if (found == nullptr)
        return fail(failure, HVDC_FAILURE_ARTIFACT, where + " has no " + side + " " + port->name + recompile);
    const int64_t zero_point = port->record->zero_point;
    const bool same = found->dtype == port->qnn_dtype() && found->dims == port->dims && found->scaled &&
                      found->scale == port->record->scale && -static_cast<int64_t>(found->offset) == zero_point;
    if (!same)
        return fail(
            failure, HVDC_FAILURE_ARTIFACT,
            where + ", " + side + " " + port->name + ": the artifact says " +
                text_of(port->qnn_dtype(), port->dims, true, port->record->scale, zero_point) + ", the binary has " +
                text_of(found->dtype, found->dims, found->scaled, found->scale, -static_cast<int64_t>(found->offset)) +
                recompile);
    port->id = found->id;
    return true;
}

bool bind_ports(const std::string &where, const char *side, const std::vector<TensorInfo> &tensors,
                std::vector<Port> *ports, hvdc_failure *failure) {
    for (Port &port : *ports)
        if (!bind_port(where, side, tensors, &port, failure)) return false;
    if (tensors.size() == ports->size()) return true;
    return fail(failure, HVDC_FAILURE_ARTIFACT,
                where + " has " + std::to_string(tensors.size()) + " " + side + "s where the artifact says " +
                    std::to_string(ports->size()) + recompile);
}

bool bind_graph(const Binary &binary, Graph *graph, hvdc_failure *failure) {
    const std::vector<GraphInfo> &graphs = binary.info.graphs;
    const auto found = std::find_if(graphs.begin(), graphs.end(),
                                    [graph](const GraphInfo &info) { return info.name == graph->name_in_binary; });
    const std::string where = binary.path + ", graph " + graph->name;
    if (found == graphs.end())
        return fail(
            failure, HVDC_FAILURE_ARTIFACT,
            binary.path + " has no graph " + graph->name_in_binary + ", which is to be " + graph->name + recompile);
    if (found->vtcm_bytes != graph->record->vtcm_bytes || found->optimization != graph->record->optimization ||
        found->spill_fill_bytes != graph->record->spill_fill_bytes)
        return fail(failure, HVDC_FAILURE_ARTIFACT,
                    where + " plans with " + std::to_string(found->vtcm_bytes) + " bytes of VTCM at optimisation " +
                        std::to_string(found->optimization) + " and spills " + std::to_string(found->spill_fill_bytes) +
                        ", the artifact says " + std::to_string(graph->record->vtcm_bytes) + ", " +
                        std::to_string(graph->record->optimization) + " and " +
                        std::to_string(graph->record->spill_fill_bytes) + recompile);
    return bind_ports(where, "input", found->inputs, &graph->inputs, failure) &&
           bind_ports(where, "output", found->outputs, &graph->outputs, failure);
}

}  // namespace

uint32_t Port::qnn_dtype() const { return record->dtype == HVDC_PORT_DTYPE_UINT8 ? QX_UFIXED8 : QX_UFIXED16; }

bool list_graphs(const hvdc_artifact *artifact, std::vector<Graph> *graphs, std::vector<uint32_t> *binaries,
                 hvdc_failure *failure) {
    const hvdc_decoder *decoder = hvdc_artifact_decoder(artifact);
    if (decoder == nullptr)
        return fail(failure, HVDC_FAILURE_USAGE,
                    "the artifact holds no decoder: compile it with --vae PATH --latents FILE");
    if (decoder->binaries == 0)
        return fail(failure, HVDC_FAILURE_USAGE,
                    "the artifact's decoder was not compiled for the NPU, it decodes on a host only: compile it with "
                    "--decoder-backend qnn");
    graphs->resize(decoder->graphs);
    for (uint32_t i = 0; i < decoder->graphs; i++) {
        Graph &graph = (*graphs)[i];
        graph.record = hvdc_artifact_decoder_graph(artifact, i);
        graph.name = hvdc_artifact_text(artifact, graph.record->name);
        graph.name_in_binary = hvdc_artifact_text(artifact, graph.record->name_in_binary);
        const auto known = std::find(binaries->begin(), binaries->end(), graph.record->binary);
        graph.binary = static_cast<uint32_t>(known - binaries->begin());
        if (known == binaries->end()) binaries->push_back(graph.record->binary);
        graph.inputs.resize(graph.record->inputs);
        graph.outputs.resize(graph.record->outputs);
        uint32_t index = graph.record->first_port;
        for (std::vector<Port> *ports : {&graph.inputs, &graph.outputs})
            for (Port &port : *ports)
                if (!make_port(artifact, graph.name, index++, &port, failure)) return false;
    }
    return true;
}

bool bind_graphs(const std::vector<Binary> &binaries, std::vector<Graph> *graphs, hvdc_failure *failure) {
    for (Graph &graph : *graphs)
        if (!bind_graph(binaries[graph.binary], &graph, failure)) return false;
    return true;
}

}  // namespace hvdc
