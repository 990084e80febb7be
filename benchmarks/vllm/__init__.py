"""How fast vLLM is with our drafter."""
