// Search for added tokens in a text, leftmost and longest first, as in the library's AddedVocabulary.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string_view>
#include <vector>

namespace kvatlas::tokenization {

class AddedTokens {
public:
    struct Match {
        size_t begin, end;
        uint32_t id;
    };

    // A search through one text, from left to right.
    class Search {
    public:
        Search(const AddedTokens& tokens, std::string_view text) : tokens_(tokens), text_(text) {
            for (const char first : tokens.firsts_) candidates_.push_back({first, 0});
            for (Candidate& candidate : candidates_) advance(candidate, 0);
        }

        // Finds the first match that begins at `from` or later; false if there is none. `from` must never decrease.
        bool find(size_t from, Match& found) {
            for (;; ++from) {
                size_t next = text_.size();
                for (Candidate& candidate : candidates_) {
                    if (candidate.at < from) advance(candidate, from);
                    if (candidate.at < next) next = candidate.at;
                }
                if (next == text_.size()) return false;
                from = next;
                if (tokens_.longest_at(text_, from, found)) return true;
            }
        }

    private:
        // The next position of a byte with which tokens begin.
        struct Candidate {
            char first;
            size_t at;
        };

        void advance(Candidate& candidate, size_t from) const {
            const void* next = std::memchr(text_.data() + from, candidate.first, text_.size() - from);
            candidate.at = next == nullptr ? text_.size() : static_cast<size_t>(static_cast<const char*>(next) - text_.data());
        }

        const AddedTokens& tokens_;
        std::string_view text_;
        std::vector<Candidate> candidates_;
    };

    AddedTokens() : nodes_(1) {}

    void add(std::string_view content, uint32_t id) {
        if (content.empty()) return;
        if (nodes_[0].children.find(content.front()) == nodes_[0].children.end()) firsts_.push_back(content.front());
        uint32_t node = 0;
        for (const char byte : content) {
            const auto [child, is_new] = nodes_[node].children.try_emplace(byte, static_cast<uint32_t>(nodes_.size()));
            node = child->second;
            if (is_new) nodes_.emplace_back();
        }
        nodes_[node].id = id;
    }

private:
    static constexpr uint32_t kNone = ~uint32_t{0};

    struct Node {
        std::map<char, uint32_t> children;
        uint32_t id = kNone;
    };

    bool longest_at(std::string_view text, size_t begin, Match& found) const {
        bool is_found = false;
        uint32_t node = 0;
        for (size_t at = begin; at < text.size(); ++at) {
            const auto child = nodes_[node].children.find(text[at]);
            if (child == nodes_[node].children.end()) break;
            node = child->second;
            if (nodes_[node].id != kNone) {
                found = {begin, at + 1, nodes_[node].id};
                is_found = true;
            }
        }
        return is_found;
    }

    std::vector<Node> nodes_;
    std::vector<char> firsts_;  // bytes with which tokens begin
};

}  // namespace kvatlas::tokenization
