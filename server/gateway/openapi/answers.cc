#include "server/gateway/openapi/openapi.h"

namespace aludel {

const absl::string_view kAnswerSchemas = R"json({
  "Error": {"type": "object", "required": ["error"], "properties": {"error": {
    "type": "object", "required": ["message", "type", "param", "code"], "properties": {
      "message": {"type": "string", "minLength": 1}, "type": {"type": "string"},
      "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}}}},
  "Usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"],
    "properties": {"prompt_tokens": {"type": "integer", "minimum": 1}, "completion_tokens": {"type": "integer", "minimum": 0},
      "total_tokens": {"type": "integer", "minimum": 1},
      "prompt_tokens_details": {"type": "object", "required": ["cached_tokens"],
        "properties": {"cached_tokens": {"type": "integer", "minimum": 0}}},
      "completion_tokens_details": {"type": "object", "required": ["reasoning_tokens"],
        "properties": {"reasoning_tokens": {"type": "integer", "minimum": 1}}}}},
  "Report": {"type": "object", "required": ["plan", "format", "payload_bytes", "raw_bytes", "handed_over_tokens", "ttft",
      "stages", "fallback_reason"],
    "properties": {"plan": {"enum": ["local", "remote", "cached", "stored", "fallback", "mixed"]}, "format": {"type": "string"},
      "payload_bytes": {"type": "integer", "minimum": 0}, "raw_bytes": {"type": "integer", "minimum": 0},
      "handed_over_tokens": {"type": "integer", "minimum": 0}, "ttft": {"type": "number"},
      "predicted_ttft": {"type": "number", "minimum": 0},
      "stages": {"type": "object", "additionalProperties": {"type": "number"}},
      "fallback_reason": {"type": ["string", "null"]}, "trace": {"$ref": "#/components/schemas/Trace"}}},
  "Trace": {"type": "object", "required": ["reason", "options", "frames", "frames_left_out", "first_token"], "properties": {
    "reason": {"type": "string"}, "frames_left_out": {"type": "integer", "minimum": 0},
    "first_token": {"type": ["number", "null"], "minimum": 0},
    "options": {"type": "array", "items": {"type": "object", "required": ["plan", "format", "predicted_ttft", "bytes_per_token"],
      "properties": {"plan": {"enum": ["local", "remote"]}, "format": {"type": "string"},
        "predicted_ttft": {"type": ["number", "null"]}, "bytes_per_token": {"type": ["number", "null"]}}}},
    "frames": {"type": "array", "items": {"type": "object", "required": ["first_layer", "layers", "token_begin", "tokens",
        "bytes", "encoded_from", "sent", "received", "applied"], "properties": {
      "first_layer": {"type": "integer", "minimum": 0}, "layers": {"type": "integer", "minimum": 1},
      "token_begin": {"type": "integer", "minimum": 0}, "tokens": {"type": "integer", "minimum": 1},
      "bytes": {"type": "integer", "minimum": 0}, "encoded_from": {"type": ["number", "null"]},
      "sent": {"type": ["number", "null"]}, "received": {"type": "number"}, "applied": {"type": ["number", "null"]}}}}}},
  "TokenIds": {"type": "array", "items": {"type": "integer", "minimum": 0}},
  "PromptLogprobs": {"type": "array", "items": {"type": ["object", "null"], "additionalProperties": {
    "type": "object", "required": ["logprob", "rank", "decoded_token"], "properties": {
      "logprob": {"type": "number", "maximum": 0}, "rank": {"type": "integer", "minimum": 1},
      "decoded_token": {"type": "string"}}}}},
  "ToolCall": {"type": "object", "required": ["id", "type", "function"], "properties": {"id": {"type": "string"},
    "type": {"const": "function"}, "function": {"type": "object", "required": ["name", "arguments"],
      "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}}}}},
  "ChatLogprob": {"type": "object", "required": ["token", "logprob", "bytes"], "properties": {"token": {"type": "string"},
    "logprob": {"type": "number", "maximum": 0}, "bytes": {"type": "array", "items": {"type": "integer", "minimum": 0,
      "maximum": 255}}, "top_logprobs": {"type": "array", "items": {"$ref": "#/components/schemas/ChatLogprob"}}}},
  "ChatLogprobs": {"type": ["object", "null"], "required": ["content"], "properties": {"content": {"type": "array",
    "items": {"$ref": "#/components/schemas/ChatLogprob"}}, "refusal": {"type": "null"}}},
  "PlainLogprobs": {"type": ["object", "null"], "required": ["tokens", "token_logprobs", "top_logprobs", "text_offset"],
    "properties": {"tokens": {"type": "array", "items": {"type": "string"}},
      "token_logprobs": {"type": "array", "items": {"type": ["number", "null"], "maximum": 0}},
      "top_logprobs": {"type": "array", "items": {"type": ["object", "null"],
        "additionalProperties": {"type": "number", "maximum": 0}}},
      "text_offset": {"type": "array", "items": {"type": "integer", "minimum": 0}}}},
  "ChatCompletion": {"type": "object", "required": ["id", "object", "created", "model", "system_fingerprint", "choices", "usage",
      "aludel"],
    "properties": {"id": {"type": "string"}, "object": {"const": "chat.completion"}, "created": {"type": "integer"},
      "model": {"type": "string"}, "system_fingerprint": {"type": "string"}, "usage": {"$ref": "#/components/schemas/Usage"},
      "aludel": {"$ref": "#/components/schemas/Report"}, "prompt_token_ids": {"$ref": "#/components/schemas/TokenIds"},
      "prompt_logprobs": {"$ref": "#/components/schemas/PromptLogprobs"},
      "choices": {"type": "array", "minItems": 1, "items": {"type": "object",
        "required": ["index", "message", "finish_reason", "stop_reason", "logprobs"], "properties": {
          "index": {"type": "integer", "minimum": 0}, "finish_reason": {"enum": ["stop", "length", "tool_calls"]},
          "stop_reason": {"type": ["string", "integer", "null"]},
          "logprobs": {"$ref": "#/components/schemas/ChatLogprobs"},
          "token_ids": {"$ref": "#/components/schemas/TokenIds"},
          "message": {"type": "object", "required": ["role", "content", "refusal"], "properties": {
            "role": {"const": "assistant"}, "content": {"type": ["string", "null"]}, "refusal": {"type": "null"},
            "reasoning_content": {"type": "string", "minLength": 1},
            "tool_calls": {"type": "array", "items": {"$ref": "#/components/schemas/ToolCall"}}}}}}}}},
  "Completion": {"type": "object", "required": ["id", "object", "created", "model", "system_fingerprint", "choices", "usage",
      "aludel"],
    "properties": {"id": {"type": "string"}, "object": {"const": "text_completion"}, "created": {"type": "integer"},
      "model": {"type": "string"}, "system_fingerprint": {"type": "string"}, "usage": {"$ref": "#/components/schemas/Usage"},
      "aludel": {"$ref": "#/components/schemas/Report"},
      "choices": {"type": "array", "minItems": 1, "items": {"type": "object",
        "required": ["index", "text", "finish_reason", "stop_reason", "logprobs"], "properties": {
          "index": {"type": "integer", "minimum": 0}, "text": {"type": "string"},
          "finish_reason": {"enum": ["stop", "length"]}, "stop_reason": {"type": ["string", "integer", "null"]},
          "logprobs": {"$ref": "#/components/schemas/PlainLogprobs"},
          "token_ids": {"$ref": "#/components/schemas/TokenIds"},
          "prompt_token_ids": {"$ref": "#/components/schemas/TokenIds"},
          "prompt_logprobs": {"$ref": "#/components/schemas/PromptLogprobs"}}}}}},
  "AnthropicError": {"type": "object", "required": ["type", "error", "request_id"], "properties": {"type": {"const": "error"},
    "error": {"type": "object", "required": ["type", "message"], "properties": {
      "type": {"type": "string"}, "message": {"type": "string", "minLength": 1}}}, "request_id": {"type": "string"}}},
  "Message": {"type": "object", "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage",
      "aludel"],
    "properties": {"id": {"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"},
      "model": {"type": "string"}, "aludel": {"$ref": "#/components/schemas/Report"},
      "content": {"type": "array", "items": {"anyOf": [
        {"type": "object", "required": ["type", "thinking", "signature"], "properties": {"type": {"const": "thinking"},
          "thinking": {"type": "string", "minLength": 1}, "signature": {"const": ""}}},
        {"type": "object", "required": ["type", "text"], "properties": {"type": {"const": "text"}, "text": {"type": "string"}}},
        {"type": "object", "required": ["type", "id", "name", "input"], "properties": {"type": {"const": "tool_use"},
          "id": {"type": "string"}, "name": {"type": "string"}, "input": {"type": "object"}}}]}},
      "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
      "stop_sequence": {"type": ["string", "null"]},
      "usage": {"type": "object", "required": ["input_tokens", "output_tokens"], "properties": {
        "input_tokens": {"type": "integer", "minimum": 0}, "cache_creation_input_tokens": {"type": "integer", "minimum": 0},
        "cache_read_input_tokens": {"type": "integer", "minimum": 0}, "output_tokens": {"type": "integer", "minimum": 0}}}}},
  "TokenCount": {"type": "object", "required": ["input_tokens"], "properties": {
    "input_tokens": {"type": "integer", "minimum": 0}}},
  "Response": {"type": "object", "required": ["id", "object", "created_at", "status", "error", "incomplete_details", "model",
      "output", "usage", "aludel", "parallel_tool_calls", "tool_choice", "tools", "text"],
    "properties": {"id": {"type": "string"}, "object": {"const": "response"}, "created_at": {"type": "integer"},
      "status": {"enum": ["completed", "incomplete"]}, "error": {"type": "null"}, "model": {"type": "string"},
      "incomplete_details": {"type": ["object", "null"], "properties": {"reason": {"const": "max_output_tokens"}}},
      "aludel": {"$ref": "#/components/schemas/Report"},
      "output": {"type": "array", "items": {"anyOf": [
        {"type": "object", "required": ["id", "type", "status", "summary", "content"], "properties": {
          "id": {"type": "string"}, "type": {"const": "reasoning"}, "status": {"enum": ["completed", "incomplete"]},
          "summary": {"type": "array", "maxItems": 0}, "content": {"type": "array", "items": {"type": "object",
            "required": ["type", "text"], "properties": {"type": {"const": "reasoning_text"}, "text": {"type": "string"}}}}}},
        {"type": "object", "required": ["id", "type", "status", "role", "content"], "properties": {"id": {"type": "string"},
          "type": {"const": "message"}, "status": {"enum": ["completed", "incomplete"]}, "role": {"const": "assistant"},
          "content": {"type": "array", "items": {"type": "object", "required": ["type", "text", "annotations"], "properties": {
            "type": {"const": "output_text"}, "text": {"type": "string"}, "annotations": {"type": "array"}}}}}},
        {"type": "object", "required": ["id", "type", "status", "call_id", "name", "arguments"], "properties": {
          "id": {"type": "string"}, "type": {"const": "function_call"}, "status": {"enum": ["completed", "incomplete"]},
          "call_id": {"type": "string"}, "name": {"type": "string"}, "arguments": {"type": "string"}}}]}},
      "usage": {"type": "object", "required": ["input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details",
          "total_tokens"], "properties": {
        "input_tokens": {"type": "integer", "minimum": 1}, "output_tokens": {"type": "integer", "minimum": 0},
        "total_tokens": {"type": "integer", "minimum": 1},
        "input_tokens_details": {"type": "object", "required": ["cached_tokens"],
          "properties": {"cached_tokens": {"type": "integer", "minimum": 0}}},
        "output_tokens_details": {"type": "object", "required": ["reasoning_tokens"],
          "properties": {"reasoning_tokens": {"type": "integer", "minimum": 0}}}}}}},
  "Deleted": {"type": "object", "required": ["id", "object", "deleted"], "properties": {"id": {"type": "string"},
    "object": {"const": "response"}, "deleted": {"const": true}}},
  "Model": {"type": "object", "required": ["id", "object", "created", "owned_by", "root", "parent", "aludel"], "properties": {
    "id": {"type": "string"}, "object": {"const": "model"}, "created": {"type": "integer"}, "owned_by": {"type": "string"},
    "max_model_len": {"type": "integer", "minimum": 1}, "root": {"type": "string"}, "parent": {"type": "null"},
    "aludel": {"type": "object", "required": ["formats"],
      "properties": {"formats": {"type": "array", "items": {"type": "string"}}}}}},
  "Models": {"type": "object", "required": ["object", "data"], "properties": {"object": {"const": "list"},
    "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
  "Tokens": {"type": "object", "required": ["count", "max_model_len", "tokens"], "properties": {
    "count": {"type": "integer", "minimum": 0}, "max_model_len": {"type": "integer", "minimum": 0},
    "tokens": {"$ref": "#/components/schemas/TokenIds"}, "token_strs": {"type": "array", "items": {"type": "string"}}}},
  "Text": {"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
  "Status": {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}},
  "Readiness": {"type": "object", "required": ["status", "models"], "properties": {
    "status": {"enum": ["ready", "not ready", "draining", "loading"]},
    "models": {"type": "object", "additionalProperties": {"type": "string"}}}},
  "Version": {"type": "object", "required": ["version"], "properties": {"version": {"type": "string"}}},
  "Load": {"type": "object", "required": ["server_load", "models"], "properties": {
    "server_load": {"type": "integer", "minimum": 0}, "models": {"type": "object", "additionalProperties": {
      "type": "object", "required": ["running", "waiting"], "properties": {
        "running": {"type": "integer", "minimum": 0}, "waiting": {"type": "integer", "minimum": 0}}}}}},
  "ServerInfo": {"type": "object", "required": ["version", "draining", "models"], "properties": {
    "version": {"type": "string"}, "draining": {"type": "boolean"}, "models": {"type": "object"}}},
  "Routing": {"type": "object", "required": ["model", "prompt_tokens", "key_tokens", "first", "second", "chosen", "reason",
      "targets"], "properties": {
    "model": {"type": "string"}, "prompt_tokens": {"type": "integer", "minimum": 0},
    "key_tokens": {"type": "integer", "minimum": 0}, "first": {"type": ["string", "null"]},
    "second": {"type": ["string", "null"]}, "chosen": {"type": ["string", "null"]},
    "reason": {"enum": ["none", "first", "second", "cached", "spill", "least_pending", "round_robin"]},
    "targets": {"type": "array", "items": {"type": "object",
      "required": ["target", "standing", "weight", "requests", "report_age_s", "wait_s", "prefill_s", "cached_tokens",
        "cached_tokens_exact", "predicted_ttft_s"],
      "properties": {
        "target": {"type": "string"}, "standing": {"enum": ["ready", "spare", "out"]}, "weight": {"type": "number"},
        "requests": {"type": "integer"}, "report_age_s": {"type": ["number", "null"]},
        "wait_s": {"type": ["number", "null"]}, "prefill_s": {"type": ["number", "null"]}, "cached_tokens": {"type": "integer"},
        "cached_tokens_exact": {"type": "boolean"}, "predicted_ttft_s": {"type": ["number", "null"]}}}}}}
})json";

}  // namespace aludel
