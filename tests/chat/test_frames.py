"""What two templates write between messages, paired."""

from __future__ import annotations

from dataclasses import replace

from fakes.vocabularies import Merged

from duodec.chat.frames import frames_of

CHATML = (
    "{% for m in messages %}<turn>{{ m.role }}:{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant:{% endif %}"
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('no system') }}{% elif m.role == 'user' %}[I]{{ m.content }}[/I]"
    "{% else %}{{ m.content }}<end>{% endif %}{% endfor %}"
)


class Templated(Merged):
    """Reads the control tokens of a templated text."""

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
        found: list[int] = [self.bos] if self.begins else []
        data = text.encode()
        while data:
            control = next((c for c in self.controls if data.startswith(c)), b"")
            if control == self.token_text(self.bos) and found == [self.bos]:
                found = []
            found.append(self.numbers[control or data[:1]])
            data = data[len(control) or 1 :]
        return found


TARGET = Templated(controls=(b"<turn>", b"<end>"), chat_template=CHATML)
DRAFT = Templated(
    controls=(b"<s>", b"[I]", b"[/I]", b"<end>"), chat_template=INST, begins=True, first=5
)


def spelled() -> dict[bytes, bytes]:
    return {
        b"".join(map(TARGET.token_text, own)): b"".join(map(DRAFT.token_text, theirs))
        for own, theirs in frames_of(TARGET, DRAFT)
    }


def test_what_stands_between_messages_is_paired() -> None:
    assert spelled() == {
        b"<turn>user:": b"<s>[I]",
        b"<end><turn>assistant:": b"[/I]",
        b"<end><turn>user:": b"<end>[I]",
    }


def test_one_template_or_none_needs_no_frames() -> None:
    assert list(frames_of(TARGET, replace(DRAFT, chat_template=CHATML))) == []
    assert list(frames_of(TARGET, replace(DRAFT, chat_template=None))) == []
    assert list(frames_of(replace(TARGET, chat_template="{{ no end"), DRAFT)) == []
