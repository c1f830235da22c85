/* An artifact's graphs as its binaries hold them: each port with the id by which the library knows its tensor. The
 * library matches by id alone, and neither compares names, types and sizes nor knows what the artifact says. */
#ifndef HVDC_DECODER_GRAPHS_H
#define HVDC_DECODER_GRAPHS_H

#include <cstdint>
#include <string>
#include <vector>

#include "hvdc/artifact.h"
#include "metadata.h"

namespace hvdc {

/* An input or output: what the artifact says of it, and its id in the binary. */
struct Port {
    const hvdc_decoder_port *record = nullptr;
    std::string name;
    uint32_t id = 0;
    std::vector<uint32_t> dims;
    uint32_t elements = 0;
    uint32_t bytes = 0;

    uint32_t qnn_dtype() const;
};

struct Graph {
    const hvdc_decoder_graph *record = nullptr;
    std::string name, name_in_binary;
    uint32_t binary = 0; /* index into the binaries */
    std::vector<Port> inputs, outputs;

    bool is_first() const { return record->variant == HVDC_DECODER_VARIANT_FIRST; }
};

/* A context binary of the artifact: its tensor, path, and what it says of itself. */
struct Binary {
    uint32_t tensor = 0;
    std::string path;
    BinaryInfo info;
};

/* The graphs of an artifact, with the ports that it says they have; ids are 0. Fails without a decoder or binaries. */
bool list_graphs(const hvdc_artifact *artifact, std::vector<Graph> *graphs, std::vector<uint32_t> *binaries,
                 hvdc_failure *failure);

/* Compares graphs with the binaries that hold them, and takes the ids of their tensors. */
bool bind_graphs(const std::vector<Binary> &binaries, std::vector<Graph> *graphs, hvdc_failure *failure);

}  // namespace hvdc

#endif
