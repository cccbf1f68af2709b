"""flashnext serves Qwen3.8-Flash-Next models; see README.md."""
