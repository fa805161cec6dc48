// Messages that wait for one subscription: what the index reads of them. events/inbox.py describes the whole.
#pragma once

#include <cstdint>
#include <string_view>

#include "batch.h"

namespace kvatlas {

class Inbox {
public:
    virtual ~Inbox() = default;

    // Returns the events of the next message if it has the number `seq` and only events that engines usually send, decoded; null
    // if it has others, or if there is none. Valid until the next call.
    virtual const Batch* front(uint64_t seq) = 0;

    // Takes out the message that `front` returned.
    virtual void pop() = 0;

    // Returns the topic of the last message taken out by `pop`.
    virtual std::string_view topic() const = 0;
};

}  // namespace kvatlas
