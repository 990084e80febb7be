"""Say why tests of other servers do not apply to ours.

A failed test does not apply if a path that it needs is not served, if a field of its request is
refused by name (docs/server.md lists them), or if it is about something that only its own server
has. Everything else that fails is a failure. In each table the first pattern that matches counts.
"""

from __future__ import annotations

IN_PROCESS = "vLLM's own code, in one process"

# of llama.cpp's class of a server: options that we have no counterpart of
LLAMA_OPTIONS = {
    "lora_files": "adapters are not served",
    "slot_save_path": "slots are not saved to files",
    "enable_ctx_shift": "a context is never shifted: what does not fit is refused",
    "sleep_idle_seconds": "idle models are unloaded for others only",
    "ui_mcp_proxy": "no proxy of tools",
    "server_tools": "no tools of the server's own",
    "gcp_compat": "no interface of that cloud",
    "chat_template": "templates are the model's",
}
# what a model of llama.cpp's tests is served for, as ours are not
LLAMA_USES = {
    "server_embeddings": "embeddings of pictures are not served",
    "pooling": "a text has one embedding: rows of its tokens are not served",
}
# of vLLM's
VLLM_OPTIONS = {
    "--limit-mm-per-prompt": "needs a model that sees pictures and writes about them",
    "--root-path": "a proxy's prefix is the proxy's to strip",
    "--return-tokens-as-token-ids": "tokens are shown as texts",
    "--enable-force-include-usage": "usage is sent where it is requested",
    "--watermark-config": "texts are not watermarked",
}

# paths that a test is answered 404 or 405 at
UNSERVED_PATHS = {
    "/completion": "llama.cpp's own /completion is not served: /v1/completions is",
    "/infill": "infilling is not served",
    "/apply-template": "the template's text is not served; /tokenize takes messages",
    "/chat/completions/input_tokens": "/tokenize counts the tokens of messages",
    "/invocations": "no interface of that cloud",
    "/v2/embed": "Cohere's interface for embeddings is not served: /v1/embeddings is",
    "/pooling": "vLLM's own path of pooled rows is not served: /v1/embeddings is",
    "/tokenizer_info": "the settings of the tokenizer are not served",
}

# what a 400 says, where a request's field or its value is refused by name
REFUSALS = {
    r'"([\w.]+) is no field that is served here': r"`\1` is refused by name",
    r'"([\w.]+) is served as .* only': r"`\1` is refused by name",
    r"this model reads text only": "the model served here reads text only",
    r"url of the kind 'file'": "files of the server's machine are never opened",
    r"nothing is fetched": "addresses are fetched where the operator wants it (--fetch-images)",
    r"holds something that is no token": "tokens and texts are not mixed in one text",
    r"generates and ranks nothing": "a model for embeddings ranks no texts",
    r"pairs are not scored": "pairs are not scored by a path of their own: /v1/rerank ranks texts",
    r"nothing is computed later": "responses are not computed in the background",
}

# files by name: a pattern, and the reason why none of their tests applies
FILES = {
    "test_serving_": IN_PROCESS,
    "test_batched": "vLLM's own path for several chats in a request",
    "tensorizer": "a format of weights that is not read",
    "test_mcp_tools": "no tools of the server's own",
    "test_parsable_context.py": "no tools of the server's own",
    "test_harmony": "needs gpt-oss, whose format tests/server/test_formats.py tries",
    "to_harmony": "needs gpt-oss, whose format tests/server/test_formats.py tries",
    "decisions": "vLLM's own decisions",
    "schema": "made from vLLM's own description of its interface",
    "lmeval": "lm-evaluation-harness is a client: make test-clients",
    "prompt_embeds": "embeddings as prompts are not served",
    "_vlm": "needs a model that sees pictures and writes about them",
    "online_long_text": "a text that is longer than the model's is refused, not computed in parts",
    "late_interaction": "a text has one embedding: rows of its tokens are not served",
    "resolvers": "adapters are not served",
    "test_router": "models are named one by one (--also), not by a folder",
}

_WRITTEN = "what another model writes"
_ALONE = "a stream's last event has the reason alone, as OpenAI's"
# tests by name, whose reason is no refusal: a pattern of a test's id, and the reason
TESTS = {
    "test_server_multiple_addresses": "one address a server",
    "test_server_props": "paths of this machine are not told",
    "test_server_slots": "slots are always listed",
    "test_no_ui": "the page is always served",
    "test_server_model_aliases_and_tags": "one name a model, no tags",
    "context_size_exceeded": "the code is OpenAI's: context_length_exceeded",
    r"test_chat_completion\[": "counts the tokens of another model's tokenizer",
    "with_openai_library": "system_fingerprint is a build of llama.cpp's",
    r"test_invalid_chat_completion_req\[messages7\]": "two messages in a row of the assistant are "
    "the template's affair",
    "template_assistant_prefill": "the template's text is not served",
    "tool_result_with_image": "a text model is told of a tool's picture by a line",
    "test_rerank_usage": "counts of another model's tokens",
    r"test_embedding_mixed_input\[-False\]": "an empty text is refused, as OpenAI does",
    "test_embedding_error_prompt_too_long": "the words of an error are ours",
    "pooling/.*test_basic": "/tokenize is for models that generate",
    "rerank_api_max_model_len": "the words of an error are ours",
    "test_negative_token_ids": "the words of an error are ours",
    "test_params_not_supported": "the words of an error are ours",
    "test_vision_completion": "pictures are shown in chats: text completions are texts",
    "test_metrics_embedding": "metrics have vLLM's names",
    "anthropic_empty_messages": "no messages are refused, as Anthropic does",
    "test_cors": "pages of this machine may ask, others need --cors-origin; 204 to OPTIONS",
    "test_stream_resume": "streams are not resumed",
    "test_stream_stop": "streams are not resumed",
    "test_correct_api_key": "/completions is OpenAI's, not llama.cpp's own",
    "static_assets": "the page is one document",
    "test_metrics_disabled": "metrics are always served",
    "test_mcp_no_proxy": "no proxy of tools",
    "lora": "adapters are not served",
    "out_of_vocab_token_ids": "the words of an error are ours",
    "test_store": "the words of an error are ours",
    "test_cancel_completed": "responses are not computed in the background",
    r"emoji\[False\]": "token_ids are sent where requested",
    r"emoji\[None\]": "token_ids are sent where requested",
    r"emoji\[True\]": "compares with vLLM's own tokenizer",
    "streaming_cache_usage": "what the test before read of the template is cached",
    "test_completion_streaming": "where another model's text ends",
    "more_than_one_prompt_logprobs": "counts of another model's tokens",
    "single_chat_session": "counts of another model's tokens",
    "test_parallel_streaming": _ALONE,  # where each token came alone, too
    "test_chat_streaming": _ALONE,
    "test_chat_completion_stream_options": _ALONE,
    "metrics_on_final_usage_chunk": "a single token has no rate: null, not 0",
    "supports_multimodal_capability": "/v1/models has OpenAI's list alone",
    "test_clear_and_restore": "reads the log of llama.cpp's own caches",
    "custom_role": "roles are those of OpenAI",
    "multiple_non_integer_keys": "an error names the first fault",
    "tokenize_with_bos": "the model served here has no token of beginning",
    **dict.fromkeys(
        (
            "outputs_json_chat", "outputs_regex_chat", "complex_message", "test_simple_input",
            "test_instructions", "test_chat$", "previous_response_id", "same_prev_id",
            "expected_arguments", "forced_tool_choice", "test_named_tool_use",
            "anthropic_tool_call",
        ),
        _WRITTEN,
    ),
}  # fmt: skip

# what a failed test said that no refusal explains: a pattern, and the reason
MESSAGES = {
    r"models/templates/.*does not exist": "the file is llama.cpp's, in its repository",
    "cached_tokens": "counts the tokens of another model's tokenizer",
    r"ChoiceDelta\(audio=None, content=''": "a stream begins with OpenAI's empty content, not with "
    "null",
    "prompt_logprobs is -1": "logprobs of the whole vocabulary are not served, but of 20",
    "top_logprobs is -1": "logprobs of the whole vocabulary are not served, but of 20",
    "no attribute 'prompt_logprobs'": "prompt_logprobs are sent where they are requested",
    "no attribute 'root'": "vLLM's own fields of a model",
    "no attribute 'token_ids'": "token_ids are sent where requested",
    r"fixture 'hf_\w+' not found": "compares with transformers, in one process",
    "arg 2 must be a type": IN_PROCESS,
    "DID NOT RAISE ValueError": IN_PROCESS,
}

TABLES = (LLAMA_OPTIONS, LLAMA_USES, VLLM_OPTIONS, UNSERVED_PATHS, REFUSALS, FILES, TESTS, MESSAGES)
