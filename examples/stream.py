"""Stream an answer and show which of its text was drafted: python examples/stream.py [MODEL]"""

import sys

from duodec import LLM, Delta, SamplingParams

with LLM.load(*sys.argv[1:2]) as llm:
    message = {"role": "user", "content": "Why is the sky blue?"}
    for event in llm.stream([message], SamplingParams(max_tokens=64)):
        if isinstance(event, Delta):
            for segment in event.segments:
                print(f"[{segment.text}]" if segment.is_drafted else segment.text, end="")
print()
