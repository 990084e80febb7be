"""Hold a request while it is in the queue or in a slot: what it waits for, what it has sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from duodec.core.events import Delta, Finished, FinishReason
from duodec.core.prefix import common_prefix
from duodec.core.round import Stats
from duodec.core.sampling.logprobs import Logprob
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Query, Scores
from duodec.methods.method import Method
from duodec.methods.request import Loop, Need, Request, Score
from duodec.scheduler.outputs import Counts, Done, Output, Piece
from duodec.scheduler.slots import Slot


class ScheduledRequest:
    """Run a request with its method. ``on_output`` is called with `Piece`s and then with one `Done`
    or `Failed`, from the thread that steps the scheduler; after `abort` it is not called again.
    `abort` may be called from any thread."""

    slot: Slot  # set on admission
    loop: Loop

    def __init__(
        self,
        request: Request,
        method: Method,
        on_output: Callable[[Output], None],
        *,
        full: FinishReason = "length",
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        self.request = request
        self.method = method
        self.on_output = on_output
        self.full = full  # why the completion ends when its text is full
        self.should_stop = should_stop  # asked each round whether to end with what there is
        self.arrive_s = self.start_s = request.clock()
        self.submission = 0  # entries of one submission were submitted together
        self.counts = Counts()
        self.is_aborted = False
        self.is_over = False  # all output was sent
        self.need: Need | None = None  # what it waits for
        self.deadline_s = 0.0  # deadline of a `Wait`
        self.part: Tokens | None = None  # part of a long prompt in the next forward pass
        # Tokens per part of a prompt that has logprobs; None: all.
        self.most_scored: int | None = None
        self.num_computed = 0  # tokens of the prompt computed so far
        self.others: tuple[Slot, ...] = ()  # slots that a target copies from
        self.num_restarts = 0  # the drafter's restarts before this request
        self.first_s: float | None = None
        self.finish_s = self.arrive_s
        self._num_sent = 0  # logprobs that pieces have carried
        self._has_said_prompt = False

    def abort(self) -> None:
        """Abort the request: its slot is free within a round."""
        self.is_aborted = True

    # --- at the target

    def query(self) -> Query:
        """Return what the next forward pass scores for this request."""
        request, need = self.request, self.need
        assert isinstance(need, Score)
        query = request.query(need)
        if self.most_scored is not None:
            query = replace(query, draft=query.draft.within(self.most_scored, self.most_scored))
        if self.part is not None:
            query = Query(request.slot, self.part, sampler=request.sampler, shown=request.shown)
        cache = self.slot.cache.number
        if self.others and self.first_s is None:
            return replace(query, cache=cache, sources=tuple(own.number for own in self._sources()))
        return replace(query, cache=cache) if cache else query

    def is_long(self, num_chunk: int | None) -> bool:
        """Return whether more of its text is unread than one part of ``num_chunk`` tokens. If so,
        it is cut where the target's blocks end, since the target would read the rest of a block
        again. A prompt that has logprobs is long to its end, and its rows are expensive: each has
        logits."""
        self.part = self.most_scored = None
        if num_chunk is None:
            return False
        if isinstance(self.need, Score) and self.need.num_text is not None:
            self.most_scored = max(1, num_chunk // 4)
            return True
        traits = self.slot.cache.traits
        num_chunk = -(-num_chunk // traits.num_block) * traits.num_block
        text = self.query().text
        if len(text) <= num_chunk:
            return False
        num_known = self._num_known(text)
        if len(text) - num_known <= num_chunk:
            return False
        # Parts end at multiples of their length, however much was known before.
        end = (num_known // num_chunk + 1) * num_chunk + traits.num_continued
        if self.request.shown:
            end += _num_shown_before(text[end - 1 :])
        self.part = text[:end]
        return True

    @property
    def is_at_prompt(self) -> bool:
        """Return whether its first token is not drawn yet."""
        return self.first_s is None

    @property
    def num_unread(self) -> int:
        """Return the number of tokens that its next forward pass reads or scores, unless it is
        cut."""
        query = self.query()
        return len(query.text) - self._num_known(query.text) + len(query.draft)

    def _num_known(self, text: Tokens) -> int:
        """Return the number of tokens of a text that its slot's cache holds, or the target copies
        there."""
        if not self.others:
            return self.slot.num_in_cache(text)
        return max(own.num_known(text) for own in (self.slot, *self._sources()))

    def _sources(self) -> Iterator[Slot]:
        """Yield other slots from which its prompt may be copied; their owner may change
        meanwhile."""
        return (other for other in self.others if other.owner == self.request.owner)

    def has_prefill(self, query: Query, known: Tokens) -> bool:
        """Return whether a query computes more than a round's tokens, where its slot's cache held
        the text ``known``: a prompt, or a text that another cache knew."""
        if len(query.text) <= query.sampler.num_prompt_tokens:
            return True
        num_known = common_prefix(known, query.text)
        return not num_known or len(query.text) - num_known > self.request.max_width + 1

    def note_computed(self, query: Query, scores: Scores, known: Tokens) -> None:
        """Count what a forward pass computed of the prompt. ``known`` is the text that its slot's
        cache held, for a target that does not report it."""
        told = scores.num_computed
        begin = len(query.text) - told if told is not None else common_prefix(known, query.text)
        self.num_computed += max(0, min(len(query.text), len(self.request.prompt)) - begin)

    @property
    def num_cached(self) -> int:
        """Return the number of tokens of the prompt that were not computed."""
        if self.request.num_prompt_logprobs is not None:  # each of its rows is computed
            return 0
        num_prompt = len(self.request.prompt)
        return min(max(0, num_prompt - self.num_computed), num_prompt - 1)

    # --- what is said

    def text_so_far(self) -> Piece | None:
        """Return the output that is new since the last call."""
        request = self.request
        if not (segments := request.take_segments()):
            return None
        num_released = request.stream.num_released if request.stream is not None else 0
        new = self._new_logprobs(num_released)
        prompt = self._prompt_logprobs()
        return Piece(Delta(segments), new, self.counts, prompt, self.num_cached)

    def _new_logprobs(self, end: int) -> tuple[Logprob, ...]:
        """Return the new logprobs up to the token at ``end``; they come with their text. An end
        token has no text and no logprob."""
        request = self.request
        new = request.logprobs[self._num_sent : end]
        self._num_sent = max(self._num_sent, end)
        return tuple(one for one in new if not request.is_end(one.token))

    def _prompt_logprobs(self) -> tuple[Logprob | None, ...]:
        """Return the prompt's logprobs, with the first output only."""
        if self._has_said_prompt:
            return ()
        self._has_said_prompt = True
        return tuple(self.request.prompt_logprobs)

    def finished(self) -> Finished:
        """Return the whole completion."""
        request, stream = self.request, self.request.stream
        if stream is not None:
            request.segments += stream.finish()
        return Finished(
            text=stream.text if stream is not None else "",
            tokens=tuple(request.text[len(request.prompt) :].tolist()),
            finish_reason=request.finish_reason or self.full,
            stats=Stats(
                num_prompt_tokens=len(request.prompt),
                rounds=tuple(request.rounds),
                begin_s=self.arrive_s,
                first_s=self.arrive_s if self.first_s is None else self.first_s,
                finish_s=self.finish_s,
                drafter_restarts=request.drafter.restarts - self.num_restarts,
            ),
        )

    def final_outputs(self, finished: Finished) -> list[Output]:
        """Return the outputs that end the request: text that was held back, and how it went."""
        request = self.request
        outputs: list[Output] = []
        if piece := self.text_so_far():
            outputs.append(piece)
        done = Done(
            finished,
            self.method.name,
            request.sampler.seed,
            self._new_logprobs(len(request.logprobs)),
            self.num_cached,
            self.arrive_s,
            self.start_s,
            self._prompt_logprobs(),
            request.stream.stop if request.stream is not None else None,
        )
        return [*outputs, done]


def _num_shown_before(text: Tokens) -> int:
    """Return how many tokens of pictures come before the first word of a text: a part of a prompt
    ends with a word."""
    is_word = text >= 0
    return int(is_word.argmax()) if is_word.any() else len(text)
