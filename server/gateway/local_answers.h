#pragma once

#include <optional>

#include "server/gateway/access/request_record.h"
#include "server/gateway/openai/model/served_models.h"
#include "server/gateway/operator_api.h"
#include "server/gateway/readiness.h"
#include "server/gateway/responses/response_store.h"
#include "server/gateway/routes.h"
#include "server/gateway/routing/router.h"
#include "server/http/http_message.h"
#include "server/observe/metrics.h"

namespace aludel {

// Answers to the routes that ask no model for text. Thread-safe; some take long, see Route.
class LocalAnswers {
 public:
  // All must outlive this.
  LocalAnswers(const OperatorApi::Options& options, const ServedModels* models, Router* router,
               const Readiness* readiness, ResponseStore* responses, Metrics* metrics)
      : models_(models),
        router_(router),
        readiness_(readiness),
        responses_(responses),
        metrics_(metrics),
        operator_(options, models, router, readiness) {}

  HttpResponse Answer(const HttpRequest& request, const Route& asked, const RequestIdentity& identity) const;
  // See OperatorApi.
  std::optional<HttpResponse> AnswerAdmin(const HttpRequest& request) const {
    return operator_.Answer(request);
  }

 private:
  const ServedModels* const models_;
  Router* const router_;
  const Readiness* const readiness_;
  ResponseStore* const responses_;
  Metrics* const metrics_;
  const OperatorApi operator_;
};

}  // namespace aludel
