"""Turn chat messages into tokens in which only the template writes control tokens.

A message's content is text: `<|im_end|>` in it does not end a turn. The template is rendered with
the characters that control tokens are spelled with (`<`, `|`, `[`) replaced by private characters
in messages and tools, so every such character in the rendered text is known to be the template's or
a message's. A control token counts if none of its characters is a message's; the text between is
tokenised as plain text. If no message holds such characters, the tokenizer is used as usual.

A template that searches for such characters (`</think>` in an earlier response) would not find
them. If that changes the text, only those in control tokens, or parts of them, are replaced. The
result must have the same control tokens as the first rendering; otherwise the first one is used, in
which the template also sees messages as plain text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, NamedTuple

from duodec.chat.pictures import Marked
from duodec.chat.template import Message, render
from duodec.core.prompts.pictures import Picture, PromptTokens, TextPart, sight_of
from duodec.core.special_tokens import SpecialTokens, Spelled
from duodec.core.tokenizers import Tokenizer
from duodec.errors import BadOption

_PROBE = "ALPHA7"  # what no template says
_FIRST_PRIVATE, _LAST_PRIVATE = 0xF0000, 0x10FFFD  # code points that texts do not use

# messages, tools, and the template's variables as the only item of a list
_Shown = tuple[Sequence[Message], Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]


class _Rendered(NamedTuple):
    """A prompt's text, the template's control tokens in it, and whether messages spell others."""

    text: str
    controls: list[Spelled]
    is_forged: bool


def chat_tokens(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    variables: Mapping[str, Any] = {},
    parse_special: bool = False,
    check: Callable[[str], object] = lambda text: None,
    marked: Marked | None = None,
) -> list[int]:
    """The tokens of a conversation, rendered by the model's chat template with ``variables`` of
    its own.

    With ``parse_special``, control tokens that messages spell are control tokens, as if the
    template had written them. ``check`` is shown each text that the template writes before anything
    is done with it, and may refuse it: a template can write far more than it was given. ``marked``
    are the pictures that stand as marks in the messages. Raises BadOption if there is no template,
    or it refuses, and for what is no picture.
    """
    template = tokenizer.chat_template
    if template is None:
        raise BadOption(
            "the model has no chat template; give the text as it is in place of `messages`"
        )
    bos, eos = (
        tokenizer.token_text(token).decode("utf-8", "replace") if token >= 0 else ""
        for token in (tokenizer.bos, tokenizer.eos)
    )

    has_parts = sight_of(tokenizer) is not None and _reads_parts(template, bos, eos)

    def write(shown: _Shown) -> str:
        messages, tools, (variables,) = shown
        messages = list(map(_in_parts, messages)) if has_parts else messages
        text = render(template, messages, bos=bos, eos=eos, tools=tools, variables=variables)
        check(text)
        return text

    shown = (messages, tools, (variables,))
    plain = write(shown)
    controls = tokenizer.controls
    if controls.tokens and not parse_special:
        found = _render(controls, write, plain, shown)
        if found.is_forged:
            if marked and marked.files:
                return _with_pictures(tokenizer, marked, found.text, found.controls)
            return tokenizer.tokenize_around(found.text, found.controls)
        plain = found.text
    if marked and marked.files:
        return _with_pictures(tokenizer, marked, plain, None)
    return tokenizer.tokenize(plain, is_templated=True)


def _with_pictures(
    tokenizer: Tokenizer, marked: Marked, text: str, controls: Sequence[Spelled] | None
) -> PromptTokens:
    """The tokens of a text with pictures in the places of their marks. Raises BadOption and
    PicturesFull."""
    sight, places = sight_of(tokenizer), list(marked.split(text))
    assert sight is not None, "else nothing is marked"
    if marked.files.keys() - {mark for *_, mark in places} - marked.otherwise.keys():
        raise BadOption(
            "the model's chat template leaves out a picture; send it in the user's last message"
        )

    def part(begin: int, end: int) -> TextPart:
        if controls is None:
            return text[begin:end], None
        inner = [one for one in controls if begin <= one.begin and one.end <= end]
        return text[begin:end], [
            Spelled(one.begin - begin, one.end - begin, one.token) for one in inner
        ]

    def parts() -> Iterator[TextPart | Picture]:
        begin = 0
        for start, end, mark in places:
            yield part(begin, start)
            found = marked.shown(mark)  # one at a time: they are large
            yield (found, ()) if isinstance(found, str) else found
            begin = end
        yield part(begin, len(text))

    return sight.tokenize(parts())


@lru_cache(maxsize=8)
def _reads_parts(template: str, bos: str, eos: str) -> bool:
    """Whether a template finds the words of a content only in a list of parts."""
    probe: Message = {"role": "user", "content": _PROBE}
    return not _is_written(template, probe, bos, eos) and _is_written(
        template, _in_parts(probe), bos, eos
    )


def _is_written(template: str, message: Message, bos: str, eos: str) -> bool:
    try:
        return _PROBE in render(template, [message], bos=bos, eos=eos)
    except BadOption:
        return False


def _in_parts(message: Message) -> Message:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def _render(
    controls: SpecialTokens, write: Callable[[_Shown], str], plain: str, shown: _Shown
) -> _Rendered:
    """The text, and which of its control tokens are the template's."""
    used = set(plain)

    def noted(text: str) -> str:
        used.update(text)
        return text

    _Marker(noted).all_of(shown)
    signs = _Signs.of(controls, used)

    def written(mark: Callable[[str], str]) -> _Rendered:
        return signs.read(write(_Marker(mark).all_of(shown)), controls)

    careful = _Marker(signs.mark_all)
    marked = careful.all_of(shown)
    if not careful.has_marked:
        return _Rendered(plain, [], is_forged=False)
    strict = signs.read(write(marked), controls)
    if strict.text == plain:
        return strict
    loose = written(signs.mark_controls)
    same = [c.token for c in loose.controls] == [c.token for c in strict.controls]
    return loose if same else strict


class _Marker:
    """Copies values with every text in them marked, except texts that are structure."""

    def __init__(self, mark: Callable[[str], str]) -> None:
        self._mark = mark
        self.has_marked = False

    def all_of(self, shown: _Shown) -> _Shown:
        messages, tools, variables = shown
        return self.messages(messages), self.values(tools), self.values(variables)

    def values(self, items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages or tools. Raises BadOption."""
        try:
            return [self._value(item) for item in items]
        except RecursionError as error:
            raise BadOption("a message is nested too deeply; send it flat") from error

    def messages(self, items: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages; their roles stay, since templates build control tokens of them: <|user|>."""
        roles = ({"role": item["role"]} if "role" in item else {} for item in items)
        return [{**marked, **role} for marked, role in zip(self.values(items), roles, strict=True)]

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            marked = self._mark(value)
            self.has_marked = self.has_marked or marked != value
            return marked
        if isinstance(value, Mapping):
            return {self._key(key): self._value(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._value(inner) for inner in value]
        return value

    def _key(self, key: Any) -> Any:
        """A field's name, which the template may look for, or a text."""
        return key if isinstance(key, str) and key.isidentifier() else self._value(key)


@dataclass(frozen=True)
class _Signs:
    """Maps the characters of control tokens to private ones, and back."""

    controls: SpecialTokens
    marks: Mapping[int, str]

    @classmethod
    def of(cls, controls: SpecialTokens, used: Collection[str]) -> _Signs:
        """Choose private characters that are not used. Raises BadOption where too few are left:
        a sign without a mark would be anybody's."""
        signs = sorted(set().union(*map(_signs, controls.tokens)))
        free = (chr(code) for code in range(_FIRST_PRIVATE, _LAST_PRIVATE + 1))
        marks = list(islice((mark for mark in free if mark not in used), len(signs)))
        if len(marks) < len(signs):
            raise BadOption(
                f"the messages use all private characters (U+{_FIRST_PRIVATE:X} to "
                f"U+{_LAST_PRIVATE:X}), of which {len(signs)} are needed to tell them from control "
                "tokens; leave some out"
            )
        return cls(controls, dict(zip(map(ord, signs), marks, strict=True)))

    @cached_property
    def _back(self) -> dict[int, str]:
        return {ord(mark): chr(sign) for sign, mark in self.marks.items()}

    @cached_property
    def _any_mark(self) -> re.Pattern[str]:
        return re.compile(f"[{''.join(self.marks.values())}]" if self.marks else "(?!)")

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        return frozenset(text[:i] for text in self.controls.tokens for i in range(1, len(text)))

    @cached_property
    def _ends(self) -> frozenset[str]:
        return frozenset(text[i:] for text in self.controls.tokens for i in range(1, len(text)))

    def mark_all(self, text: str) -> str:
        """Replace every sign."""
        return text.translate(self.marks)

    def mark_controls(self, text: str) -> str:
        """Replace signs within control tokens, and where the text may begin or end within one."""
        longest = max(map(len, self.controls.tokens), default=1)
        most = range(min(len(text), longest - 1), 0, -1)
        head = next((i for i in most if text[:i] in self._ends), 0)
        tail = next((len(text) - i for i in most if text[-i:] in self._beginnings), len(text))
        parts, end = [], 0
        inner = ((found.begin, found.end) for found in self.controls.find(text))
        for begin, stop in sorted([(0, head), *inner, (tail, len(text))]):
            begin = max(begin, end)
            stop = max(begin, stop)
            parts += [text[end:begin], self.mark_all(text[begin:stop])]
            end = stop
        return "".join([*parts, text[end:]])

    def read(self, marked: str, controls: SpecialTokens) -> _Rendered:
        """Restore a rendered text, and find which control tokens are the template's."""
        text = marked.translate(self._back)
        places = [match.start() for match in self._any_mark.finditer(marked)]
        own: list[Spelled] = []
        is_forged = False
        for found in controls.find(text):
            i = bisect_left(places, found.begin)
            if i < len(places) and places[i] < found.end:
                is_forged = True
            else:
                own.append(found)
        return _Rendered(text, own, is_forged)


def _signs(control: str) -> set[str]:
    """The characters that identify a control token: none that field names contain, and no white
    space, which templates trim."""
    signs = {c for c in control if not (c.isalnum() or c.isspace() or c == "_")}
    return signs or set(control[:1])
