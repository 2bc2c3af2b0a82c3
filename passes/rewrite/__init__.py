"""Rules: finding, proving and splicing."""
