#include "server/gateway/openai/model/model_list.h"

#include <string>
#include <utility>

#include "nlohmann/json.hpp"
#include "server/gateway/openai/api_error.h"
#include "server/gateway/openai/prompt.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

// `id`: the model's name, or that of an adapter over it.
ordered_json ModelJson(const std::string& id, const ServedModel& model, const Router& router) {
  ordered_json json = {{"id", id}, {"object", "model"}, {"created", model.created}, {"owned_by", "aludel"}};
  const uint64_t max_context = router.State(model.name).max_context;
  if (max_context > 0) json["max_model_len"] = max_context;
  json["root"] = id;
  json["parent"] = nullptr;
  if (id != model.name) json["parent"] = model.name;
  json["aludel"] = {{"formats", router.Formats(model.name)}};
  return json;
}

}  // namespace

HttpResponse ListModels(const ServedModels& models, const Router& router) {
  ordered_json list = ordered_json::array();
  for (const auto& model : models.all()) {
    list.push_back(ModelJson(model->name, *model, router));
    for (const std::string& adapter : router.targets().Adapters(model->name)) {
      if (models.Find(adapter) == model.get()) list.push_back(ModelJson(adapter, *model, router));
    }
  }
  return JsonResponse(200, {{"object", "list"}, {"data", std::move(list)}});
}

HttpResponse DescribeModel(const ServedModels& models, const Router& router, absl::string_view id) {
  const ServedModel* model = models.Find(id);
  if (model == nullptr) return ModelNotFound(id).ToResponse();
  return JsonResponse(200, ModelJson(std::string(id), *model, router));
}

}  // namespace aludel
