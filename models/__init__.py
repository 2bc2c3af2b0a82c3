"""Reference models in plain JAX; nothing of jaxsplice is imported here."""
