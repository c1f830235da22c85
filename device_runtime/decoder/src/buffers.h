/* Memory of the graphs' inputs and outputs. */
#ifndef HVDC_DECODER_BUFFERS_H
#define HVDC_DECODER_BUFFERS_H

#include <cstdint>
#include <memory>

#include "hvdc/decoder.h"

namespace hvdc {

/* Who gives memory: the options' functions, or memfd. */
class Allocator {
   public:
    explicit Allocator(const hvdc_decoder_options &options);
    bool allocate(uint64_t bytes, hvdc_decoder_buffer *buffer, hvdc_failure *failure) const;
    void release(hvdc_decoder_buffer *buffer) const;

   private:
    bool (*allocate_)(void *user, uint64_t bytes, hvdc_decoder_buffer *buffer, hvdc_failure *failure);
    void (*release_)(void *user, hvdc_decoder_buffer *buffer);
    void *user_;
};

/* One buffer, given back when this goes out of scope. The allocator outlives it. */
class Buffer {
   public:
    Buffer() = default;
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer();

    bool allocate(const Allocator &allocator, uint64_t bytes, hvdc_failure *failure);
    void *data() const { return buffer_.data; }
    uint64_t bytes() const { return buffer_.bytes; }
    int fd() const { return buffer_.fd; }

   private:
    const Allocator *allocator_ = nullptr;
    hvdc_decoder_buffer buffer_{nullptr, 0, -1};
};

}  // namespace hvdc

#endif
