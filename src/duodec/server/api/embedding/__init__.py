"""Embeddings and ranks, in the shapes of OpenAI, Jina, Cohere, llama.cpp and Ollama."""
