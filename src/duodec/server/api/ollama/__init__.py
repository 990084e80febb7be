"""Ollama's interface: chats, completions, and what is served."""
