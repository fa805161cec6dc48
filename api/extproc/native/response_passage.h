// Passes the body of one response through, and reports its first byte, its usage and its end.
#pragma once

#include "passage.h"
#include "usage_scan.h"

namespace kvatlas::extproc {

class ResponsePassage final : public http2::Passage {
public:
    // Args:
    //   gives_back: whether Envoy wants the body back (FULL_DUPLEX_STREAMED); in other modes it forwards the body itself.
    //   has_begun: whether a byte of the body was seen before.
    //   leaves_end: whether the last message of the body is for Python.
    ResponsePassage(bool gives_back, bool has_begun, bool leaves_end, UsageScan scan)
        : gives_back_(gives_back), leaves_end_(leaves_end), has_begun_(has_begun), scan_(std::move(scan)) {}

    bool take(std::string_view message, size_t room, std::string& outbound, std::string& report) override;
    std::string leave() override;
    size_t n_held() const override { return scan_.n_held(); }
    size_t n_added(size_t n_message) const override;

private:
    std::string reported(uint8_t flags);

    const bool gives_back_, leaves_end_;
    bool has_begun_, has_ended_ = false;
    UsageScan scan_;
};

}  // namespace kvatlas::extproc
