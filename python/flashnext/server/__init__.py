"""The HTTP server: OpenAI's chat completions over an engine."""
