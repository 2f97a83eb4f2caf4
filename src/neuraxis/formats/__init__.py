"""File formats shared with other tools: SONATA."""
