"""The engine: one loaded model, its sequences and the thread that runs them."""
