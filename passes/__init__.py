"""The engine: reads jaxprs, matches, proves, splices. Imports JAX (and networkx for graph files) only."""
