"""jaxsplice."""
