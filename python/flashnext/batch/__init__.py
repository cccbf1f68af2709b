"""Files of requests, answered without a server's socket: see docs/batch.md."""
