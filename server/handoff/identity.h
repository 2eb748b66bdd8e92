#pragma once

#include "aludel/v1/handoff.pb.h"
#include "runtime/model/model_identity.h"

namespace aludel {

// ModelIdentity as it crosses the control plane.
v1::ModelIdentity ToProto(const ModelIdentity& identity);
ModelIdentity FromProto(const v1::ModelIdentity& proto);

}  // namespace aludel
