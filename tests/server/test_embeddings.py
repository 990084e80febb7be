"""Embeddings and ranks of one model, or of one among several, for many clients."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Any

import httpx
import numpy as np
import pytest
from fakes.embedders import LetterEmbedder
from fakes.server import MODEL, Running, engine_on_tables, running, until

from duodec.backends.loaded import normalised
from duodec.errors import ModelUnreadable
from duodec.models.metadata import Use
from duodec.server.models.embedding_thread import EmbeddingThread
from duodec.server.models.registry import Source

TEXTS = ["why is the sky blue", "hello", "日本 é 🙂"]
RERANKS = ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking", "/v2/rerank")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(LetterEmbedder()) as found:
        yield found


@pytest.fixture(scope="module")
def ranker() -> Iterator[Running]:
    with running(LetterEmbedder(ranks=True, num_dims=1)) as found:
        yield found


def rows_of(response: httpx.Response) -> list[list[float]]:
    assert response.status_code == 200, response.text
    return [one["embedding"] for one in response.json()["data"]]


def message(response: httpx.Response, status: int = 400) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    return str(error if isinstance(error, str) else error["message"])


def expected(*texts: str, embedder: LetterEmbedder | None = None) -> np.ndarray[Any, Any]:
    own = embedder or LetterEmbedder()
    return normalised(np.concatenate([own.rows([own.tokens_of(text)]) for text in texts]))


def test_texts_and_tokens_have_the_same_embeddings(server: Running) -> None:
    own = LetterEmbedder()
    tokens = [own.tokens_of(text) for text in TEXTS]
    for given in (TEXTS, tokens):
        told = server.post("/v1/embeddings", {"model": "any", "input": given})
        np.testing.assert_array_equal(np.array(rows_of(told), np.float32), expected(*TEXTS))
    for one in (TEXTS[0], tokens[0]):
        told = server.post("/v1/embeddings", {"input": one})
        np.testing.assert_array_equal(np.array(rows_of(told), np.float32), expected(TEXTS[0]))
    body = server.post("/embeddings", {"input": TEXTS}).json()
    num_tokens = sum(map(len, tokens))
    assert body["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert [one["index"] for one in body["data"]] == [0, 1, 2]
    assert (body["object"], body["model"]) == ("list", MODEL)


def test_base64_is_the_same_numbers(server: Running) -> None:
    floats = rows_of(server.post("/v1/embeddings", {"input": TEXTS}))
    told = server.post("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"}).json()
    for one, numbers in zip(told["data"], floats, strict=True):
        found = np.frombuffer(base64.b64decode(one["embedding"]), "<f4")
        np.testing.assert_array_equal(found, np.array(numbers, np.float32))


def test_the_openai_library_reads_them(server: Running) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        told = client.embeddings.create(model=MODEL, input=TEXTS)  # it wants base64
        found = np.array([one.embedding for one in told.data], np.float32)
    np.testing.assert_array_equal(found, expected(*TEXTS))


@pytest.mark.parametrize(
    ("fields", "words", "param"),
    [
        ({"input": []}, "is empty", "input"),
        ({"input": ""}, "is empty", "input"),
        ({"input": ["a", ""]}, "input[1] is empty", "input[1]"),
        ({"input": [[], [3]]}, "input[0] is empty", "input[0]"),
        ({"input": None}, "missing", "input"),
        ({"input": 3}, "is a number", "input"),
        ({"input": {"text": "a"}}, "is an object", "input"),
        ({"input": ["a", None]}, "input[1] is null", "input[1]"),
        ({"input": ["a", [1, "b"]]}, "input[1] holds something", "input[1]"),
        ({"input": [1, 2.5]}, "no token", "input"),
        ({"input": [True, False]}, "input[0] is a boolean", "input[0]"),
        ({"input": [-1]}, "the token -1; use 0 to 1114111", "input"),
        ({"input": [1 << 40]}, "the token 1099511627776", "input"),
        ({"input": ["a"] * 2049}, "has 2049 texts; use 2048", "input"),
        ({"input": "x" * 63}, "65 tokens, and 'tables' takes texts of 64", "input"),
        ({"input": ["a", "x" * 70]}, "input[1]: 72 tokens", "input"),
        ({"input": "a", "dimensions": 17}, "has 16", "dimensions"),
        ({"input": "a", "dimensions": 8}, "not known to be trained", "dimensions"),
        ({"input": "a", "dimensions": 0}, "use 1 or more", "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "use float, base64", "encoding_format"),
        ({"input": "a", "inptu": 1}, "did you mean input", "inptu"),
    ],
)
def test_what_cannot_be_served_is_refused(
    server: Running, fields: dict[str, Any], words: str, param: str
) -> None:
    told = server.post("/v1/embeddings", fields)
    assert words in message(told)
    assert told.json()["error"]["param"] == param


def test_a_text_as_long_as_the_context_is_served(server: Running) -> None:
    told = server.post("/v1/embeddings", {"input": "x" * 62, "dimensions": 16, "user": "me"})
    assert told.json()["usage"]["prompt_tokens"] == 64


def test_shorter_embeddings_have_length_one_where_the_model_is_trained_for_them() -> None:
    own = LetterEmbedder(is_matryoshka=True)
    whole = own.rows([own.tokens_of("hello")])
    with running(own) as server:
        for path, told in (("/v1/embeddings", "data"), ("/api/embed", "embeddings")):
            (one,) = server.post(path, {"input": "hello", "dimensions": 5}).json()[told]
            row = one["embedding"] if told == "data" else one
            np.testing.assert_array_equal(np.float32(row), normalised(whole[:, :5])[0])


# --- ranks


@pytest.mark.parametrize("path", RERANKS)
def test_documents_are_ranked(ranker: Running, path: str) -> None:
    documents = ["xyz", {"text": "hello"}, "he", "xyz!", "hell"]
    body = {"model": "any", "query": "hello", "documents": documents}
    told = ranker.post(path, body).json()
    assert [(one["index"], one["relevance_score"]) for one in told["results"]] == [
        (1, 5.0), (4, 4.0), (2, 2.0), (0, 0.0), (3, 0.0),
    ]  # fmt: skip
    own = LetterEmbedder()
    texts = ["xyz", "hello", "he", "xyz!", "hell"]
    num_tokens = sum(len(own.pair_tokens("hello", text)) for text in texts)
    assert told["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    two = ranker.post(path, {**body, "top_n": 2, "return_documents": True}).json()["results"]
    assert [one["document"] for one in two] == [{"text": "hello"}, {"text": "hell"}]
    assert len(ranker.post(path, {**body, "top_n": 99}).json()["results"]) == 5


def test_texts_are_ranked_as_text_embeddings_inference_does(ranker: Running) -> None:
    body = {"query": "hello", "texts": ["xyz", "hello"], "return_text": True}
    assert ranker.post("/rerank", body).json() == [
        {"index": 1, "score": 5.0, "text": "hello"}, {"index": 0, "score": 0.0, "text": "xyz"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"documents": ["a"]}, "query is missing"),
        ({"query": "a"}, "send either documents or texts"),
        ({"query": "a", "documents": ["a"], "texts": ["a"]}, "send either documents or texts"),
        ({"query": "a", "documents": []}, "documents is empty"),
        ({"query": "a", "texts": []}, "texts is empty"),
        ({"query": "a", "documents": "b"}, "documents is a string"),
        ({"query": "a", "documents": ["b", 3]}, "documents[1] is a number"),
        ({"query": "a", "documents": ["b"] * 2049}, "has 2049 texts"),
        ({"query": "a", "documents": ["b"], "top_n": 0}, "use 1 or more"),
        ({"query": "a" * 40, "documents": ["b", "c" * 40]}, "documents[1] together: 83 tokens"),
        ({"query": "a" * 5000, "documents": ["b"]}, "query: 5002 tokens"),
        ({"query": "a", "documents": ["b"], "truncate": True}, "truncate is served as false"),
    ],
)
def test_what_cannot_be_ranked_is_refused(
    ranker: Running, fields: dict[str, Any], words: str
) -> None:
    assert words in message(ranker.post("/v1/rerank", fields))


# --- Ollama


def test_ollamas_paths(server: Running) -> None:
    told = server.post("/api/embed", {"model": MODEL, "input": TEXTS, "keep_alive": "5m"}).json()
    found = np.array(told["embeddings"], np.float32)
    np.testing.assert_array_equal(found, expected(*TEXTS))
    assert told["model"] == f"{MODEL}:latest"
    assert told["prompt_eval_count"] == sum(len(LetterEmbedder().tokens_of(t)) for t in TEXTS)
    assert told["total_duration"] > 0
    (one,) = server.post("/api/embed", {"model": MODEL, "input": "hello"}).json()["embeddings"]
    np.testing.assert_array_equal(np.float32(one), expected("hello")[0])
    old = server.post("/api/embeddings", {"model": MODEL, "prompt": "hello"}).json()
    own = LetterEmbedder()
    assert old == {"embedding": own.rows([own.tokens_of("hello")])[0].tolist()}  # not normalised
    for body in ({"model": MODEL}, {"model": MODEL, "input": ""}, {"model": MODEL, "input": []}):
        assert server.post("/api/embed", body).json()["embeddings"] == []  # it is loaded
    assert server.post("/api/embeddings", {"model": MODEL}).json() == {"embedding": []}


def test_ollamas_texts_are_cut_unless_that_is_refused(server: Running) -> None:
    long = "x" * 500
    told = server.post("/api/embed", {"model": MODEL, "input": [long]}).json()
    assert told["prompt_eval_count"] == 64
    np.testing.assert_array_equal(np.float32(told["embeddings"][0]), expected("x" * 62)[0])
    refused = server.post("/api/embed", {"model": MODEL, "input": [long], "truncate": False})
    assert "502 tokens" in message(refused)
    assert server.post("/api/embeddings", {"model": MODEL, "prompt": long}).status_code == 200


def test_ollamas_library_reads_them(server: Running) -> None:
    ollama = pytest.importorskip("ollama")
    with ollama.Client(host=server.url) as client:
        found = client.embed(MODEL, TEXTS).embeddings
        assert client.embeddings(MODEL, "hello").embedding
        assert client.show(MODEL).capabilities == ["embedding"]
    np.testing.assert_array_equal(np.array(found, np.float32), expected(*TEXTS))


# --- what a model is for


def test_a_model_says_what_it_is_for(server: Running, ranker: Running) -> None:
    for one, use in ((server, "embedding"), (ranker, "rerank")):
        (model,) = one.http.get("/v1/models").json()["data"]
        assert model["capabilities"] == [use]
        assert model["max_model_len"] == 64
        props = one.http.get("/props").json()
        assert props["capabilities"] == [use]
        assert props["n_embd"] == (16 if use == "embedding" else None)
        assert len(one.http.get("/slots").json()) == 4
        assert one.http.get("/api/ps").json()["models"][0]["context_length"] == 64


def test_what_a_model_is_not_for_is_refused_with_the_reason(
    server: Running, ranker: Running
) -> None:
    ranks = {"query": "a", "documents": ["b"]}
    assert "makes embeddings" in message(server.post("/v1/rerank", ranks))
    for path in ("/v1/embeddings", "/api/embed"):
        assert "ranks texts" in message(ranker.post(path, {"input": "a"}))
    for one in (server, ranker):
        for told in (
            one.chat(), one.complete(), one.post("/v1/responses", {"input": "a"}),
            one.post("/tokenize", {"content": "a"}), one.post("/api/generate", {"prompt": "a"}),
        ):  # fmt: skip
            assert "'tables'" in message(told)
        assert one.http.get("/health").status_code == 200


def test_keys_are_checked() -> None:
    with running(LetterEmbedder(), api_keys=("key",)) as server:
        for path in ("/v1/embeddings", "/embeddings", "/api/embed", "/api/embeddings", *RERANKS):
            assert server.post(path, {"input": "a"}).status_code == 401, path


# --- company


def test_texts_of_several_requests_share_a_forward_pass_and_a_long_list_keeps_nobody() -> None:
    own = LetterEmbedder(seconds=0.03, num_pass=40, most_texts=4)
    with running(own) as server, ThreadPoolExecutor(3) as pool:
        many = [f"text {i}" for i in range(120)]
        long = pool.submit(server.post, "/v1/embeddings", {"input": many})
        until(lambda: server.service.num_open == 1 and own.num_forwards > 3)
        begin = own.num_forwards
        short = rows_of(server.post("/v1/embeddings", {"input": "hello"}))
        assert own.num_forwards - begin <= 4, "it waits for the pass in work, not for the list"
        assert not long.done()
        np.testing.assert_array_equal(np.float32(short), expected("hello"))
        found = np.array(rows_of(long.result()), np.float32)
        np.testing.assert_array_equal(found, expected(*many))
    assert max(map(len, own.passes)) > 1, "texts share passes"


def test_what_nobody_waits_for_is_not_computed() -> None:
    own = LetterEmbedder(seconds=0.05, num_pass=1)
    with running(own) as server:
        with pytest.raises(httpx.ReadTimeout):
            server.post("/v1/embeddings", {"input": ["a"] * 500}, timeout=0.4)
        until(lambda: server.service.num_open == 0)
        begin = own.num_forwards
        sleep(0.3)
        assert own.num_forwards <= begin + 1
        until(lambda: server.service.models.loaded[0].num_leases == 0)
        assert server.counter("duodec:request_success_total") == 1  # as aborted
        assert rows_of(server.post("/v1/embeddings", {"input": "a"}))


def test_requests_have_a_time_and_a_place() -> None:
    with running(LetterEmbedder(seconds=0.05, num_pass=1), timeout_s=0.3) as server:
        assert "0.3 s" in message(server.post("/v1/embeddings", {"input": ["a"] * 500}), 408)
    own = LetterEmbedder(seconds=0.05, num_pass=1)
    with running(own, num_slots=1, num_queued=1) as server, ThreadPoolExecutor(8) as pool:
        body = {"input": ["a"] * 10}
        each = [pool.submit(server.post, "/v1/embeddings", body) for _ in range(8)]
        statuses = sorted(one.result().status_code for one in each)
    assert statuses[0] == 200
    assert statuses[-1] == 429


def test_a_pass_that_fails_ends_its_requests_and_no_other() -> None:
    own = LetterEmbedder()
    with running(own) as server:

        def fail() -> None:
            raise RuntimeError("broken")

        own.on_pass = fail
        assert "mistake of this server" in message(
            server.post("/v1/embeddings", {"input": "a"}), 500
        )
        own.on_pass = lambda: None
        assert rows_of(server.post("/v1/embeddings", {"input": "a"}))


def test_a_server_that_ends_lets_requests_come_to_their_end() -> None:
    own = LetterEmbedder(seconds=0.05, num_pass=1)
    with running(own, grace_s=20) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, "/v1/embeddings", {"input": ["a"] * 10})
        until(lambda: server.service.num_open == 1)
        server.server.should_exit = True
        assert asked.result().status_code == 200


def test_one_more_model_of_a_server() -> None:
    own = LetterEmbedder()
    sources = {
        MODEL: Source(lambda taken: engine_on_tables()),
        "embed": Source(lambda taken: own, use=lambda: "embedding"),
        "rank": Source(lambda taken: LetterEmbedder(ranks=True, num_dims=1), use=lambda: "rerank"),
    }
    with running(is_loaded=False, sources=sources, num_models=2) as server:
        server.service.start()
        told = server.post("/v1/embeddings", {"model": "embed", "input": TEXTS})
        np.testing.assert_array_equal(np.array(rows_of(told), np.float32), expected(*TEXTS))
        assert told.json()["model"] == "embed"
        assert server.chat().status_code == 200
        words = message(server.post("/v1/embeddings", {"input": "a", "model": MODEL}))
        assert f"'{MODEL}' generates text" in words
        assert server.chat(model="embed").status_code == 400
        assert server.post("/v1/embeddings", {"input": "a", "model": "no"}).status_code == 404
        ranks = {"model": "rank", "query": "a", "documents": ["b"]}
        assert server.post("/v1/rerank", ranks).status_code == 200  # one made space
        states = {
            m["id"]: m["status"]["value"] for m in server.http.get("/v1/models").json()["data"]
        }
        assert sorted(states.values()) == ["loaded", "loaded", "unloaded"]
    assert own.is_closed


@pytest.mark.parametrize(
    "given",
    [
        {"prompt_string": "ab"},
        {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        [{"prompt_string": "ab"}],
    ],
)
def test_texts_in_objects_are_read_as_llama_cpps_server_does(given: Any) -> None:
    with running(LetterEmbedder()) as server:
        told = server.post("/v1/embeddings", {"input": given})
        np.testing.assert_array_equal(np.array(rows_of(told), np.float32), expected("ab"))
        for wrong in ({"content": "ab"}, {"content": [{"type": "image_url"}]}, {},
                      {"prompt_string": "a", "multimodal_data": ["AAAA"]}):  # fmt: skip
            assert server.post("/v1/embeddings", {"input": wrong}).status_code == 400


def test_a_request_without_a_model_has_the_first_that_does_what_it_wants() -> None:
    def broken() -> Use:
        raise ModelUnreadable("damaged")

    text = Source(lambda taken: engine_on_tables())
    embeds = Source(lambda taken: LetterEmbedder(), use=lambda: "embedding")
    other = Source(lambda taken: LetterEmbedder(), use=broken)
    ranks = Source(lambda taken: LetterEmbedder(ranks=True, num_dims=1), use=lambda: "rerank")
    for sources, names in (
        ({MODEL: embeds, "broken": other, "text": text, "rank": ranks}, ("text", MODEL)),
        ({MODEL: text, "rank": ranks, "embed": embeds, "broken": other}, (MODEL, "embed")),
    ):
        with running(is_loaded=False, sources=sources, num_models=3) as server:
            server.service.start()
            assert server.chat(model=None).json()["model"] == names[0]
            for path in ("/v1/embeddings", "/api/embed"):
                told = server.post(path, {"input": "a"}).json()
                assert told["model"].removesuffix(":latest") == names[1]
            told = server.post("/v1/rerank", {"query": "a", "documents": ["b"]}).json()
            assert told["model"] == "rank"
    with running(is_loaded=False, sources={MODEL: text, "broken": other}) as server:
        server.service.start()
        words = message(server.post("/v1/embeddings", {"input": "a"}))
        assert f"'{MODEL}' generates text" in words


def test_passes_are_short_while_other_models_compute() -> None:
    for is_crowded, most in ((True, 64), (False, 320)):
        own = LetterEmbedder(num_pass=320, most_texts=100)
        thread = EmbeddingThread(own, num_slots=1, num_queued=1, is_crowded=lambda c=is_crowded: c)
        job = thread.submit([np.full(32, 65, np.int32)] * 20, "")
        job.future.result(10)
        thread.close()
        assert max(map(sum, own.passes)) == most


def test_owners_take_turns_and_so_do_the_requests_of_one() -> None:
    own = LetterEmbedder(num_pass=1, seconds=0.02)
    thread = EmbeddingThread(own, num_slots=9, num_queued=9)
    first = thread.submit([np.full(5, 65, np.int32)], "one")  # while it is computed, others come
    jobs = [thread.submit([np.full(size, 65, np.int32)] * 4, owner)
            for size, owner in ((10, "one"), (11, "one"), (20, "two"))]  # fmt: skip
    for job in (first, *jobs):
        job.future.result(10)
    thread.close()
    sizes = [size for (size,) in own.passes if size > 5]
    assert sizes[:8].count(20) == 4, "each key has half of the passes"
    assert sorted(sizes[:8]) == [10, 10, 11, 11, 20, 20, 20, 20]


def test_the_first_model_generates_while_another_embeds() -> None:
    """The memory of one, or its failure, is no other's."""
    own = LetterEmbedder()
    sources = {MODEL: Source(lambda taken: engine_on_tables()), "embed": Source(lambda taken: own)}
    with running(is_loaded=False, sources=sources, num_models=2) as server:
        server.service.start()
        plain = server.chat(max_tokens=60).json()["choices"]
        with ThreadPoolExecutor(2) as pool:
            body = {"model": "embed", "input": TEXTS * 50}
            asked = pool.submit(server.post, "/v1/embeddings", body)
            assert server.chat(max_tokens=60).json()["choices"] == plain
            found = np.array(rows_of(asked.result()), np.float32)
        np.testing.assert_array_equal(found, np.concatenate([expected(*TEXTS)] * 50))
