"""Say why tests of other servers do not apply to ours.

A failed test does not apply if a path that it needs is not served, if a field of its request is
refused by name (docs/server.md lists them), or if it is about something that only its own server
has. Everything else that fails is a failure.
"""

from __future__ import annotations

IN_PROCESS = "vLLM's own code, in one process"

# of llama.cpp's class of a server: options that we have no counterpart of
LLAMA_OPTIONS = {
    "server_embeddings": "embeddings are not served",
    "server_reranking": "reranking is not served",
    "lora_files": "adapters are not served",
    "mmproj_url": "pictures are not served",
    "models_dir": "models are named one by one (--also), not by a folder",
    "models_preset": "models are named one by one (--also), not by a preset",
    "slot_save_path": "slots are not saved to files",
    "enable_ctx_shift": "a context is never shifted: what does not fit is refused",
    "sleep_idle_seconds": "idle models are unloaded for others only",
    "ui_mcp_proxy": "no proxy of tools",
    "server_tools": "no tools of the server's own",
    "mcp_servers_config": "no tools of the server's own",
    "mcp_servers_json": "no tools of the server's own",
    "gcp_compat": "no interface of that cloud",
    "model_draft": "drafts are another matter here: tests/methods",
    "spec_type": "drafts are another matter here: tests/methods",
    "chat_template": "templates are the model's",
    "chat_template_file": "the file is llama.cpp's, in its repository",
}
# of vLLM's
VLLM_OPTIONS = {
    "--enable-prompt-embeds": "embeddings as prompts are not served",
    "--mm-processor-kwargs": "pictures are not served",
    "--limit-mm-per-prompt": "pictures are not served",
    "--root-path": "a proxy's prefix is the proxy's to strip",
    "--chat-template": "the file is vLLM's, in its repository",
    "--return-tokens-as-token-ids": "tokens are shown as texts",
    "--enable-force-include-usage": "usage is sent where it is requested",
}

# paths that a test is answered 404 or 405 at
UNSERVED_PATHS = {
    "/completion": "llama.cpp's own /completion is not served: /v1/completions is",
    "/completions": "llama.cpp's own /completion is not served: /v1/completions is",
    "/infill": "infilling is by `suffix` of /v1/completions",
    "/embedding": "embeddings are not served",
    "/embeddings": "embeddings are not served",
    "/v1/embeddings": "embeddings are not served",
    "/rerank": "reranking is not served",
    "/v1/rerank": "reranking is not served",
    "/apply-template": "the template's text is not served; /tokenize takes messages",
    "/chat/completions": "paths begin with /v1",
    "/v1/chat/completions/input_tokens": "/tokenize counts the tokens of messages",
    "/v1/messages/input_tokens": "/v1/messages/count_tokens does",
    "/lora-adapters": "adapters are not served",
    "/tools": "no tools of the server's own",
    "/models": "paths begin with /v1",
    "/invocations": "no interface of that cloud",
    "/predict": "no interface of that cloud",
    "/index.html": "the page is at /",
    "/tokenizer_info": "the settings of the tokenizer are not served",
    "/v1/completions/render": "the template's text is not served",
    "/v1/chat/completions/render": "the template's text is not served",
}

# what a 400 says, where a request's field or its value is refused by name
REFUSALS = {
    r'"([\w.]+) is no field that is served here': r"`\1` is refused by name",
    r'"([\w.]+) is served as .* only': r"`\1` is refused by name",
    r"chat template has no tools": "the model served here has no tools in its template",
    r"this model reads text only": "pictures and sounds are not served",
    r"functions only are served": "tools are functions only",
    r"nothing is computed later": "responses are not computed in the background",
}

# files by name: a pattern, and the reason why none of their tests applies
FILES = {
    r"test_serving|_error\.py|harmony_utils|parsable_context_unit": IN_PROCESS,
    r"test_batched": "vLLM's own path for several chats in a request",
    r"tensorizer": "a format of weights that is not read",
    r"test_mcp_tools|test_parsable": "no tools of the server's own",
    r"harmony": "needs gpt-oss, whose format tests/server/test_formats.py tries",
    r"decisions": "vLLM's own decisions",
    r"schema": "made from vLLM's own description of its interface",
    r"lmeval": "lm-evaluation-harness is a client: make test-clients",
    r"logprob_token_ids": "logprob_token_ids are refused by name",
    r"prompt_embeds": "embeddings as prompts are not served",
    r"_vlm": "pictures are not served",
    r"test_router|test_vision|test_lora|test_rerank|test_embedding|test_slot_save|test_sleep|"
    r"test_mcp_servers|test_tools_builtin|test_infill|test_speculative|test_kv_keep|test_ctx_shift|"
    r"test_proxy|test_compat_gcp|resolvers": "a part of its server that we have no counterpart of",
}

# failures by what is known of them: a pattern of a test's id and of what it said, and the reason
FAILURES = {
    r"test_server_multiple_addresses": "one address a server",
    r"test_server_props.*model_path": "paths of this machine are not told",
    r"test_server_slots": "slots are always listed",
    r"test_no_ui": "the page is always served",
    r"test_server_model_aliases_and_tags": "one name a model, no tags",
    r"context_size_exceeded": "the code is OpenAI's: context_length_exceeded",
    r"cached_tokens": "counts the tokens of another model's tokenizer",
    r"'startswith'|with_openai_library": "system_fingerprint is a build of llama.cpp's",
    r"test_tool_call.*(GGUF|template_override)": "what models write that are not served here",
    r"non empty content delta|assert '' is None|ChoiceDelta\(audio=None, content=''": "a stream "
    "begins with OpenAI's empty content, not with null",
    r"test_invalid_chat_completion_req\[messages7\]": "two messages in a row of the assistant are "
    "the template's affair",
    r"token_count": "/tokenize counts the tokens of messages",
    r"with_multimodal_model": "pictures are not served",
    r"anthropic_empty_messages": "no messages are refused, as Anthropic does",
    r"thinking_with_reasoning_model": "the model served here does not reason",
    r"test_cors": "pages of this machine may ask, others need --cors-origin; 204 to OPTIONS",
    r"test_stream_(resume|stop)": "streams are not resumed",
    r"test_correct_api_key": "/completions is OpenAI's, not llama.cpp's own",
    r"static_assets": "the page is one document",
    r"test_metrics_disabled": "metrics are always served",
    r"lora": "adapters are not served",
    r"(prompt|top)_logprobs is -1": "logprobs of the whole vocabulary are not served, but of 20",
    r"no attribute 'prompt_logprobs'": "prompt_logprobs are sent where they are requested",
    r"out_of_vocab_token_ids|test_store": "the words of an error are ours",
    r"test_cancel_completed": "responses are not computed in the background",
    r"no attribute 'root'": "vLLM's own fields of a model",
    r"emoji\[(False|None)\]|no attribute 'token_ids'": "token_ids are sent where requested",
    r"emoji\[True\]": "compares with vLLM's own tokenizer",
    r"streaming_cache_usage": "what the test before read of the template is cached",
    r"test_completion_streaming": "where another model's text ends",
    r"reasoning_item|streaming_reasoning|test_function_tool_use|test_default_includes_reasoning": (
        "the model served here does not reason"
    ),
    r"more_than_one_prompt_logprobs|single_chat_session": "counts of another model's tokens",
    r"test_chat_streaming": "a stream's last event has the reason alone, as OpenAI's",
    r"custom_role": "roles are those of OpenAI",
    r"outputs_json_chat|outputs_regex_chat|complex_message|test_(simple_input|instructions|chat):|"
    r"previous_response_id|same_prev_id|expected_arguments|forced_tool_choice|test_named_tool_use|"
    r"anthropic_tool_call|anthropic_structured_output": "what another model writes",
    r"multiple_non_integer_keys": "an error names the first fault",
    r"arg 2 must be a type|DID NOT RAISE ValueError": IN_PROCESS,
    r"tokenize_with_bos": "the model served here has no token of beginning",
}
