#include "server/handoff/identity.h"

namespace aludel {

v1::ModelIdentity ToProto(const ModelIdentity& identity) {
  v1::ModelIdentity proto;
  proto.set_architecture(identity.architecture);
  proto.set_weights_hash(identity.weights_hash);
  proto.set_tokenizer_fingerprint(identity.tokenizer_fingerprint);
  proto.set_vocabulary_fingerprint(identity.vocabulary_fingerprint);
  proto.set_rope(identity.rope);
  proto.set_layers(identity.layers);
  proto.set_kv_heads(identity.kv_heads);
  proto.set_head_dim(identity.head_dim);
  proto.set_vocab(identity.vocab);
  proto.set_max_positions(identity.max_positions);
  return proto;
}

ModelIdentity FromProto(const v1::ModelIdentity& proto) {
  return {.architecture = proto.architecture(),
          .weights_hash = proto.weights_hash(),
          .tokenizer_fingerprint = proto.tokenizer_fingerprint(),
          .vocabulary_fingerprint = proto.vocabulary_fingerprint(),
          .rope = proto.rope(),
          .layers = static_cast<int>(proto.layers()),
          .kv_heads = static_cast<int>(proto.kv_heads()),
          .head_dim = static_cast<int>(proto.head_dim()),
          .vocab = static_cast<int>(proto.vocab()),
          .max_positions = static_cast<int64_t>(proto.max_positions())};
}

}  // namespace aludel
