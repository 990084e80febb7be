"""OpenAI's interfaces: completions, chats and responses."""
