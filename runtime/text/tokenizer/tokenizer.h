#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aludel {

// A HuggingFace tokenizer.json: byte-level BPE with its regex pre-tokenizer, or SentencePiece-style BPE with
// byte fallback. Immutable after Load and thread-safe. A field or component that it does not implement is an
// error at Load that names it: it never tokenizes approximately.
class Tokenizer {
 public:
  // Reads DIR/tokenizer.json and, where present, what DIR/tokenizer_config.json changes of it
  // (tokenizer_config.h). `warnings`, where given, gets what was found and is ignored, as sentences for
  // a log.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& directory,
                                                         std::vector<std::string>* warnings = nullptr);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(absl::string_view json,
                                                             absl::string_view origin);
  virtual ~Tokenizer() = default;

  // Text to ids. Added tokens inside the text become their ids (as a rendered chat template needs); with
  // `add_special_tokens` the post-processor's template (e.g. a BOS) is applied too. InvalidArgument for text
  // that is not UTF-8; Cancelled where CheckStop() says so.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, bool add_special_tokens) const {
    return Encode(text, add_special_tokens, /*joint=*/"");
  }
  // `joint`, where not empty, is what BreakSpecialTokens has put into parts of the text. It is a part of no
  // token and leaves no trace.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, bool add_special_tokens,
                                                      absl::string_view joint) const = 0;
  // `text` with `joint` behind the first character of each special token that it spells, and at its end where
  // it ends within the spelling of one; `text` itself where there is none. Encoded with that joint, alone or
  // as a part of a longer text, it becomes the tokens of its characters and no special one. `joint` is a
  // character that stands in no part of the text.
  virtual std::string BreakSpecialTokens(absl::string_view text, absl::string_view joint) const = 0;
  // FailedPrecondition where some special token would come of broken text nonetheless: its spelling has one
  // character only, or a normalizer can make it of other text, or it is a token of the vocabulary's merges.
  virtual absl::Status CanBreakSpecialTokens() const = 0;

  // Ids to text. Ids out of range are skipped. Bytes that are not UTF-8 become U+FFFD.
  virtual std::string Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const = 0;

  // The bytes that `id` adds in the middle of a text; they may begin or end inside a character. Nothing for
  // special tokens and for ids out of range.
  virtual std::string TokenBytes(int32_t id) const = 0;

  virtual int vocab_size() const = 0;  // largest id + 1, added tokens included
  virtual bool IsSpecial(int32_t id) const = 0;
  // -1 where there is none. `token` is the vocabulary's spelling ("<|end|>").
  virtual int32_t TokenToId(absl::string_view token) const = 0;
  // SHA-256 over vocabulary, merges and added tokens in a canonical form, hex: two that agree on this make
  // the same ids of a text, and the same text of ids.
  virtual const std::string& fingerprint() const = 0;
  // The same without the added tokens, which fine-tunes rename and flag anew: two models that exchange token
  // ids, but no text, need agree on no more.
  virtual const std::string& vocabulary_fingerprint() const = 0;
};

// Decodes a stream of ids so that no piece ever ends inside a character: bytes of an unfinished UTF-8
// sequence wait. Special tokens have no text. Holds a handful of ids, however long the stream. One per
// stream; not thread-safe; the tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}
  // The text that `id` completes; may be empty.
  std::string Push(int32_t id);
  // What is still held back, with broken bytes as U+FFFD.
  std::string Flush();

 private:
  std::string TextUntil(size_t end) const;
  size_t CertainIds() const;

  const Tokenizer* tokenizer_;
  std::vector<int32_t> ids_;
  size_t read_ = 0;  // ids_[0, read_) were emitted; kept as left context for the next piece
};

}  // namespace aludel
