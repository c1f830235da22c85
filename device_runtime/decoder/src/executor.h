/* Executes the graphs of a variant on one latent frame of a tile: loads their contexts, and hands each graph the buffers
 * that it reads and writes.
 *
 * A cache is two buffers. Frame t of a tile writes number t mod 2 and reads the other, which frame t - 1 wrote: nothing is
 * copied. What one graph of a variant hands to the next is one buffer, too. */
#ifndef HVDC_DECODER_EXECUTOR_H
#define HVDC_DECODER_EXECUTOR_H

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "buffers.h"
#include "context.h"
#include "graphs.h"
#include "hvdc/decoder.h"
#include "library.h"

namespace hvdc {

class Executor {
   public:
    Executor(const hvdc_artifact *artifact, const hvdc_decoder_options &options);

    /* Loads everything and checks it. The options' strings are not read afterwards. */
    bool open(const hvdc_decoder_options &options, hvdc_failure *failure);

    /* Runs the graphs for frame t of a tile: those of FIRST if t is 0, else those of LATER. Reads `latent(t)`, writes
     * `frames(t)`, whose port is `frames_port(t)`. */
    bool run(uint32_t t, hvdc_failure *failure);

    void *latent(uint32_t t) const { return ends(t).latent->data(); }
    const void *frames(uint32_t t) const { return ends(t).frames->data(); }
    const Port &latent_port(uint32_t t) const { return *ends(t).latent_port; }
    const Port &frames_port(uint32_t t) const { return *ends(t).frames_port; }

    void describe(hvdc_decoder_facts *facts) const;

   private:
    /* A graph's tensors for frames that write caches number 0 and 1, as the library wants them. */
    struct Bound {
        qx_handle graph = nullptr;
        std::array<std::vector<qx_tensor>, 2> inputs, outputs;
    };
    /* Where a variant begins and ends. */
    struct Ends {
        const Buffer *latent = nullptr, *frames = nullptr;
        const Port *latent_port = nullptr, *frames_port = nullptr;
    };

    bool read_binaries(const hvdc_decoder_options &options, const std::vector<uint32_t> &tensors,
                       hvdc_failure *failure);
    bool make_buffers(hvdc_failure *failure);
    bool make_buffer(const std::string &name, const Port &port, hvdc_failure *failure);
    bool is_cache(const std::string &name) const;
    bool begins(const Graph &graph) const;
    std::string buffer_name(const Graph &graph, const Port &port, bool reads, unsigned written) const;
    bool load(uint32_t variant, hvdc_failure *failure);
    bool load_binary(uint32_t binary, uint32_t variant, hvdc_failure *failure);
    bool free_others(uint32_t variant);
    bool uses(uint32_t variant, uint32_t binary) const;
    bool bind(uint32_t binary, hvdc_failure *failure);
    bool bind_side(Context &context, const Graph &graph, bool reads, Bound *bound, qx_error *refused);
    const Ends &ends(uint32_t t) const { return ends_[t == 0 ? 0 : 1]; }

    const hvdc_artifact *artifact_;
    Allocator allocator_;
    System system_;
    Backend backend_;
    bool emulator_ = false;
    std::string build_;
    std::vector<Binary> binaries_;
    std::vector<Graph> graphs_;
    std::array<Ends, 2> ends_;
    std::map<std::string, std::unique_ptr<Buffer>> buffers_;
    std::vector<Bound> bound_;                       /* one for each graph, empty while its context is not loaded */
    std::vector<std::unique_ptr<Context>> contexts_; /* one for each binary, NULL while not loaded */
    bool shares_ = true;
    std::string why_not_shared_;
};

}  // namespace hvdc

#endif
