"""Graphs over jaxprs: use-def form, emission, verifier, text, files."""
