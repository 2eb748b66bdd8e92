#pragma once

#include "server/gateway/openai/fields/json_fields.h"

namespace aludel {

enum class Endpoint { kChat = 1, kPlain = 2 };

// Fields of OpenAI's API and of vLLM's that would change the answer and that are not served: ignoring one
// would answer another question. Where such a field asks for something, a fault that names it is left in
// `fields`; null, false, 0 and empty values ask for nothing, and neither does the value in the table.
void RefuseUnserved(JsonFields& fields, Endpoint endpoint);

}  // namespace aludel
