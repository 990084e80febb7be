"""Complete the prompts of a file, one a line: python examples/hundred_prompts.py FILE [MODEL]"""

import json
import sys
from pathlib import Path
from duodec import LLM, SamplingParams

prompts = Path(sys.argv[1]).read_text("utf-8").splitlines()
with LLM.load(*sys.argv[2:3], num_slots=4) as llm:
    for prompt, done in zip(prompts, llm.generate(prompts, SamplingParams(max_tokens=32))):
        print(json.dumps({"prompt": prompt, "text": done.text}))
