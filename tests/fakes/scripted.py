"""A model that follows a script: what it writes is chosen by the prompt, as an agent needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from fakes.tags import Tags

from duodec.core.rows import Row
from duodec.core.sampling.sampler import Context
from duodec.llm import LLM
from duodec.testing import TableModel, TableTarget

BEGIN = "<|assistant|>"
# as Qwen2.5's: tools, calls and results between tags
TEMPLATE = (
    "{% for t in tools or [] %}{{ t|tojson }}\n{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function|tojson }}\n</tool_call>"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}" + BEGIN + "{% endif %}"
)
Script = Callable[[str], str]
"""From the text of a prompt to the response."""


@dataclass(frozen=True)
class ScriptedModel(TableModel):
    """Writes what its script says after the prompt, which ends where a response begins."""

    tokenizer: Tags = field(default_factory=lambda: Tags(TEMPLATE, (BEGIN,)))
    script: Script = str

    def logits(self, context: Context) -> Row:
        tokens = context.tokens()
        begins = np.flatnonzero(tokens == self.tokenizer.controls.tokens[BEGIN])
        if not len(begins):  # the server warms up
            return super().logits(context)
        begin = int(begins[-1]) + 1
        prompt = b"".join(map(self.tokenizer.piece, tokens[:begin].tolist())).decode()
        rest = self.tokenizer.tokenize(self.script(prompt), is_templated=False)
        row = np.zeros(self.num_vocab, dtype=np.float32)
        row[(rest[len(tokens) - begin :] or [self.tokenizer.eos])[0]] = 9.0
        return row


def scripted(script: Script, num_context: int) -> LLM:
    """A model, a token a character, that follows a script."""
    tokenizer = Tags(TEMPLATE, (BEGIN,))
    model = ScriptedModel(num_vocab=tokenizer.num_vocab, tokenizer=tokenizer, script=script)
    return LLM(TableTarget(model), tokenizer, num_context)
