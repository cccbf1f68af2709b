"""Text: tokens and characters, the chat template, and what a reply's text means."""
