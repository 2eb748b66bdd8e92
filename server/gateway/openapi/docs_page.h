#pragma once

#include "server/http/http_message.h"

namespace aludel {

// GET /docs: the paths and fields of OpenApi() for people, in plain HTML without a script.
HttpResponse DocsPage();

}  // namespace aludel
