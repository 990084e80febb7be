"""Complete the prompts of a file, one a line: python examples/hundred_prompts.py FILE [MODEL]"""

import json
import sys
from pathlib import Path
from duodec import LLM

prompts = Path(sys.argv[1]).read_text("utf-8").splitlines()
with LLM(*sys.argv[2:3], num_slots=4) as llm:
    for prompt, done in zip(prompts, llm.generate(prompts, max_tokens=32)):
        print(json.dumps({"prompt": prompt, "text": done.text}))
